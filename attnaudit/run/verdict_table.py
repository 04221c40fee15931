"""Draw the table of verdicts that a run prints at its end."""

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

MIN_WIDTH = 70
#: Characters that the columns other than the name of the check need.
OTHER_COLUMNS = 52
STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow", "undefined": "magenta", "missing": "red"}


def verdict_table(records: Sequence[CheckRecord], missing: Sequence[MissingCase], *, width: int, color: bool) -> str:
    """Draw one row per check, grouped by model and data set.

    Args:
        records: The verdicts.
        missing: The cases without a verdict.
        width: The width of the terminal; the table fits 80 columns.
        color: Whether to use colors; plain text otherwise.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = StringIO()
    console = Console(
        file=out,
        width=max(MIN_WIDTH, width),
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
    for line in _notes(records, several=len(order) > 1):
        console.print(Text(line))
    for reason, count in Counter(case.reason for case in missing).items():
        console.print(Text(f"missing ({count}): {reason}"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _row(record: CheckRecord, name_width: int) -> list[Text]:
    """Fill the cells of one verdict. name_width: the characters that the name of the check may take."""
    from rich.text import Text

    required, interval = record.requirement, record.interval
    sign = {"at_least": ">=", "at_most": "<="}
    name = record.check if record.severity == "gate" else f"{record.check} (report)"
    references = ", ".join(f"{r.name} {plain_number(r.value)}" for r in record.references if r.value is not None)
    places = digits(record)
    n = str(record.n) if record.n_defined == record.n else f"{record.n_defined}/{record.n}"
    return [
        Text(shown_verdict(record), style=STYLES[record.verdict] if record.severity == "gate" else "dim"),
        Text.assemble(_wrapped(name, name_width), *([("\n" + references, "dim")] if references else [])),
        Text("-" if record.value is None else plain_number(record.value, places)),
        Text("-" if required is None else f"{sign[required.direction]} {required.value:.3g}"),
        Text(
            "-"
            if interval is None
            else f"[{plain_number(interval.low, places)}, {plain_number(interval.high, places)}]"
        ),
        Text(n),
    ]


def _notes(records: Sequence[CheckRecord], *, several: bool) -> list[str]:
    """Explain below the table when a gate fails, and what would decide the inconclusive checks.

    several: whether the table has more than one model or data set.
    """
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


def _wrapped(name: str, width: int) -> str:
    """Wrap a long name onto a second line, before the last word at which the first line still fits."""
    if len(name) <= width:
        return name
    starts = [match.start() for match in re.finditer(r"(?<=[. ])(?=[A-Za-z(])", name) if match.start() <= width]
    return f"{name[: starts[-1]].rstrip()}\n{name[starts[-1] :]}" if starts else name


def _missing_row(case: MissingCase) -> list[Text]:
    """Fill the cells of a case without a verdict."""
    from rich.text import Text

    return [Text("missing", style=STYLES["missing"]), Text(case.check), *(Text("-") for _ in range(4))]
