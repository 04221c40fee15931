"""Units of a few rows each, in random order, from which a confidence sequence bets once per unit.

A sequence needs independent pairs (a, b) such that E a / E b is exactly the statistic. Class weights and variances that
were estimated from the sample would not do. A unit therefore contains the rows that one pair needs:

* If every class has the same weight, a unit has equally many rows of each class, and a and b are means over the
  classes. No share of a class needs to be known.
* Twice the variance is the expected squared distance of two independent rows, so a unit has two rows of each class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from attnaudit.arrays import Floats, Integers


def keyed_order(names: Sequence[str], seed: int) -> list[int]:
    """Return positions in a random order that depends only on the seed and the names.

    Args:
        names: The names of sources or instances, all different.
        seed: The seed. The order of a part of the names is the same as in the whole.
    """
    keys = [(hashlib.sha256(f"{seed}\x1f{name}".encode()).digest(), name) for name in names]
    return sorted(range(len(names)), key=keys.__getitem__)


def balanced_units(classes: Integers, order: Sequence[int], rows_per_class: int) -> Integers:
    """Divide independent rows into units with equally many rows of each class.

    Every class is a queue of its rows. As soon as each has enough of them, the first ones form a unit.

    Args:
        classes: (n_all,) the class of each row. It must be known without measuring, as a label is.
        order: The rows to divide, in random order. Each must be a source of its own.
        rows_per_class: The number of rows of each class in a unit.

    Returns:
        (U, C, rows_per_class) rows of U units, in the order in which they are completed. Every class among the rows is
        one of the C classes. Rows that fill no unit are left out.
    """
    rows = np.asarray(order, dtype=np.int64)
    members = [rows[classes[rows] == one] for one in np.unique(classes[rows])]
    if not members:
        return np.zeros((0, 1, rows_per_class), dtype=np.int64)
    count = min(len(queue) for queue in members) // rows_per_class
    used = [queue[: count * rows_per_class].reshape(count, rows_per_class) for queue in members]
    return np.stack(used, axis=1)


def means_of_units(values: Floats, units: Integers) -> Floats:
    """Return the (U,) means of (n_all,) values in each of (U, C, k) units. Every class has the same weight."""
    means: Floats = values[units].mean((1, 2))
    return means


def squared_distances_of_units(outputs: Floats, units: Integers) -> Floats:
    """Return the mean squared distance of two rows of each unit; every pair of classes has the same weight.

    Its expected value is 2 V, where V is the variance of the output of a row of a class that is drawn at random. Rows
    are not compared with themselves.

    Args:
        outputs: (n_all, D) outputs.
        units: (U, C, k) rows, from `balanced_units`, with at least two rows of a class.

    Returns:
        (U,) mean squared Euclidean distances.

    Raises:
        ValueError: There is only one row of each class in a unit.
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
