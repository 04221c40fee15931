"""The cost of every measure of a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.engine.planning import Plan, resolve
from attnaudit.records import MeasureCost


def costs_of(
    plan: Plan,
    adapter: ModelAdapter,
    needs: Sequence[str],
    *,
    seconds: Mapping[str, float],
    passes: Mapping[str, Mapping[str, int]],
    uses: Mapping[str, Collection[str]],
) -> list[MeasureCost]:
    """Return the cost of every measure of a plan, in the order in which they are computed; then of shared results.

    Args:
        plan: The plan.
        adapter: The model.
        needs: The needs of the checks.
        seconds: Name of a measure or of a shared result -> wall-clock time in seconds.
        passes: Name of a measure or of a shared result -> kind of work -> how often it was done.
        uses: Name of a measure or of a shared result -> the names of the shared results that it uses.
    """
    required = {need: {planned.name for planned in resolve([need], adapter).measures} for need in needs}
    for names in required.values():
        _add_used(names, uses)
    measures = [planned.name for planned in plan.measures]
    return [
        MeasureCost(
            measure=name,
            needs=sorted(need for need, names in required.items() if name in names),
            seconds=seconds.get(name, 0.0),
            passes=dict(passes.get(name, {})),
        )
        for name in (*measures, *sorted(seconds.keys() - {*measures}))
    ]


def _add_used(names: set[str], uses: Mapping[str, Collection[str]]) -> None:
    """Add to some names the shared results that they use, directly or for another shared result."""
    new = list(names)
    while new:
        found = set(uses.get(new.pop(), ())) - names
        names |= found
        new += found
