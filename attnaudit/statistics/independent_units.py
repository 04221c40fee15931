"""Divide rows into small units in random order. A confidence sequence bets once per unit.

A sequence needs independent pairs (a, b) such that E a / E b is exactly the statistic. This excludes class weights and
variances that are estimated from the whole sample. A unit therefore contains all rows that one pair needs:

* If every class has the same weight, a unit has equally many rows of each class, and a and b are means over the
  classes. The shares of the classes need not be known.
* If the statistic contains a variance, a unit has two rows of each class, because twice the variance is the expected
  squared distance of two independent rows.
* If the statistic contains a mean distance from the mean, a unit has several rows of each class. Every row is compared
  with the mean of the other rows, and with a fixed centre. This encloses the mean distance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from attnaudit.arrays import Floats, Integers


def keyed_order(names: Sequence[str], seed: int) -> list[int]:
    """Return positions in a random order that depends only on the seed and the names.

    Args:
        names: The names of sources or instances, without duplicates.
        seed: The seed. Adding or removing names does not change the order of the others.
    """
    keys = [(hashlib.sha256(f"{seed}\x1f{name}".encode()).digest(), name) for name in names]
    return sorted(range(len(names)), key=keys.__getitem__)


def balanced_units(classes: Integers, order: Sequence[int], rows_per_class: int) -> Integers:
    """Divide independent rows into units with equally many rows of each class.

    Each row joins the queue of its class. As soon as every queue is long enough, the first rows of all queues form a
    unit.

    Args:
        classes: (n_all,) the class of each row. It must be known before any measurement, as a label is.
        order: The rows to divide, in random order. No two of them may have the same source.
        rows_per_class: The number of rows of each class in a unit.

    Returns:
        (U, C, rows_per_class) positions of the rows of U units, in the order in which the units are completed. C is the
        number of classes that occur among the rows. Rows left in an incomplete unit are dropped.
    """
    rows = np.asarray(order, dtype=np.int64)
    members = [rows[classes[rows] == one] for one in np.unique(classes[rows])]
    if not members:
        return np.zeros((0, 1, rows_per_class), dtype=np.int64)
    count = min(len(queue) for queue in members) // rows_per_class
    used = [queue[: count * rows_per_class].reshape(count, rows_per_class) for queue in members]
    return np.stack(used, axis=1)


def means_of_units(values: Floats, units: Integers) -> Floats:
    """Return (U,) means, one per unit, from (n_all,) values and (U, C, k) units. Every class has the same weight."""
    means: Floats = values[units].mean((1, 2))
    return means


def squared_distances_of_units(outputs: Floats, units: Integers) -> Floats:
    """Return the mean squared distance of two rows of each unit; every pair of classes has the same weight.

    The expected value of this distance is 2 V. Here, V is the variance of the output of a random row, drawn by first
    drawing a class with equal probabilities. Rows are not compared with themselves.

    Args:
        outputs: (n_all, D) outputs.
        units: (U, C, k) rows from `balanced_units`, with k of at least 2.

    Returns:
        (U,) mean squared Euclidean distances.

    Raises:
        ValueError: The units have only one row of each class.
    """
    number, classes, rows = units.shape
    if rows < 2:
        raise ValueError("Expected units with at least two rows of each class, because rows of one class are compared.")
    values = outputs[units.reshape(number, classes * rows)]
    distances = ((values[:, :, None] - values[:, None]) ** 2).sum(-1)
    of_class = np.repeat(np.arange(classes), rows)
    weights = np.where(of_class[:, None] == of_class, 1 / (rows * (rows - 1)), 1 / rows**2) / classes**2
    np.fill_diagonal(weights, 0.0)
    means: Floats = (distances * weights).sum((1, 2))
    return means


def enclosed_distances_of_units(vectors: Floats, units: Integers) -> tuple[Floats, Floats]:
    """Return a lower and an upper number per unit whose expected values enclose E ‖z - E z‖.

    Both expectations give every class the same weight. Let m be the mean of the other rows of the unit. It has the
    expected value E z and does not depend on z. Therefore, E ‖z - m‖ is at least the mean distance (Jensen's
    inequality). For the lower number, z - m is projected on the direction of z, and a projection is never longer than
    the vector. It is close to the distance if E z is close to 0.

    Args:
        vectors: (n_all, D) vectors z, measured from a centre that does not depend on the rows of these units.
        units: (U, C, k) rows with k ≥ 2 (see `balanced_units`).

    Returns:
        (U,) lower and (U,) upper numbers. Neither is negative. If no vector is longer than 1, neither is larger than
        `largest_enclosed_distance(units)`.
    """
    z = vectors[units]
    _, classes, rows = units.shape
    of_class = z - z.mean(2, keepdims=True)
    deviations = z - z.mean((1, 2), keepdims=True) + of_class / (classes * (rows - 1))
    lengths = np.linalg.norm(z, axis=-1, keepdims=True)
    directions = np.divide(z, lengths, out=np.zeros_like(z), where=lengths > 0)
    lower: Floats = np.maximum(0.0, (deviations * directions).sum(-1).mean((1, 2)))  # rounding may leave -2e-16
    upper: Floats = np.linalg.norm(deviations, axis=-1).mean((1, 2))
    return lower, upper


def largest_enclosed_distance(units: Integers) -> float:
    """Return the largest possible result of `enclosed_distances_of_units` for vectors that are not longer than 1."""
    _, classes, rows = units.shape
    return 1 + 1 / (int(classes) * (int(rows) - 1))
