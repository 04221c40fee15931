"""Cluster hidden states and outputs by k-means, so that their mutual information can be counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from attnaudit.arrays import Floats, Integers, RealArray
from attnaudit.processes import in_threads

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

#: Number of clusters of the outputs of a model with two classes.
OUTPUT_CLUSTERS = 5
#: The copies that the threads of `quantise_ranks` make have at most this many numbers together (256 MB), unless a
#: single copy has more.
COPIED_AT_ONCE = 2**25


def quantise(points: RealArray, clusters: int, *, seed: int) -> Integers:
    """Cluster points by k-means, and merge each cluster with a single point into the nearest larger cluster.

    If every cluster has a single point, no clusters are merged.

    Args:
        points: (n, m) points, n >= 1.
        clusters: Number of clusters for k-means, at least 1. It is reduced to the number of distinct points if there
            are fewer of them.
        seed: Seed of k-means.

    Returns:
        (n,) cluster labels 0, 1, 2 and so on, without gaps.

    Examples:
        >>> labels = quantise(np.array([[0.0], [0.1], [5.0], [5.1], [99.0]]), 3, seed=0)
        >>> bool(labels[0] == labels[1] and labels[2] == labels[3] == labels[4] and labels[0] != labels[2])
        True
    """
    labels, centres = _labels_and_centres(points, clusters, seed)
    sizes = np.bincount(labels, minlength=len(centres))
    large = np.flatnonzero(sizes >= 2)
    if len(large):
        for small in np.flatnonzero((sizes > 0) & (sizes < 2)):
            nearest = large[((centres[large] - centres[small]) ** 2).sum(1).argmin()]
            labels[labels == small] = nearest
    codes: Integers = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return codes


def quantise_ranks(
    points: Callable[[int], RealArray], shape: tuple[int, int, int], clusters: int, *, seed: int
) -> Integers:
    """Cluster the points of each rank with `quantise`. Several ranks are clustered at the same time, in threads.

    The number of threads is that of `attnaudit.processes.allow_threads`. The result does not depend on it.

    Args:
        points: Returns the points of a rank, with shape (n, m). Each thread keeps a copy of one rank in memory.
        shape: (n, k, m), where k is the number of ranks.
        clusters: Number of clusters for k-means.
        seed: Seed of k-means.

    Returns:
        (k, n) cluster labels.

    Examples:
        >>> quantise_ranks(lambda rank: np.array([[0.0], [0.1], [5.0], [5.1]]) * rank, (4, 2, 1), 2, seed=0).tolist()
        [[0, 0, 0, 0], [1, 1, 0, 0]]
    """
    n, ranks, width = shape

    def cluster(rank: int) -> Integers:
        return quantise(points(rank), clusters, seed=seed)

    # Each thread limits its own OpenMP loops in `_labels_and_centres`. The limit of the BLAS holds for the whole
    # process, so that it must last until all threads have ended.
    with _one_thread():
        return np.stack(in_threads(cluster, range(ranks), most=COPIED_AT_ONCE // (n * width)))


def quantise_outputs(logits: RealArray, *, seed: int) -> Integers:
    """Cluster the outputs of a model.

    With more than two classes, instances with the same predicted class form a cluster. With two classes, k-means
    divides the instances into 5 clusters. It uses the single logit if C = 1, and the difference of the two logits if C
    = 2.

    Args:
        logits: (n, C) logits. C = 1 for a model with a single sigmoid output.
        seed: Seed of k-means.

    Returns:
        (n,) cluster labels.

    Raises:
        ValueError: The logits have another shape.

    Examples:
        >>> quantise_outputs(np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 2.0]]), seed=0).tolist()
        [2, 0]
    """
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits: expected shape (n, C) but got {logits.shape}")
    if logits.shape[1] > 2:
        predicted: Integers = logits.argmax(1).astype(np.int64)
        return predicted
    logit = logits[:, -1:] - logits[:, :1] if logits.shape[1] == 2 else logits
    return k_means(logit, OUTPUT_CLUSTERS, seed)


def k_means(points: RealArray, clusters: int, seed: int) -> Integers:
    """Return the (n,) labels of points (n, m), clustered by k-means."""
    return _labels_and_centres(points, clusters, seed)[0]


def _labels_and_centres(points: RealArray, clusters: int, seed: int) -> tuple[Integers, Floats]:
    """Cluster points by k-means, with at most as many clusters as there are distinct points.

    Args:
        points: (n, m) points.
        clusters: Number of clusters.
        seed: Seed of k-means.

    Returns:
        (n,) labels, and (clusters, m) centres.
    """
    from sklearn.cluster import KMeans

    values = np.array(points, dtype=np.float64, order="C")  # k-means changes the copy by rounding, not the points
    with _one_thread():
        model = KMeans(_distinct(values, clusters), n_init=1, random_state=seed, copy_x=False).fit(values)
    return model.labels_.astype(np.int64), model.cluster_centers_


def _distinct(points: Floats, most: int) -> int:
    """Return the number of distinct points (n, m), or `most` if there are more.

    Unlike `np.unique`, this does not sort the points, and it stops early.
    """
    found: set[bytes] = set()
    for point in points:
        found.add((point + 0.0).tobytes())  # + 0.0, because -0.0 equals 0.0
        if len(found) == most:
            break
    return len(found)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit numerical libraries to one thread inside the context.

    On a busy CPU, k-means of a few thousand points takes up to eight times as long with several threads.
    """
    with _numerical_libraries().limit(limits=1):
        yield


@cache
def _numerical_libraries() -> ThreadpoolController:
    """Find the numerical libraries of this process. This takes several milliseconds, longer than a small k-means."""
    import sklearn.cluster  # noqa: F401  # loads the libraries that k-means uses
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
