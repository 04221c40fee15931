"""Plug-in mutual information of two label sequences, and its value under random shuffles."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attnaudit.arrays import Floats, Integers


def mutual_information(a: ArrayLike, b: ArrayLike) -> float:
    """Return the plug-in mutual information of two label sequences, in nats.

    MI = Σ_xy p(x, y) ln(p(x, y) / (p(x) p(y))) with the observed frequencies. The estimate is biased upwards: for two
    independent sequences of 334 instances, one with 50 labels and the other with 5, it is 0.34 nats.
    `shuffled_information` measures this bias.

    Args:
        a: (n,) labels of any sortable type.
        b: (n,) labels of any sortable type.

    Returns:
        A float of at least 0; NaN for n = 0.

    Raises:
        ValueError: the lengths differ, or a sequence has more than one dimension.

    >>> round(mutual_information([0, 0, 1, 1], ["x", "x", "y", "y"]), 4)
    0.6931
    """
    first, second = _codes(a, b)
    return float(pairwise_information(first[None], second[None])[0, 0]) if first.size else float("nan")


def shuffled_information(a: ArrayLike, b: ArrayLike, *, shuffles: int, seed: int) -> Floats:
    """Return the mutual information in nats after random permutations of `b`: the label-shuffle null distribution.

    Args:
        a: (n,) labels.
        b: (n,) labels.
        shuffles: number of permutations, at least 1.
        seed: the same seed gives the same permutations for any `a` of the same length.

    Returns:
        (shuffles,) values; NaN for n = 0.

    Raises:
        ValueError: as in `mutual_information`, or for fewer than one shuffle.

    >>> shuffled_information([0, 0, 1, 1], [0, 0, 1, 1], shuffles=3, seed=0).shape
    (3,)
    """
    first, second = _codes(a, b)
    shuffled = shuffles_of(second, shuffles=shuffles, seed=seed)
    return pairwise_information(first[None], shuffled)[0] if first.size else np.full(shuffles, np.nan)


def shuffles_of(labels: Integers, *, shuffles: int, seed: int) -> Integers:
    """Return random permutations (shuffles, n) of labels (n,). Raises ValueError for fewer than one shuffle."""
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

    >>> pairwise_information(np.array([[0, 0, 1, 1]]), np.array([[0, 0, 1, 1], [0, 1, 0, 1]])).round(4).tolist()
    [[0.6931, 0.0]]
    """
    n, count = second.shape[1], len(second)
    width = int(second.max()) + 1
    integers = np.arange(n + 1, dtype=np.float64)
    count_log_count = integers * np.log(np.maximum(integers, 1.0))

    def sums(codes: Integers, cells: int) -> Floats:
        """Return Σ count · ln count over the cells of each row (S,), given codes (S, n) below `cells`."""
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
    """Check the shapes and replace the labels by codes from 0."""
    first, second = np.asarray(a), np.asarray(b)
    if first.ndim != 1:
        raise ValueError(f"a: expected shape (n,) but got {first.shape}")
    if second.shape != first.shape:
        raise ValueError(f"b: expected the shape of a, {first.shape}, but got {second.shape}")
    return np.unique(first, return_inverse=True)[1], np.unique(second, return_inverse=True)[1]
