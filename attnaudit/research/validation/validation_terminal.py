"""What a validation says on a terminal."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from attnaudit.research.validation import validation_wording
from attnaudit.research.validation.validation_pages import ordered
from attnaudit.research.validation.validation_records import Validation

if TYPE_CHECKING:
    pass

NARROWEST = 80


def summary(validation: Validation, *, width: int) -> str:
    """The outcome, the kinds and the checks; readable at 80 columns."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = StringIO()
    console = Console(file=out, width=max(NARROWEST, width), color_system=None, highlight=False)

    def table(*columns: str) -> Table:
        made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for position, name in enumerate(columns):
            made.add_column(name, justify="right" if position > 1 else "left", overflow="fold")
        return made

    console.print(Text(f"{validation_wording.outcome(validation)}."))
    held = validation.policy_held_out
    if held is not None:
        console.print(Text(f"sensitivity {validation_wording.share(held.sensitivity)}"))
        console.print(Text(f"false alarms {validation_wording.share(held.false_alarms)}"))
    for one in validation_wording.shortfalls(validation):
        console.print(Text(f"short of the goal: {one}"))
    for one in validation_wording.small(validation):
        console.print(Text(f"note: {one}"))
    if held is not None:
        kinds = table("kind", "truth", "alarms", "area")
        for kind in held.by_kind:
            kinds.add_row(
                Text(kind.name),
                kind.truth,
                validation_wording.short_share(kind.alarms),
                validation_wording.number(kind.area),
            )
        console.print(kinds)
    checks = table("check", "question", "area", "caught", "false")
    for check in ordered(validation.checks):
        found = validation_wording.shown(check)
        checks.add_row(
            Text(("* " if check.gated else "  ") + check.check),
            check.question,
            validation_wording.area(found.area if found else None),
            validation_wording.short_share(found.sensitivity if found else None),
            validation_wording.short_share(found.false_alarms if found else None),
        )
    console.print(checks)
    console.print(Text("* gated by the policy"))
    for note in validation.notes:
        console.print(Text(f"note: {note}"))
    for folder, why in sorted(validation.failed.items()):
        console.print(Text(f"not audited: {folder}: {why}"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
