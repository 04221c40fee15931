"""Confidence sequences for the statistics of checks: means, ratios of means, the total-effect index, kept differences.

A sequence needs bounds that do not depend on the values. A mean of bounded values has such bounds. The other three
statistics take a limit from the first units, on which nothing is bet (see `independent_units`):

* In a ratio of weighted means, the weight of a row is limited to the largest weight in the first units.
* In the total-effect index, the change of a row's output is limited to the expected squared distance of two rows,
  estimated from the first units. A row then contributes at most 1 to the index. This is the contribution that is
  expected if the row is exchanged for another row. The limit can only lower the index: if the limited index reaches a
  threshold, the index without the limit reaches it too.
* In the lost share of the differences between outputs, an output and what is lost of it are at most as long as the
  longest one in the first units. Longer vectors are shortened.

Statistics that are not ratios of means have no sequence: F1, medians, correlations over the data set, and information
ranking. Checks that train models have no sequence either. The same holds for checks that compare classes, if the
classes are known only after measuring.
"""

from __future__ import annotations

import math

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.statistics.confidence_sequence import ConfidenceSequence, EnclosedSequence, RatioBounds
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.independent_units import (
    enclosed_distances_of_units,
    largest_enclosed_distance,
    means_of_units,
    squared_distances_of_units,
)

#: Limits are taken from the first units that together have at least this many rows.
LIMIT_ROWS = 100
#: The largest squared Euclidean distance between two vectors of probabilities.
LARGEST_DISTANCE = 2.0
#: For the lost share, units have at least this many rows. Each row is compared with the mean of the others.
KEPT_ROWS = 8
#: The factors that are tried for each unit: numbers that are dense near 0, and multiples of the given factor.
FACTORS, MULTIPLES = np.linspace(0, 1, 25) ** 2, np.geomspace(0.5, 2, 25)


def unbet_units(units: Integers) -> int:
    """Return the smallest number of units of (U, C, k) rows that together have at least 100 rows."""
    _, classes, rows = units.shape
    return math.ceil(LIMIT_ROWS / (int(classes) * int(rows)))


def mean_sequence(
    values: Floats, groups: Groups, order: Integers, *, bounds: tuple[float, float], confidence: float
) -> ConfidenceSequence:
    """Return the confidence sequence of a mean over rows, with one bet per source.

    Args:
        values: (n_all,) values.
        groups: The rows that have a value, grouped by their G sources. The size of the largest source must not depend
            on the values.
        order: (G,) the random order of the sources.
        bounds: The lowest and the highest possible value, both finite.
        confidence: The confidence, between 0 and 1.
    """
    sums = groups.sums(values[:, None])[order, 0]
    sizes = groups.sizes[order].astype(np.float64)
    largest = float(groups.sizes.max(initial=1))
    limits = RatioBounds(low=bounds[0], high=bounds[1], most_below=largest)
    return ConfidenceSequence.of(sums, sizes, limits, confidence=confidence)


def limited_ratio_sequence(
    above: Floats,
    below: Floats,
    weights: Floats,
    units: Integers,
    *,
    confidence: float,
    high: float = math.inf,
    largest: float | None = None,
) -> ConfidenceSequence:
    """Return the confidence sequence of a ratio of weighted means, in which every class counts the same.

    Numerator and denominator of a row are proportional to its weight. If the weights have no known limit, the limit is
    taken from the first units, which together have at least 100 rows. Nothing is bet on these units.

    Args:
        above: (n_all,) numerators, from 0 to the weight.
        below: (n_all,) denominators, from 0 to the weight.
        weights: (n_all,) weights.
        units: (U, C, k) rows (see `balanced_units`).
        confidence: The confidence, between 0 and 1.
        high: The largest possible ratio of a row. It is 1 for a weighted share, because the denominator is the weight.
        largest: The largest possible weight, if it is known in advance; None to limit the weights as described above.

    Raises:
        ValueError: There are no units to take the limit from, or all rows of these units have weight 0.
    """
    unbet = 0
    if largest is None:
        unbet = unbet_units(units)
        largest = float(weights[units[:unbet]].max(initial=0.0))
    scale = np.divide(largest, weights, out=np.ones_like(weights), where=weights > largest)
    return ConfidenceSequence.of(
        means_of_units(above * scale, units),
        means_of_units(below * scale, units),
        RatioBounds(low=0.0, high=high, most_below=largest, most_above=largest),
        confidence=confidence,
        unbet=unbet,
    )


def total_effect_sequence(
    changes: Floats, outputs: Floats, units: Integers, *, confidence: float
) -> ConfidenceSequence:
    """Return the confidence sequence of the total-effect index of probabilities. Every class counts the same.

    The index is E ‖y - y′‖² / (2 V), where 2 V is the expected squared distance of two rows. The changes are limited as
    the documentation of this module describes. Nothing is bet on the first units, which together have at least 100
    rows. If the probabilities are standardised, the mean and the scale of the logits must be fixed in advance or
    estimated from these units.

    Args:
        changes: (n_all,) expected squared distance between a row's output before and after the weights are rearranged.
        outputs: (n_all, D) probabilities.
        units: (U, C, k) rows with k ≥ 2 (see `balanced_units`).
        confidence: The confidence, between 0 and 1.

    Raises:
        ValueError: There are no units to take the limit from, or the outputs in these units do not vary.
    """
    unbet = unbet_units(units)
    distances = squared_distances_of_units(outputs, units)
    largest = float(distances[:unbet].mean()) if len(distances) else 0.0
    return ConfidenceSequence.of(
        means_of_units(np.minimum(changes, largest), units),
        distances,
        RatioBounds(low=0.0, high=math.inf, most_below=LARGEST_DISTANCE, most_above=largest),
        confidence=confidence,
        unbet=unbet,
    )


def lost_share_sequence(
    outputs: Floats, kept: Floats, factor: float, units: Integers, *, confidence: float
) -> EnclosedSequence:
    """Return the confidence sequence of the lost share of the differences between outputs. Every class counts the same.

    The share is min_a E ‖u - a v‖ / E ‖u‖ with 0 ≤ a ≤ 1. Here, u and v are an output and a changed output, each minus
    its mean. The first units, which together have at least 100 rows, are not bet on. The centres and a factor must be
    fixed in advance or estimated from these units. They need not be exact:

    * Means are enclosed (see `enclosed_distances_of_units`).
    * With another factor than the best one, more is lost. The upper end of the sequence uses the given factor.
    * With a factor that is chosen for each unit, less is lost on average. The lower end uses such factors. 50 are
      tried, so the chosen one is close to the best one.

    The outputs are limited. If u or u - a v of a row is longer than the longest one in the first units, u and v are
    both shortened in proportion. The sequence is then for the share of the shortened vectors.

    Args:
        outputs: (n_all, C) outputs minus a fixed centre.
        kept: (n_all, C) changed outputs minus a fixed centre.
        factor: The factor a.
        units: (U, C, k) rows with k ≥ 2 (see `balanced_units`).
        confidence: The confidence, between 0 and 1.

    Raises:
        ValueError: There are no units to take the limit from, or the outputs in these units do not vary.
    """
    unbet = unbet_units(units)
    longest = np.maximum(np.linalg.norm(outputs, axis=1), np.linalg.norm(outputs - factor * kept, axis=1))
    limit = float(longest[units[:unbet]].max(initial=0.0))
    scale = np.divide(limit, longest, out=np.ones_like(longest), where=longest > limit)[:, None]
    outputs, kept = outputs * scale, kept * scale
    size, largest_size = enclosed_distances_of_units(outputs, units)
    lost, most_lost = enclosed_distances_of_units(outputs - factor * kept, units)
    for other in np.unique(np.concatenate([FACTORS, np.minimum(factor * MULTIPLES, 1.0)])):
        lost = np.minimum(lost, enclosed_distances_of_units(outputs - other * kept, units)[0])
    most = limit * largest_enclosed_distance(units)
    bounds = RatioBounds(low=0.0, high=math.inf, most_below=most, most_above=most)
    lower, upper = (
        ConfidenceSequence.of(above, below, bounds, confidence=confidence, unbet=unbet)
        for above, below in ((lost, largest_size), (most_lost, size))
    )
    return EnclosedSequence(lower, upper, confidence, highest=1.0)
