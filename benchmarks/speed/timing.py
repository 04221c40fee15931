"""Time two ways to compute the same numbers. They take turns, and the time of each is measured by `device.now`.

On a CPU, this is the CPU time of one thread.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.speed import device

#: The shortest time that is measured, in seconds. Shorter work is repeated until it takes this long.
STRETCH = 0.05
#: A comparison that takes longer than LONG seconds is repeated at most SLOW times.
LONG, SLOW = 8.0, 2


class Clock:
    """Counts the seconds that are spent in wrapped functions. The time of nested calls counts only once."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **given: Any) -> Any:
            if self._inside:
                return original(*arguments, **given)
            self._inside, started = True, device.now()
            try:
                return original(*arguments, **given)
            finally:
                self.seconds += device.now() - started
                self._inside = False

        return counted

    def wrap(self, owner: Any, name: str) -> None:
        setattr(owner, name, self.around(getattr(owner, name)))


#: Counts the time of the checks that the model does not change during an audit. A rival makes no such checks, so their
#: time is reported next to that of the measures.
CHECKS = Clock()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two ways to compute the same numbers.

    Attributes:
        name: The name of the computed numbers.
        rival: The name of what attnaudit is compared with.
        instances: The number of instances that each side processes.
        ours: Computes the numbers with attnaudit.
        theirs: Computes the numbers with the rival.
        difference: Takes the results of `ours` and `theirs`, and returns how much they differ.
        tolerance: The largest difference that is allowed.
        part: A clock that counts only a part of `ours`. It is used if the rival starts from the results of the other
            part. None if the whole time counts.
        our_passes: Takes the result of `ours`, and returns how many passes of each kind it took.
        their_passes: Returns how many passes of each kind the latest run of `theirs` took.
        target: The smallest ratio of the rival's time to the time of attnaudit that is aimed at. None for no target.
        limit_ms: The longest time of attnaudit per instance that is aimed at, in milliseconds. None for no limit.
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
        ours_ms: The median time of attnaudit per instance, in milliseconds, without `checks_ms`.
        checks_ms: The median time per instance of the checks that the model does not change, in milliseconds.
        theirs_ms: The median time of the rival per instance, in milliseconds.
        repeats: The number of times that each side was timed.
        ratio: The median, over the repeats, of the rival's time divided by the time of attnaudit.
        low: The smallest of these ratios.
        high: The largest of these ratios.
        difference: The difference between the results.

    The other attributes have the same meaning as in `Comparison`.
    """

    name: str
    rival: str
    instances: int
    repeats: int
    ours_ms: float
    checks_ms: float = 0.0
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
        """Whether the target and the limit are met. None if there is neither."""
        if self.target is None and self.limit_ms is None:
            return None
        fast = self.target is None or self.ratio >= self.target
        return fast and (self.limit_ms is None or self.ours_ms <= self.limit_ms)


class DisagreementError(Exception):
    """Raised if the two sides do not give the same numbers. Their times can then not be compared."""


def timed(work: Callable[[], Any], times: int = 1, part: Clock | None = None) -> tuple[float, float]:
    """Return the time of one call of `work` without the checks that `CHECKS` counts, and the time of these checks.

    Both are in seconds.

    Args:
        work: The function to call.
        times: The number of calls. Their mean time is returned.
        part: A clock. If it is given, only the time that it counts is returned, and no checks.
    """
    gc.collect()
    gc.disable()
    before, checks = part.seconds if part else 0.0, CHECKS.seconds
    try:
        started = device.now()
        for _ in range(times):
            work()
        took = device.now() - started
        if part:
            return (part.seconds - before) / times, 0.0
        checks = CHECKS.seconds - checks
        return (took - checks) / times, checks / times
    finally:
        gc.enable()


def compare(one: Comparison, repeats: int) -> Timed:
    """Compare the results of both sides, and then time the sides in turn.

    Args:
        one: The comparison.
        repeats: The largest number of times that each side is timed. Slow comparisons are timed less often.

    Raises:
        DisagreementError: The results differ by more than the tolerance.
    """
    started = device.now()
    found = one.ours()
    first_ours = device.now() - started
    started = device.now()
    expected = one.theirs()
    first_theirs = device.now() - started
    difference = one.difference(found, expected)
    if not difference <= one.tolerance:
        raise DisagreementError(
            f"{one.name}: differs from {one.rival} by {difference:.3g}, but at most {one.tolerance:g} is allowed"
        )
    our_passes, their_passes = dict(one.our_passes(found)), dict(one.their_passes())
    del found, expected
    repeats = min(repeats, SLOW) if first_theirs + first_ours > LONG else repeats
    often, rarely = (max(1, math.ceil(STRETCH / max(t, 1e-6))) for t in (first_ours, first_theirs))
    ours, theirs, checks = [], [], []
    for turn in range(repeats):
        if turn % 2:
            theirs.append(timed(one.theirs, rarely)[0])
        measured, checked = timed(one.ours, often, one.part)
        ours.append(measured)
        checks.append(checked)
        if not turn % 2:
            theirs.append(timed(one.theirs, rarely)[0])
    ratios = [t / o for t, o in zip(theirs, ours, strict=True)]
    per = 1000 / one.instances
    return Timed(
        name=one.name,
        rival=one.rival,
        instances=one.instances,
        repeats=repeats,
        ours_ms=statistics.median(ours) * per,
        checks_ms=statistics.median(checks) * per,
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
