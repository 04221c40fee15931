"""The time and the passes that each measure takes."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.engine.planning import Plan, resolve
from attnaudit.records import MeasureCost


class Spent:
    """Adds up the time and the passes of each measure.

    The results of a measure are on the CPU before its time is added, so the time on a CUDA device is included.

    Args:
        pass_counts: The counts of all passes, which the batches increase.

    Attributes:
        seconds: Name of a measure -> wall-clock time in seconds.
        passes: Name of a measure -> kind of work -> how often it was done.
    """

    def __init__(self, pass_counts: Counter[str]) -> None:
        self._pass_counts = pass_counts
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.passes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.begin()

    def begin(self) -> None:
        """Start the clock for the next measure."""
        self._began = time.perf_counter()
        self._before = Counter(self._pass_counts)

    def add(self, name: str) -> None:
        """Add to a measure the time and the passes since the last call of `begin` or `add`."""
        self.seconds[name] += time.perf_counter() - self._began
        self.passes[name].update(self._pass_counts - self._before)
        self.begin()


def costs_of(
    plan: Plan,
    adapter: ModelAdapter,
    needs: Sequence[str],
    seconds: Mapping[str, float],
    passes: Mapping[str, Mapping[str, int]],
) -> list[MeasureCost]:
    """Return the cost of every measure of a plan, in the order in which they are computed.

    Args:
        plan: The plan.
        adapter: The model.
        needs: The needs of the checks.
        seconds: Name of a measure -> wall-clock time in seconds.
        passes: Name of a measure -> kind of work -> how often it was done.
    """
    required = {need: {planned.name for planned in resolve([need], adapter).measures} for need in needs}
    return [
        MeasureCost(
            measure=planned.name,
            needs=sorted(need for need, names in required.items() if planned.name in names),
            seconds=seconds.get(planned.name, 0.0),
            passes=dict(passes.get(planned.name, {})),
        )
        for planned in plan.measures
    ]
