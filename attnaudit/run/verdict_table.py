"""The table of verdicts that a run prints at its end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from typing import TYPE_CHECKING

from attnaudit.formatting import plain_number, plural, terminal_safe, without_commands
from attnaudit.records import CheckRecord, MissingCase
from attnaudit.verdict_text import detected, digits, planned, power_warning, reference_name

if TYPE_CHECKING:
    from rich.text import Text

#: The table is at least this wide, in characters.
MINIMUM_WIDTH = 70
#: How many characters all columns except the name of the check take together.
OTHER_COLUMNS = 53
STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow", "undefined": "magenta", "missing": "red"}
SIGNS = {"at_least": ">=", "at_most": "<="}


def verdict_table(records: Sequence[CheckRecord], missing: Sequence[MissingCase], *, width: int, color: bool) -> str:
    """Return the table of verdicts, with one line per check, grouped by model and data set.

    Args:
        records: The checks of the run.
        missing: The cases without a verdict.
        width: The width of the terminal in characters. The table never needs more than 80.
        color: Whether to use the colours and styles of the terminal.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = StringIO()
    console = Console(
        file=out,
        width=max(MINIMUM_WIDTH, width),
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        highlight=False,
    )
    rows: list[tuple[tuple[str, str], list[Text]]] = [
        ((record.model, record.data), _row(record, name_width=console.width - OTHER_COLUMNS)) for record in records
    ]
    rows += [((case.model, case.data), _missing_row(case)) for case in missing]
    order = list(dict.fromkeys(subject for subject, _ in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    for (model, data), group in groupby(rows, key=lambda row: row[0]):
        console.print(Text(terminal_safe(f"{model} on {data}"), style="bold"))
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
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return without_commands("\n".join(lines))  # wrapping may have moved any word to the start of a line


def _row(record: CheckRecord, *, name_width: int) -> list[Text]:
    """Return the cells of a check. Its references are below its name."""
    from rich.text import Text

    limit, interval = record.requirement, record.interval
    gate = record.severity == "gate"
    # A verdict "informational" is in the first column already.
    remark = "" if gate or record.verdict == "informational" else " (informational)"
    name = terminal_safe(f"{record.check}{remark}")
    references = [
        terminal_safe(f"{reference_name(record, one)} {plain_number(one.value)}")
        for one in record.references
        if one.value is not None
    ]
    places = digits(record)
    bounds = ", ".join(plain_number(x, places) for x in (interval.low, interval.high)) if interval else ""
    n = str(record.n) if record.n_defined == record.n else f"{record.n_defined}/{record.n}"
    return [
        Text(record.verdict, style=STYLES[record.verdict] if gate else "dim"),
        Text.assemble(_break_name(name, name_width), (_below_name(references, name_width), "dim")),
        Text("-" if record.value is None else plain_number(record.value, places)),
        Text("-" if limit is None else f"{SIGNS[limit.direction]} {limit.value:.3g}"),
        Text("-" if interval is None else f"[{bounds}]"),
        Text(n),
    ]


def _missing_row(case: MissingCase) -> list[Text]:
    """Return the cells of a case without a verdict."""
    from rich.text import Text

    return [Text("missing", style=STYLES["missing"]), Text(terminal_safe(case.check)), *(Text("-") for _ in range(4))]


def explanations(records: Sequence[CheckRecord], *, all_of_them: bool) -> list[str]:
    """Return warnings about gates whose sample is too small, and further sentences that help to read the table.

    The further sentences say when a gate fails. For an inconclusive gate, they also give the number of instances that
    would decide it, and the smallest change that it detects.

    Args:
        records: The checks of the run.
        all_of_them: Whether to return the further sentences as well.
    """
    several = len({(record.model, record.data) for record in records}) > 1
    lines = []
    gates = max((record.gated for record in records), default=1)
    levels = {r.fail_interval.level for r in records if r.gated == gates and r.fail_interval is not None}
    if all_of_them and gates > 1 and len(levels) == 1:
        lines.append(
            f"A gate fails only if its whole {levels.pop()} interval is on the wrong side of the threshold. This "
            f"interval is wider than the one in the table, because {plural(gates, 'check')} can block this release."
        )
    for record in records:
        subject = f" for {record.model} on {record.data}" if several else ""
        if all_of_them and record.planning is not None:
            lines.append(f"{record.check}{subject}: {planned(record)}")
        if record.severity == "gate":
            in_full = all_of_them and record.verdict == "inconclusive"
            power = detected(record) if in_full else power_warning(record)
            lines += [f"{record.check}{subject}: {power}"] if power else []
    return lines


def _below_name(references: Sequence[str], width: int) -> str:
    """Join references into lines, each after a line break, so that a reference and its value share a line."""
    lines: list[str] = []
    for reference in references:
        if lines and len(lines[-1]) + len(reference) + 3 <= width:  # with ", " before it and possibly "," after it
            lines[-1] += f", {reference}"
        else:
            lines.append(reference)
    return "\n" + ",\n".join(lines) if lines else ""


def _break_name(name: str, width: int) -> str:
    """Break a name longer than `width` into two lines. The break is before the last word that starts within `width`."""
    if len(name) <= width:
        return name
    starts = [match.start() for match in re.finditer(r"(?<=[. ])(?=[A-Za-z(])", name) if match.start() <= width]
    return f"{name[: starts[-1]].rstrip()}\n{name[starts[-1] :]}" if starts else name
