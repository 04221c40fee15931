"""The table of verdicts at the end of a run, for a terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from typing import TYPE_CHECKING

from attnaudit.formatting import plain_number, plural
from attnaudit.records import CheckRecord, MissingCase
from attnaudit.verdict_text import digits, planned, shown_verdict

if TYPE_CHECKING:
    from rich.text import Text

NARROWEST = 70
#: Characters that all columns but the check's name take.
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

    required, interval = record.requirement, record.interval
    sign = {"at_least": ">=", "at_most": "<="}
    name = record.check if record.severity == "gate" else f"{record.check} (report)"
    references = ", ".join(f"{r.name} {plain_number(r.value)}" for r in record.references if r.value is not None)
    places = digits(record)
    n = str(record.n) if record.n_defined == record.n else f"{record.n_defined}/{record.n}"
    return [
        Text(shown_verdict(record), style=STYLES[record.verdict] if record.severity == "gate" else "dim"),
        Text.assemble(_broken(name, room), *([("\n" + references, "dim")] if references else [])),
        Text("-" if record.value is None else plain_number(record.value, places)),
        Text("-" if required is None else f"{sign[required.direction]} {required.value:.3g}"),
        Text(
            "-"
            if interval is None
            else f"[{plain_number(interval.low, places)}, {plain_number(interval.high, places)}]"
        ),
        Text(n),
    ]


def _planning(records: Sequence[CheckRecord], *, several: bool) -> list[str]:
    """When a check fails, and what would decide the inconclusive ones."""
    lines = []
    gated = max((r.gated for r in records), default=1)
    levels = {r.fail_interval.level for r in records if r.gated == gated and r.fail_interval is not None}
    if gated > 1 and len(levels) == 1:
        lines.append(
            f"A check fails only if its whole {levels.pop()} interval misses the threshold, because "
            f"{plural(gated, 'check')} gate this release."
        )
    for record in records:
        if record.planning is not None:
            case = f" on {record.model}, {record.data}" if several else ""
            lines.append(f"{record.check}{case}: {planned(record)}")
    return lines


def _broken(name: str, room: int) -> str:
    """Break a long name into two lines, before the last word at which the first line fits."""
    if len(name) <= room:
        return name
    starts = [match.start() for match in re.finditer(r"(?<=[. ])(?=[A-Za-z(])", name) if match.start() <= room]
    return f"{name[: starts[-1]].rstrip()}\n{name[starts[-1] :]}" if starts else name


def _missing_row(case: MissingCase) -> list[Text]:
    from rich.text import Text

    return [Text("missing", style=STYLES["missing"]), Text(case.check), *(Text("-") for _ in range(4))]
