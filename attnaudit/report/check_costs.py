"""The cost of each check, computed from the costs of the measures that it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnaudit.records import MeasureCost


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCost:
    """What one check cost.

    Attributes:
        check: The id of the check.
        seconds: The wall-clock time, in seconds, of all measures that the check needs.
        alone: The part of `seconds` that no other check needs: what an audit without this check would save.
        passes: Kind of work -> how often it was done for the measures that the check needs.
    """

    check: str
    seconds: float
    alone: float
    passes: dict[str, int]


def check_costs(needs: Mapping[str, Sequence[str]], costs: Sequence[MeasureCost]) -> list[CheckCost]:
    """Return the cost of each check, the most expensive one first.

    Args:
        needs: The id of each check -> the needs of the check.
        costs: The costs of the measures.
    """
    measures = {check: {cost.measure for cost in costs if {*cost.needs} & {*named}} for check, named in needs.items()}
    users = Counter(name for names in measures.values() for name in names)
    found = []
    for check, names in measures.items():
        used = [cost for cost in costs if cost.measure in names]
        passes: Counter[str] = Counter()
        for cost in used:
            passes.update(cost.passes)
        found.append(
            CheckCost(
                check=check,
                seconds=sum(cost.seconds for cost in used),
                alone=sum(cost.seconds for cost in used if users[cost.measure] == 1),
                passes=dict(passes),
            )
        )
    return sorted(found, key=lambda one: (-one.seconds, one.check))
