"""The mutual-information ranking: does attention rank hidden states by their information about the output?

Instances are compared rank by rank: the most attended hidden state of every instance, then the second, and so on.
Source: Wen, Subbalakshmi & Yang 2022, §3.2, with a null correction and a rule for the number of clusters added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnaudit.arrays import Floats, Integers
from attnaudit.metrics.mutual_information import pairwise_information, shuffles_of

#: Weights up to this count as no attention when the number of ranks is chosen.
FLOOR_WEIGHT = 1e-5
#: Clusters of the outputs of a model with two classes.
OUTPUT_CLUSTERS = 5
#: Numbers of clusters that Wen, Subbalakshmi & Yang 2022 try.
WEN_CLUSTERS = range(50, 201)

#: Numbers of any precision.
RealArray = NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
class InformationRanking:
    """The ranking of k groups of hidden states by information and by attention.

    Attributes:
        information: (k,) plug-in mutual information, in nats.
        null: (k,) mean information over label shuffles.
        corrected: (k,) m_r, the difference information - null at rank r.
        attention: (k,) mean attention by rank, which also weights the agreement.
        weighted_tau: Shieh's weighted τ of `corrected` with `attention`.
        tau_b: τ-b of `corrected` with `attention`.
        clusters: N, the number of clusters; None if the preset's rule found none; the information and both τ are then
            NaN, and `labels` is empty.
        n: number of instances.
        labels: (k, n) clusters of the hidden states, for subsamples of the instances.
        outputs: (n,) clusters of the outputs.
    """

    information: Floats
    null: Floats
    corrected: Floats
    attention: Floats
    weighted_tau: float
    tau_b: float
    clusters: int | None
    n: int
    labels: Integers
    outputs: Integers


def choose_ranks(lengths: ArrayLike, weights: ArrayLike) -> tuple[int, str]:
    """Return k, the number of ranks to compare, and the rule that decided it.

    k is the 10th percentile of the lengths, or the largest k for which at least 80% of the k-th largest weights exceed
    1e-5, whichever is smaller, and at least 1. The caller must leave out instances shorter than k, and count them.

    Args:
        lengths: (n,) number of real tokens.
        weights: (n, K) attention of each instance from the largest to the smallest; entries beyond its length are
            ignored. K need not exceed the 10th percentile of the lengths.

    Returns:
        k, and a short text that names the rule that decided.

    Raises:
        ValueError: there is no instance, or the shapes do not fit.

    >>> choose_ranks([3, 3, 4], [[0.8, 0.2, 0.0], [0.9, 0.1, 0.0], [0.5, 0.3, 0.2]])
    (2, 'weights: at rank 3, only 33% of them exceed 1e-05')
    """
    counts, ranked = np.asarray(lengths), np.asarray(weights, dtype=np.float64)
    if counts.ndim != 1 or counts.size == 0:
        raise ValueError(f"lengths: expected shape (n,) with n >= 1 but got {counts.shape}")
    if ranked.ndim != 2 or len(ranked) != len(counts) or ranked.shape[1] == 0:
        raise ValueError(f"weights: expected shape ({len(counts)}, K) with K >= 1 but got {ranked.shape}")
    by_length = max(1, min(int(np.percentile(counts, 10)), ranked.shape[1]))
    shares = [float((ranked[counts > r, r] > FLOOR_WEIGHT).mean()) for r in range(by_length)]
    by_weight = max((r + 1 for r in range(by_length) if shares[r] >= 0.8), default=1)
    if by_weight < by_length:
        return (
            by_weight,
            f"weights: at rank {by_weight + 1}, only {shares[by_weight]:.0%} of them exceed {FLOOR_WEIGHT:g}",
        )
    return by_length, "length: the 10th percentile of the number of real tokens"


def default_clusters(instances: int) -> int:
    """Return the default number of clusters of every rank: ⌊instances / 20⌋, at least 5 and at most 200.

    >>> [default_clusters(n) for n in (40, 300, 10_000)]
    [5, 15, 200]
    """
    return min(200, max(5, instances // 20))


def wen_clusters(states: RealArray, *, seed: int, candidates: Sequence[int] = WEN_CLUSTERS) -> int | None:
    """Return the number of clusters by the rule of Wen, Subbalakshmi & Yang 2022.

    It is the smallest N of 50 to 200 for which every cluster of every rank has at least two members. Often there is
    none, since clusters with one member are common at N = 50.

    Args:
        states: (n, k, m) hidden states by rank.
        seed: seed of k-means.
        candidates: the numbers to try, in order.

    Returns:
        N, or None if there is none.

    Raises:
        ValueError: the states have another shape.

    >>> states = np.repeat(np.arange(4.0), 3).reshape(12, 1, 1)
    >>> wen_clusters(states, seed=0, candidates=range(3, 5))
    3
    """
    _require_states(states)
    for clusters in candidates:
        if 2 * clusters > len(states):
            return None
        if all(
            np.bincount(_k_means(states[:, rank], clusters, seed)[0], minlength=clusters).min() >= 2
            for rank in range(states.shape[1])
        ):
            return clusters
    return None


def quantise(points: RealArray, clusters: int, *, seed: int) -> Integers:
    """Cluster points by k-means, and merge every cluster of one into the nearest larger cluster, if any.

    Args:
        points: (n, m) points, n >= 1.
        clusters: number of clusters, at least 1; reduced to the number of distinct points.
        seed: seed of k-means.

    Returns:
        (n,) labels from 0 without gaps.

    Raises:
        ValueError: the shape or the number of clusters is invalid.

    >>> labels = quantise(np.array([[0.0], [0.1], [5.0], [5.1], [99.0]]), 3, seed=0)
    >>> bool(labels[0] == labels[1] and labels[2] == labels[3] == labels[4] and labels[0] != labels[2])
    True
    """
    if points.ndim != 2 or len(points) == 0:
        raise ValueError(f"points: expected shape (n, m) with n >= 1 but got {points.shape}")
    if clusters < 1:
        raise ValueError(f"clusters: expected at least 1 but got {clusters}")
    labels, centres = _k_means(points, clusters, seed)
    sizes = np.bincount(labels, minlength=len(centres))
    large = np.flatnonzero(sizes >= 2)
    if len(large):
        for small in np.flatnonzero((sizes > 0) & (sizes < 2)):
            nearest = large[((centres[large] - centres[small]) ** 2).sum(1).argmin()]
            labels[labels == small] = nearest
    codes: Integers = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return codes


def quantise_outputs(logits: RealArray, *, seed: int) -> Integers:
    """Cluster the outputs: for two classes into 5 clusters of the logit, otherwise by the predicted class.

    Args:
        logits: (n, C); C = 1 for a sigmoid output. For C = 2, the difference of the logits is clustered.
        seed: seed of k-means.

    Returns:
        (n,) labels.

    Raises:
        ValueError: the logits have another shape.

    >>> quantise_outputs(np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 2.0]]), seed=0).tolist()
    [2, 0]
    """
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits: expected shape (n, C) but got {logits.shape}")
    if logits.shape[1] > 2:
        predicted: Integers = logits.argmax(1).astype(np.int64)
        return predicted
    logit = logits[:, -1:] - logits[:, :1] if logits.shape[1] == 2 else logits
    return _k_means(logit, OUTPUT_CLUSTERS, seed)[0]


def information_ranking(
    states: RealArray,
    weights: RealArray,
    logits: RealArray,
    *,
    seed: int,
    clusters: int | None = None,
    preset: str | None = None,
    shuffles: int = 100,
) -> InformationRanking:
    """Compare the attention of each rank with the information that its hidden states hold about the output.

    The information is m_r = MI(cluster of the rank-r state; cluster of the output) minus its mean over label shuffles,
    in nats. The statistic is Shieh's weighted τ of m with the mean attention by rank, weighted by that attention. Since
    the first rank often has nearly all the weight, τ-b is reported as well. k-means depends on the order of the rows.

    Args:
        states: (n, k, m) hidden states by rank of attention.
        weights: (n, k) attention, from the largest to the smallest.
        logits: (n, C) logits.
        seed: seed of k-means and of the shuffles.
        clusters: N, the number of clusters; by default `default_clusters(n)`, or `wen_clusters` with preset="wen".
        preset: None or "wen".
        shuffles: number of label shuffles.

    Returns:
        The ranking. Its agreement is NaN with fewer than two ranks, if all ranks have the same information, or if the
        preset finds no N.

    Raises:
        ValueError: shapes differ, or the preset is unknown.

    >>> rng = np.random.default_rng(0)
    >>> output = rng.integers(0, 3, 300)
    >>> informative, noise = output + 0.01 * rng.normal(size=300), rng.normal(size=300)
    >>> states, weights = np.stack([informative, noise], 1)[:, :, None], np.tile([0.8, 0.2], (300, 1))
    >>> information_ranking(states, weights, np.eye(3)[output], seed=0).weighted_tau
    1.0
    """
    _require_states(states)
    n, ranks = states.shape[:2]
    if weights.shape != (n, ranks):
        raise ValueError(f"weights: expected shape {(n, ranks)} but got {weights.shape}")
    if len(logits) != n:
        raise ValueError(f"logits: expected {n} rows but got {len(logits)}")
    if preset not in (None, "wen"):
        raise ValueError(f"preset: expected None or 'wen' but got {preset!r}")
    attention = np.asarray(weights, dtype=np.float64).mean(0)
    outputs = quantise_outputs(logits, seed=seed)
    number = clusters or (wen_clusters(states, seed=seed) if preset == "wen" else default_clusters(n))
    if number is None:
        information = null = np.full(ranks, np.nan)
        labels = np.zeros((ranks, 0), dtype=np.int64)
    else:
        labels = np.stack([quantise(states[:, rank], number, seed=seed) for rank in range(ranks)])
        information, null = information_by_rank(labels, outputs, shuffles_of(outputs, shuffles=shuffles, seed=seed))
    statistic, tau_b = ranking_agreement(information - null, attention)
    return InformationRanking(
        information=information,
        null=null,
        corrected=information - null,
        attention=attention,
        weighted_tau=statistic,
        tau_b=tau_b,
        clusters=number,
        n=n,
        labels=labels,
        outputs=outputs,
    )


def information_by_rank(labels: Integers, outputs: Integers, shuffled: Integers) -> tuple[Floats, Floats]:
    """Return the mutual information of each rank with the outputs, in nats, and its mean over shuffles.

    Args:
        labels: (k, n) clusters of the hidden states.
        outputs: (n,) clusters of the outputs.
        shuffled: (S, n) shuffled outputs.

    Returns:
        (k,) information, and (k,) its mean over the shuffles.

    >>> labels = outputs = np.array([0, 0, 1, 1])
    >>> information, null = information_by_rank(labels[None], outputs, np.array([[0, 1, 0, 1]]))
    >>> information.round(4).tolist(), null.tolist()
    ([0.6931], [0.0])
    """
    information = pairwise_information(labels, np.concatenate([outputs[None], shuffled]))
    return information[:, 0], information[:, 1:].mean(1)


def ranking_agreement(corrected: Floats, attention: Floats) -> tuple[float, float]:
    """Return Shieh's weighted τ, weighted by attention, and τ-b of the information (k,) with attention (k,).

    Each is NaN where it is undefined, such as for fewer than two ranks.

    >>> round(ranking_agreement(np.array([0.3, 0.1, 0.2]), np.array([0.5, 0.3, 0.2]))[0], 4)
    0.6129
    """
    import torch

    from attnaudit.metrics.kendall import kendall_tau_b, weighted_kendall_tau

    m, a = torch.from_numpy(corrected), torch.from_numpy(attention)
    return float(weighted_kendall_tau(m, a, a)), float(kendall_tau_b(m, a))


def _require_states(states: RealArray) -> None:
    """Raise ValueError unless the states have shape (n, k, m)."""
    if states.ndim != 3 or 0 in states.shape:
        raise ValueError(f"states: expected shape (n, k, m), with n, k and m at least 1, but got {states.shape}")


def _k_means(points: RealArray, clusters: int, seed: int) -> tuple[Integers, Floats]:
    """Return the labels (n,) and the centres of k-means, with at most as many clusters as distinct points."""
    from sklearn.cluster import KMeans

    values = np.ascontiguousarray(points, dtype=np.float64)
    distinct = len(np.unique(values, axis=0))
    with _one_thread():
        model = KMeans(min(clusters, distinct), n_init=1, random_state=seed).fit(values)
    return model.labels_.astype(np.int64), model.cluster_centers_


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit k-means to one thread.

    On busy CPUs, several threads take up to eight times as long for a few thousand points.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        yield
