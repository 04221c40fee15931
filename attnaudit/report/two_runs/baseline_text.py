"""Text about the baselines that the models of a run were compared with."""

from __future__ import annotations

from attnaudit.records import RunRecord
from attnaudit.verdict_text import exceeds_margin


def baseline_notes(run: RunRecord, *, above: str = "") -> list[str]:
    """Return sentences about baselines: why values are not comparable, and which are better by more than the margin.

    There is one sentence for each reason why values are not comparable, which names the gates. There is also one
    sentence for each value that is better.

    Args:
        run: The record of the run.
        above: Text that is shown above the notes. Reasons that this text already contains are left out.
    """
    reasons: dict[str, list[str]] = {}
    better = []
    for record in run.checks:
        place = f"{record.check} ({record.model} on {record.data})"
        if record.comparison is not None and record.comparison.not_comparable:
            reasons.setdefault(record.comparison.not_comparable, []).append(place)
        elif exceeds_margin(record):
            better.append(f"{place}: {record.note}.")
    return [*(f"{', '.join(places)}: {reason}." for reason, places in reasons.items() if reason not in above), *better]
