"""Recognise thresholds that no possible value can fail."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attnaudit.records import Direction
from attnaudit.statistics.threshold import Expression

#: The largest magnitude of a value. A custom check that returns a larger value raises an error.
LARGEST_VALUE = 1e100
#: A threshold counts as equal to an end of the range if the two differ by at most this fraction of the range, because
#: such a difference can be a rounding error. If the range is much larger than the end, rounding is relative to the end.
ROUNDING = 1e-6


def why_vacuous(
    direction: Direction,
    limit: float | Expression,
    *,
    bounds: tuple[float, float],
    reference_bounds: Mapping[str, tuple[float, float]] | None = None,
    never_exceeds: Sequence[str] = (),
) -> str:
    """Return why a threshold is vacuous, that is, why no possible value fails it.

    Args:
        direction: "at_least" or "at_most".
        limit: The threshold.
        bounds: The smallest and the largest possible value of the check, and of each reference that is not in
            `reference_bounds`.
        reference_bounds: Reference name -> its smallest and largest possible value; None if `bounds` apply to all.
        never_exceeds: The names of the references that the value cannot exceed.

    Returns:
        The reason as a clause, such as "no value is below 0"; "" if some possible value fails the threshold.
    """
    low, high = bounds

    def rounding(end: float) -> float:
        return ROUNDING * min(high - low, 2 * max(1.0, abs(end))) if math.isfinite(high - low) else 0.0

    if isinstance(limit, Expression):
        least, most = limit.range(low, high, reference_bounds)
        if direction == "at_most":
            for reference in never_exceeds:
                if limit.minus(reference).range(low, high, reference_bounds)[0] >= -rounding(0.0):
                    return f"no value is above '{reference}'"
    else:
        least = most = limit
    if direction == "at_least" and most <= max(low, -LARGEST_VALUE) + rounding(low):
        return f"no value is below {max(low, -LARGEST_VALUE):.4g}"
    if direction == "at_most" and least >= min(high, LARGEST_VALUE) - rounding(high):
        return f"no value is above {min(high, LARGEST_VALUE):.4g}"
    return ""
