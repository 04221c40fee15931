"""Plug-in mutual information of two label sequences, with and without shuffling one of the sequences."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attnaudit.arrays import Floats, Integers


def mutual_information(a: ArrayLike, b: ArrayLike) -> float:
    """Return the plug-in mutual information of two label sequences, in nats.

    MI = Σ_xy p(x, y) ln(p(x, y) / (p(x) p(y))), where p is the observed frequency. The estimate is biased upwards. For
    example, for two independent sequences of 334 instances, one with 50 different labels and one with 5, the estimate
    is 0.34 nats on average, although the true value is 0. The mean of `shuffled_information` estimates this bias.

    Args:
        a: (n,) labels of any sortable type.
        b: (n,) labels of any sortable type.

    Returns:
        A float of at least 0; NaN for n = 0.

    Raises:
        ValueError: The lengths differ, or a sequence has more than one dimension.

    Examples:
        >>> round(mutual_information([0, 0, 1, 1], ["x", "x", "y", "y"]), 4)
        0.6931
    """
    first, second = _codes(a, b)
    return float(pairwise_information(first[None], second[None])[0, 0]) if first.size else float("nan")


def shuffled_information(a: ArrayLike, b: ArrayLike, *, shuffles: int, seed: int) -> Floats:
    """Return the mutual information, in nats, of `a` with random permutations of `b`.

    The values are a sample of the null distribution, in which the two sequences are independent.

    Args:
        a: (n,) labels of any sortable type.
        b: (n,) labels of any sortable type.
        shuffles: Number of permutations, at least 1.
        seed: Seed of the permutations, which do not depend on `a`.

    Returns:
        (shuffles,) values; NaN for n = 0.

    Raises:
        ValueError: The lengths differ, a sequence has more than one dimension, or `shuffles` is less than 1.

    Examples:
        >>> shuffled_information([0, 0, 1, 1], [0, 0, 1, 1], shuffles=3, seed=0).shape
        (3,)
    """
    first, second = _codes(a, b)
    shuffled = shuffles_of(second, shuffles=shuffles, seed=seed)
    return pairwise_information(first[None], shuffled)[0] if first.size else np.full(shuffles, np.nan)


def shuffles_of(labels: Integers, *, shuffles: int, seed: int) -> Integers:
    """Return random permutations (shuffles, n) of labels (n,).

    Raises:
        ValueError: `shuffles` is less than 1.
    """
    if shuffles < 1:
        raise ValueError(f"shuffles: expected at least 1 but got {shuffles}")
    generator = np.random.default_rng(seed)
    return np.stack([generator.permutation(labels) for _ in range(shuffles)])


def pairwise_information(first: Integers, second: Integers) -> Floats:
    """Return the plug-in mutual information, in nats, of every row of `first` with every row of `second`.

    Args:
        first: (k, n) codes, integers from 0; n is at least 1.
        second: (S, n) codes, integers from 0. The joint counts of all S rows are computed together.

    Returns:
        (k, S) values.

    Examples:
        >>> pairwise_information(np.array([[0, 0, 1, 1]]), np.array([[0, 0, 1, 1], [0, 1, 0, 1]])).round(4).tolist()
        [[0.6931, 0.0]]
    """
    n, count = second.shape[1], len(second)
    width = int(second.max()) + 1
    integers = np.arange(n + 1, dtype=np.float64)
    count_log_count = integers * np.log(np.maximum(integers, 1.0))

    def sums(codes: Integers, cells: int) -> Floats:
        """Return Σ count · ln count (S,) over the cells of each row, where count is the frequency of a code.

        Args:
            codes: (S, n) codes from 0 to cells - 1.
            cells: Number of different codes.
        """
        flat = (codes + cells * np.arange(len(codes))[:, None]).ravel()
        table = np.bincount(flat, minlength=cells * len(codes))
        total: Floats = count_log_count[table].reshape(len(codes), cells).sum(1)
        return total

    marginal = sums(second, width)
    information = np.empty((len(first), count))
    for r, row in enumerate(first):
        height = int(row.max()) + 1
        joint = sums(row * width + second, height * width)
        information[r] = np.maximum(0.0, np.log(n) + (joint - marginal - sums(row[None], height)) / n)
    return information


def _codes(a: ArrayLike, b: ArrayLike) -> tuple[Integers, Integers]:
    """Check the shapes, and replace the labels of each sequence by the integers 0, 1, 2 and so on."""
    first, second = np.asarray(a), np.asarray(b)
    if first.ndim != 1:
        raise ValueError(f"a: expected shape (n,) but got {first.shape}")
    if second.shape != first.shape:
        raise ValueError(f"b: expected the shape of a, {first.shape}, but got {second.shape}")
    return np.unique(first, return_inverse=True)[1], np.unique(second, return_inverse=True)[1]
