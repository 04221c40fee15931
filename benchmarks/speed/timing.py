"""Time two ways to compute the same numbers, which take turns on one thread, in CPU time of the process."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: The shortest time that is measured, in CPU seconds; shorter work is repeated until it takes this long.
STRETCH = 0.05
#: A comparison that takes longer than LONG CPU seconds is repeated at most SLOW times.
LONG, SLOW = 8.0, 2


class Clock:
    """Counts the CPU seconds spent in wrapped functions. Nested calls count once."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **given: Any) -> Any:
            if self._inside:
                return original(*arguments, **given)
            self._inside, started = True, time.process_time()
            try:
                return original(*arguments, **given)
            finally:
                self.seconds += time.process_time() - started
                self._inside = False

        return timed

    def wrap(self, owner: Any, name: str) -> None:
        setattr(owner, name, self.around(getattr(owner, name)))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two ways to compute the same numbers.

    Attributes:
        name: What is computed.
        rival: What attnaudit is compared with.
        instances: How many instances both sides process.
        ours: Computes the numbers with attnaudit.
        theirs: Computes them with the rival.
        difference: (ours, theirs) -> a number that must not exceed `tolerance`.
        tolerance: See `difference`.
        part: The clock of the part of `ours` that counts, if the rival starts from the rest; None if all of it counts.
        our_passes: Result of `ours` -> how many passes of each sort it took.
        their_passes: The same for the latest run of `theirs`.
        target: The ratio of the times that attnaudit aims at.
        limit_ms: The time per instance that attnaudit must not exceed.
        note: A remark.
    """

    name: str
    rival: str
    instances: int
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    difference: Callable[[Any, Any], float]
    tolerance: float
    part: Clock | None = None
    our_passes: Callable[[Any], Mapping[str, int]] = lambda _: {}
    their_passes: Callable[[], Mapping[str, int]] = dict
    target: float | None = None
    limit_ms: float | None = None
    note: str = ""


@dataclass(kw_only=True)
class Timed:
    """The times of a comparison.

    Attributes:
        ours_ms, theirs_ms: Median time per instance.
        ratio, low, high: Median, smallest and largest ratio of theirs to ours over the repeats.
        difference: The difference of the results.

    The other attributes are those of `Comparison`.
    """

    name: str
    rival: str
    instances: int
    repeats: int
    ours_ms: float
    theirs_ms: float
    ratio: float
    low: float
    high: float
    difference: float
    tolerance: float
    our_passes: dict[str, int] = field(default_factory=dict)
    their_passes: dict[str, int] = field(default_factory=dict)
    target: float | None = None
    limit_ms: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None and self.limit_ms is None:
            return None
        fast = self.target is None or self.ratio >= self.target
        return fast and (self.limit_ms is None or self.ours_ms <= self.limit_ms)


class DisagreementError(Exception):
    """The two sides do not give the same numbers, so their times cannot be compared."""


def cpu(work: Callable[[], Any], times: int = 1, part: Clock | None = None) -> float:
    """Return the CPU seconds of one call of `work`, or of the part of it that a clock measures."""
    gc.collect()
    gc.disable()
    before = part.seconds if part else 0.0
    try:
        started = time.process_time()
        for _ in range(times):
            work()
        took = time.process_time() - started
        return (part.seconds - before if part else took) / times
    finally:
        gc.enable()


def compare(one: Comparison, repeats: int) -> Timed:
    """Compare the results of both sides, then time them in turn.

    Raises DisagreementError if the results differ by more than the tolerance.
    """
    started = time.process_time()
    found = one.ours()
    first_ours = time.process_time() - started
    started = time.process_time()
    expected = one.theirs()
    first_theirs = time.process_time() - started
    difference = one.difference(found, expected)
    if not difference <= one.tolerance:
        raise DisagreementError(
            f"{one.name}: differs from {one.rival} by {difference:.3g}, more than {one.tolerance:g} allowed"
        )
    our_passes, their_passes = dict(one.our_passes(found)), dict(one.their_passes())
    del found, expected
    repeats = min(repeats, SLOW) if first_theirs + first_ours > LONG else repeats
    often, rarely = (max(1, math.ceil(STRETCH / max(t, 1e-6))) for t in (first_ours, first_theirs))
    ours, theirs = [], []
    for turn in range(repeats):
        if turn % 2:
            theirs.append(cpu(one.theirs, rarely))
        ours.append(cpu(one.ours, often, one.part))
        if not turn % 2:
            theirs.append(cpu(one.theirs, rarely))
    ratios = [t / o for t, o in zip(theirs, ours, strict=True)]
    per = 1000 / one.instances
    return Timed(
        name=one.name,
        rival=one.rival,
        instances=one.instances,
        repeats=repeats,
        ours_ms=statistics.median(ours) * per,
        theirs_ms=statistics.median(theirs) * per,
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        difference=difference,
        tolerance=one.tolerance,
        our_passes=our_passes,
        their_passes=their_passes,
        target=one.target,
        limit_ms=one.limit_ms,
        note=one.note,
    )
