"""The interval of a weighted share of rows, such as texts that are weighted by their importance."""

from __future__ import annotations

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.records import Interval
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import few_sources_warning
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.shares import ShareSample, weighty_sources

#: The observed design effect is averaged with the value 1. In this average, the value 1 counts as much as this many
#: sources.
PRIOR_SOURCES = 2.0


def weighted_share_interval(
    counted: Floats, weights: Floats, rows: WeightedRows, *, confidence: float
) -> IntervalEstimate | None:
    """Estimate the interval of Σ counted / Σ weights by Wilson's method (Wilson 1927), with Student's t.

    The method needs the effective number of rows: how many independent rows of equal weight carry the same information.
    It is computed in two steps.

    First, the method assumes that either all rows of a source count or none of them, independently of the source's
    weight u. For one class, the effective number is then (Σ u)² / Σ u² (Kish 1965). It is divided by the class's share
    of all weight, which allows for the case that the rows of the rarer value all belong to this class. The method uses
    the smallest result over the classes.

    Second, the number is divided by the design effect D, the ratio of the observed variance to the variance that the
    number implies (Korn & Graubard 1998). If the share is near 0 or 1, only a few sources determine D. For example, D
    is near 0 if a single text with little weight has the rarer value. D is therefore replaced by a weighted average of
    D and 1. In this average, D has a weight equal to the number of sources that have the rarer value, and 1 has the
    weight of two sources.

    The interval is continuous in the weights: a text whose weight tends to 0 has no effect, whether it counts or not.
    If all texts count, the interval is Wilson's interval for the effective number of rows.

    Args:
        counted: (n_all,) the weights of the rows that count, and 0 for the others.
        weights: (n_all,) non-negative weights of the rows, without the weights by class.
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
    # D = variance · size / (share (1 - share)) is 0/0 if the share is 0 or 1. Its product with `rarer` is defined.
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
        # If D < 1 because the texts of the rarer value have little weight, this would not hold for another share.
        share=ShareSample(min(size, of_weights), freedom, weighty_sources(parts[:, 1])),
    )


def _effective_number(weights: Floats, rows: WeightedRows) -> float:
    """Return the smallest effective number of sources of a class, divided by the class's share of all weight.

    Args:
        weights: (n_all,) weights of the rows. Their sum over the selected rows must be positive.
        rows: The selected rows by source and class.
    """
    groups = rows.groups
    total = float(weights[groups.rows].sum())

    def of_sources(members: Integers) -> Floats:
        of_class = filled(len(weights), 0.0)
        of_class[members] = weights[members]
        return groups.sums(of_class[:, None])[:, 0]

    parts = map(of_sources, rows.members)
    return min(total * float(part.sum()) / float((part**2).sum()) for part in parts if part.any())
