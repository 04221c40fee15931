"""The confidence sequences of the statistics of checks: means, ratios of weighted means, and the total-effect index.

Each needs bounds that do not depend on the values. A mean of bounded values has them. A ratio weighted by numbers
without an upper bound, and the total-effect index, take a limit from the first units, on which nothing is bet:

* The weight of a row is at most the largest weight in the first units.
* A row's change of the output is at most the expected squared distance of two rows, estimated from the first units. A
  row then contributes at most 1 to the index, as if it were exchanged for another one. This can only lower the index:
  if the limited index reaches a threshold, so does the index.

Statistics that are not ratios of means have no sequence: F1, medians, correlations over the data set, information
ranking, and checks that train models or compare classes that are known only after measuring.
"""

from __future__ import annotations

import math

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.statistics.confidence_sequence import ConfidenceSequence, RatioBounds
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.independent_units import means_of_units, squared_distances_of_units

#: The number of first rows that limits are taken from.
LIMIT_ROWS = 100
#: The largest squared Euclidean distance between two vectors of probabilities.
LARGEST_DISTANCE = 2.0


def unbet_units(units: Integers) -> int:
    """Return how many first units of (U, C, k) rows have at least 100 rows together."""
    _, classes, rows = units.shape
    return math.ceil(LIMIT_ROWS / (int(classes) * int(rows)))


def mean_sequence(
    values: Floats, groups: Groups, order: Integers, *, bounds: tuple[float, float], confidence: float
) -> ConfidenceSequence:
    """Return the sequence of a mean over rows, with one bet per source.

    Args:
        values: (n_all,) values.
        groups: The G sources of the rows that have a value. The largest size of a source must not depend on the values.
        order: (G,) the random order of the sources.
        bounds: The lowest and the highest possible value, both finite.
        confidence: The confidence, between 0 and 1.
    """
    sums = groups.sums(values[:, None])[order, 0]
    sizes = groups.sizes[order].astype(np.float64)
    largest = float(groups.sizes.max(initial=1))
    limits = RatioBounds(low=bounds[0], high=bounds[1], most_below=largest)
    return ConfidenceSequence.of(sums, sizes, limits, confidence=confidence)


def weighted_share_sequence(
    chosen: Floats, weights: Floats, units: Integers, *, confidence: float
) -> ConfidenceSequence:
    """Return the sequence of Σ weight · chosen / Σ weight, in which every class counts the same.

    The weights are limited (see above). The first units with 100 rows together are not bet on.

    Args:
        chosen: (n_all,) numbers from 0 to 1.
        weights: (n_all,) weights, at least 0 and not all 0.
        units: (U, C, k) rows (see `balanced_units`).
        confidence: The confidence, between 0 and 1.

    Raises:
        ValueError: There are no units to take the limit from, or none of their rows has a weight.
    """
    unbet = unbet_units(units)
    largest = float(weights[units[:unbet]].max(initial=0.0))
    limited = np.minimum(weights, largest)
    return ConfidenceSequence.of(
        means_of_units(chosen * limited, units),
        means_of_units(limited, units),
        RatioBounds(low=0.0, high=1.0, most_below=largest),
        confidence=confidence,
        unbet=unbet,
    )


def total_effect_sequence(
    changes: Floats, outputs: Floats, units: Integers, *, confidence: float
) -> ConfidenceSequence:
    """Return the sequence of the total-effect index of probabilities, in which every class counts the same.

    The index is E ‖y - y′‖² / (2 V), and 2 V is the expected squared distance of two rows. The changes are limited (see
    above). The first units with 100 rows together are not bet on. If the probabilities are standardised, their mean and
    scale must be fixed or come from these units.

    Args:
        changes: (n_all,) expected squared distance of a row's output to that after the rearrangement.
        outputs: (n_all, D) probabilities.
        units: (U, C, k) rows with k ≥ 2 (see `balanced_units`).
        confidence: The confidence, between 0 and 1.

    Raises:
        ValueError: There are no units to take the limit from, or the outputs in them do not vary.
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
