"""The interval of a share of weighted rows, such as of texts that count by what is at stake in them."""

from __future__ import annotations

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.records import Interval
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import few_sources_warning
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.shares import ShareSample, weighty_sources

#: How many sources the design effect of independent rows counts for, next to the observed one.
PRIOR_SOURCES = 2.0


def weighted_share_interval(
    counted: Floats, weights: Floats, rows: WeightedRows, *, confidence: float
) -> IntervalEstimate | None:
    """Estimate the interval of Σ counted / Σ weights by Wilson's method (Wilson 1927), with Student's t.

    The method needs the number of independent rows of equal weight that would know as much. For a class whose sources
    are right or wrong as a whole, independently of their weight u, it is (Σ u)² / Σ u² (Kish 1965). If all wrong rows
    belong to a class with the share w of all weight, it is that number divided by w, and the smallest of these numbers
    is used. The observed errors of the sources give the design effect D, the ratio of the actual variance to the one
    that this number implies, and the number is divided by D (Korn & Graubard 1998). Near 0 and 1, D is the estimate of
    a few sources: if a single text with little weight is wrong, it is near 0. Therefore D is averaged with 1: it counts
    for as many sources as have the rarer value, and 1 counts for two.

    The interval has no jumps. A text whose weight tends to 0 has no effect, right or wrong, and if all texts are right,
    the interval is that of Wilson for as many rows.

    Args:
        counted: (n_all,) the weights of the rows that count, and 0 for the others.
        weights: (n_all,) non-negative weights of the rows, before classes are balanced.
        rows: The selected rows, grouped by source, and their weights by class.
        confidence: Nominal confidence of the estimate's `low` and `high`.

    Returns:
        The interval; None if all selected rows of a class have one source, or if no selected row has weight.
    """
    from scipy.special import stdtrit

    groups = rows.groups
    if rows.fewest_sources < 2 or not weights[groups.rows].any():
        return None
    parts = groups.sums(np.column_stack([rows.weights * counted, rows.weights * weights]))
    total = float(parts[:, 1].sum())
    share = min(1.0, float(parts[:, 0].sum()) / total)
    size = of_weights = _effective_number(rows.weights * weights, rows)
    variance = float(((parts[:, 0] - share * parts[:, 1]) ** 2).sum()) / total**2 * len(groups) / (len(groups) - 1)
    rarer = min(share, 1 - share) * size
    # D = variance · size / (share (1 - share)), which is 0/0 where the product with `rarer` is 0.
    rarer_times_effect = variance * size**2 / max(share, 1 - share)
    size *= (rarer + PRIOR_SOURCES) / (rarer_times_effect + PRIOR_SOURCES)
    freedom = max(1.0, rows.fewest_effective - 1)

    sample = ShareSample(size, freedom)

    def interval_at(level: float) -> Interval:
        low, high = sample.bounds(share, level)
        return Interval(low=low, high=high, confidence=level, method="Wilson interval over sources")

    z2 = float(stdtrit(freedom, (1 + confidence) / 2)) ** 2
    middle = (share + z2 / (2 * size)) / (1 + z2 / size)
    return IntervalEstimate(
        error=float(np.sqrt(middle * (1 - middle) / size)),
        confidence=confidence,
        interval_at=interval_at,
        coverage_warning=few_sources_warning(groups, min(rows.effective, freedom + 1)),
        # D < 1 because the observed wrong texts have little weight would not hold for another share.
        share=ShareSample(min(size, of_weights), freedom, weighty_sources(parts[:, 1])),
    )


def _effective_number(weights: Floats, rows: WeightedRows) -> float:
    """Return the smallest effective number of sources of a class, divided by the share of the weight of the class.

    Args:
        weights: (n_all,) weights of the rows, whose sum over the selected rows is positive.
        rows: The selected rows by source and class.
    """
    groups = rows.groups
    source = np.zeros(len(weights), dtype=np.int64)
    source[groups.rows] = np.repeat(np.arange(len(groups)), groups.sizes)
    total = float(weights[groups.rows].sum())
    parts = (np.bincount(source[members], weights[members]) for members in rows.members)
    return min(total * float(part.sum()) / float((part**2).sum()) for part in parts if part.any())
