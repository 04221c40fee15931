"""What a run says on a terminal: progress while it measures, and the table of verdicts at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from typing import TYPE_CHECKING

from attnaudit.records import CheckRecord, MissingCase
from attnaudit.statistics.verdict import decimals

if TYPE_CHECKING:
    from rich.text import Text

NARROWEST = 70
#: Characters that the columns beside the check's name take.
OTHER_COLUMNS = 52
STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow", "undefined": "magenta", "missing": "red"}


def verdict_table(records: Sequence[CheckRecord], missing: Sequence[MissingCase], *, width: int, color: bool) -> str:
    """One line per check, grouped by model and data set; readable at 80 columns, plain without `color`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = StringIO()
    console = Console(
        file=out,
        width=max(NARROWEST, width),
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        highlight=False,
    )
    rows: list[tuple[tuple[str, str], list[Text]]] = [
        ((r.model, r.data), _row(r, console.width - OTHER_COLUMNS)) for r in records
    ]
    rows += [((m.model, m.data), _missing_row(m)) for m in missing]
    order = list(dict.fromkeys(pair for pair, _ in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    for (model, data), group in groupby(rows, key=lambda row: row[0]):
        console.print(Text(f"{model} on {data}", style="bold"))
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        table.add_column("verdict", no_wrap=True)
        table.add_column("check", overflow="fold", ratio=1)
        table.add_column("value", justify="right", no_wrap=True)
        table.add_column("required", justify="right", no_wrap=True)
        table.add_column("interval", justify="right", no_wrap=True)
        table.add_column("n", justify="right", no_wrap=True)
        for _, cells in group:
            table.add_row(*cells)
        console.print(table)
    for line in _planning(records, several=len(order) > 1):
        console.print(Text(line))
    for reason, count in Counter(case.reason for case in missing).items():
        console.print(Text(f"missing ({count}): {reason}"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _row(record: CheckRecord, room: int) -> list[Text]:
    from rich.text import Text

    required = record.requirement
    sign = {"at_least": ">=", "at_most": "<="}
    name = record.check if record.severity == "gate" else f"{record.check} (report)"
    references = ", ".join(f"{r.name} {r.value:.3f}" for r in record.references if r.value is not None)
    verdict = record.verdict if required is not None else "reported"
    ends = () if record.interval is None else (record.interval.low, record.interval.high)
    numbers = [x for x in (record.value, *ends) if x is not None]
    digits = decimals(numbers, required.value if required else None)
    n = str(record.n) if record.n_defined == record.n else f"{record.n_defined}/{record.n}"
    return [
        Text(verdict, style=STYLES[record.verdict] if record.severity == "gate" else "dim"),
        Text.assemble(_broken(name, room), *([("\n" + references, "dim")] if references else [])),
        Text("-" if record.value is None else f"{record.value:.{digits}f}"),
        Text("-" if required is None else f"{sign[required.direction]} {required.value:.3g}"),
        Text(
            "-" if record.interval is None else f"[{record.interval.low:.{digits}f}, {record.interval.high:.{digits}f}]"
        ),
        Text(n),
    ]


def _planning(records: Sequence[CheckRecord], *, several: bool) -> list[str]:
    """What would decide the inconclusive cases, and what a failure needed."""
    lines = []
    gated = max((r.gated for r in records), default=1)
    strict = {r.fail_interval.level for r in records if r.gated == gated and r.fail_interval is not None}
    if gated > 1 and len(strict) == 1:
        lines.append(f"a failure needs the {strict.pop()} interval: there are {gated} gated checks")
    for record in records:
        if record.planning is not None:
            of = f" on {record.model}, {record.data}" if several else ""
            lines.append(f"{record.check}{of}: {record.planning.words}")
    return lines


def _broken(name: str, room: int) -> str:
    """A long name on two lines, parted before a word where the first part then fits."""
    if len(name) <= room:
        return name
    starts = [match.start() for match in re.finditer(r"(?<=[. ])(?=[A-Za-z(])", name) if match.start() <= room]
    return f"{name[: starts[-1]].rstrip()}\n{name[starts[-1] :]}" if starts else name


def _missing_row(case: MissingCase) -> list[Text]:
    from rich.text import Text

    return [Text("missing", style=STYLES["missing"]), Text(case.check), *(Text("-") for _ in range(4))]
