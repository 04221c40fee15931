"""Confidence intervals of several means, corrected for their number by Holm's method (Holm 1979)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.formatting import MOST_DECIMALS, number

#: The largest probability that Holm's method rejects at least one true hypothesis of a family.
ERROR = 0.05
#: If more seeds than this are needed, `seeds_needed` returns None.
MOST_SEEDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanInterval:
    """A mean with Student's confidence interval.

    Attributes:
        mean: The mean of the values.
        low: The lower limit of the interval. None if there are fewer than two values.
        high: The upper limit of the interval. None if there are fewer than two values.
        n: The number of values.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    def text(self, digits: int = 3) -> str:
        """Return the mean with its interval, such as "+0.12 [0.08, 0.16]".

        If there is no interval, the text is, for example, "+0.12 (one seed)". A mean that is rounded to zero has no
        sign. Limits near zero have more decimals than other numbers, to show whether the interval contains 0.
        """
        mean = number(self.mean, digits=digits, exponent=False)
        mean = mean if mean.startswith("−") or float(mean.replace(",", "")) == 0 else f"+{mean}"
        if self.low is None or self.high is None:
            return f"{mean} (one seed)"
        return f"{mean} [{_limit(self.low, digits)}, {_limit(self.high, digits)}]"


def _limit(value: float, digits: int) -> str:
    """Format a limit of an interval. It has as many decimals, up to MOST_DECIMALS, as it needs to differ from zero."""
    needed = (places for places in range(digits, MOST_DECIMALS) if value == 0 or round(value, places) != 0)
    return number(value, digits=next(needed, MOST_DECIMALS), exponent=False)


def mean_interval(values: Sequence[float], *, error: float = ERROR) -> MeanInterval:
    """Return the mean of values with Student's confidence interval.

    Args:
        values: The values.
        error: One minus the confidence of the interval.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("mean_interval: expected at least one value")
    mean = statistics.fmean(values)
    if len(values) < 2:
        return MeanInterval(mean=mean, low=None, high=None, n=len(values))
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 1 - error / 2)) * statistics.stdev(values) / math.sqrt(len(values))
    return MeanInterval(mean=mean, low=mean - half, high=mean + half, n=len(values))


def holm_intervals(families: Sequence[Sequence[float]]) -> list[MeanInterval]:
    """Return one interval per list of values, corrected by Holm's method.

    The p-values of the two-sided t-tests against 0 are sorted. If there are m tests, the smallest p-value is compared
    with ERROR/m, the next one with ERROR/(m − 1), and so on, until a p-value is larger than its limit. Each interval
    has the confidence at which its mean was tested, so that it excludes 0 exactly where Holm's method rejects 0. From
    the first test that does not reject 0, all intervals have the confidence of this test. The intervals show the tests;
    that all of them contain their true means is a little less likely than 1 - ERROR.

    Args:
        families: One list of values per interval. A list of a single value gets no interval and is not counted.

    Returns:
        The intervals, in the order of the arguments.

    Raises:
        ValueError: A list is empty.
    """
    intervals = [mean_interval(values) for values in families]
    tested = [place for place, values in enumerate(families) if len(values) > 1]
    p_values = {place: _p_value(families[place]) for place in tested}
    error, rejecting = ERROR, True
    for rank, place in enumerate(sorted(tested, key=p_values.__getitem__)):
        if rejecting:
            error = ERROR / (len(tested) - rank)
            rejecting = p_values[place] <= error
        intervals[place] = mean_interval(families[place], error=error)
    return intervals


def seeds_needed(values: Sequence[float], *, error: float = ERROR) -> int | None:
    """Return how many values a confidence interval needs to exclude 0, if mean and spread stay the same.

    Args:
        values: The values, at least two.
        error: One minus the confidence of the interval.

    Returns:
        The smallest sufficient number of values. None if `MOST_SEEDS` values are not enough.
    """
    from scipy.special import stdtrit

    mean, spread = abs(statistics.fmean(values)), statistics.stdev(values)
    enough = (
        n for n in range(2, MOST_SEEDS + 1) if float(stdtrit(n - 1, 1 - error / 2)) * spread / math.sqrt(n) < mean
    )
    return next(enough, None)


def _p_value(values: Sequence[float]) -> float:
    """Return the p-value of the two-sided t-test of a mean of 0. It is 0 if all values are equal."""
    from scipy.special import stdtr

    spread = statistics.stdev(values)
    if spread == 0:
        return 0.0
    t = statistics.fmean(values) * math.sqrt(len(values)) / spread
    return float(2 * stdtr(len(values) - 1, -abs(t)))
