"""Does attention rank hidden states by what they tell of the output? The mutual-information ranking.

Source: Wen, Subbalakshmi & Yang 2022, §3.2, with a null correction and a rule for the number of clusters. Instances are
compared rank by rank: the hidden state with the largest attention of every instance, then the second, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnaudit.metrics.mutual_information import pairwise_information, shuffles_of

FLOOR_WEIGHT = 1e-5
OUTPUT_CLUSTERS = 5
WEN_CLUSTERS = range(50, 201)

Floats = NDArray[np.floating]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class InformationRanking:
    """The ranking of k hidden-state groups by information and by attention.

    information, null, corrected: (k,) plug-in MI in nats, the mean of its label-shuffle null, and their difference m_r.
    attention: (k,) mean attention by rank, the weights. weighted_tau, tau_b: agreement of `corrected` with `attention`.
    clusters: N, or None where the preset's rule failed and everything else is undefined. n: instances.
    labels: (k, n) and outputs: (n,) the clusters of the states and of the outputs, for subsamples of the instances.
    """

    information: NDArray[np.float64]
    null: NDArray[np.float64]
    corrected: NDArray[np.float64]
    attention: NDArray[np.float64]
    weighted_tau: float
    tau_b: float
    clusters: int | None
    n: int
    labels: Labels
    outputs: Labels


def choose_ranks(lengths: ArrayLike, weights: ArrayLike) -> tuple[int, str]:
    """The number of ranks k, and which of its two rules decided, in words.

    k = min(10th percentile of length, the largest k for which at least 80% of the k-th largest weights exceed 1e-5),
    and at least 1. Instances shorter than k are to be dropped and counted by the caller.

    Shapes: lengths (n,) real tokens; weights (n, K) each row's attention from the largest to the smallest, anything
    beyond its length is ignored. K need not exceed the 10th percentile of length.
    Raises ValueError for no instance or shapes that do not fit.

    >>> choose_ranks([3, 3, 4], [[0.8, 0.2, 0.0], [0.9, 0.1, 0.0], [0.5, 0.3, 0.2]])
    (2, 'weights: at rank 3 only 33% exceed 1e-05')
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
        return by_weight, f"weights: at rank {by_weight + 1} only {shares[by_weight]:.0%} exceed {FLOOR_WEIGHT:g}"
    return by_length, "length: the 10th percentile of real tokens"


def default_clusters(instances: int) -> int:
    """N = min(200, max(5, floor(instances / 20))), one for all ranks.

    >>> [default_clusters(n) for n in (40, 300, 10_000)]
    [5, 15, 200]
    """
    return min(200, max(5, instances // 20))


def wen_clusters(states: Floats, *, seed: int, candidates: Sequence[int] = WEN_CLUSTERS) -> int | None:
    """Preset `wen`: the least N of 50..200 at which every cluster of every rank has two members; None if there is none.

    Shapes: states (n, k, m). It is often None: a cluster of one is the rule rather than the exception at N = 50.
    Raises ValueError for another shape.

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


def quantise(points: Floats, clusters: int, *, seed: int) -> Labels:
    """k-means labels of points (n, m); clusters with fewer than two members are merged into the nearest other centroid.

    `clusters` is cut to the number of distinct points. Returns (n,) labels from 0 without gaps.
    Raises ValueError for another shape, no point or fewer than one cluster.

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
    kept = np.flatnonzero(sizes >= 2)
    if len(kept):
        for small in np.flatnonzero((sizes > 0) & (sizes < 2)):
            nearest = kept[((centres[kept] - centres[small]) ** 2).sum(1).argmin()]
            labels[labels == small] = nearest
    codes: Labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return codes


def quantise_outputs(logits: Floats, *, seed: int) -> Labels:
    """Labels of the outputs: k-means of the logit into 5 for two classes, the predicted class otherwise.

    Shapes: logits (n, C), C = 1 (one sigmoid) or the number of classes; two classes use the difference of their logits.
    Returns (n,). Raises ValueError for another shape.

    >>> quantise_outputs(np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 2.0]]), seed=0).tolist()
    [2, 0]
    """
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits: expected shape (n, C) but got {logits.shape}")
    if logits.shape[1] > 2:
        predicted: Labels = logits.argmax(1).astype(np.int64)
        return predicted
    logit = logits[:, -1:] - logits[:, :1] if logits.shape[1] == 2 else logits
    return _k_means(logit, OUTPUT_CLUSTERS, seed)[0]


def information_ranking(
    states: Floats,
    weights: Floats,
    logits: Floats,
    *,
    seed: int,
    clusters: int | None = None,
    preset: str | None = None,
    shuffles: int = 100,
) -> InformationRanking:
    """Agreement of attention with the information that hidden states of each attention rank hold about the output.

    m_r = MI(cluster of the rank-r state; cluster of the output) - mean over label shuffles of the same, in nats. The
    statistic is Shieh's weighted tau between m and the mean attention by rank, weighted by that attention; since the
    first rank often carries nearly all the weight, tau-b is given beside it. k-means depends on the order of the rows.

    Shapes: states (n, k, m) by rank of attention, weights (n, k) from the largest, logits (n, C). `clusters` is N;
    by default `default_clusters(n)`, or `wen_clusters` with preset="wen".
    Undefined (NaN) with fewer than two ranks, no two ranks of different information, or no N under the preset.
    Raises ValueError for shapes that differ, or another preset.

    >>> rng = np.random.default_rng(0)
    >>> output = rng.integers(0, 3, 300)
    >>> told, noise = output + 0.01 * rng.normal(size=300), rng.normal(size=300)
    >>> states, weights = np.stack([told, noise], 1)[:, :, None], np.tile([0.8, 0.2], (300, 1))
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


def information_by_rank(
    labels: Labels, outputs: Labels, shuffled: Labels
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(k,) plug-in MI (nats) of each row of labels (k, n) with outputs (n,), and its mean over shuffled (S, n).

    >>> labels = outputs = np.array([0, 0, 1, 1])
    >>> information, null = information_by_rank(labels[None], outputs, np.array([[0, 1, 0, 1]]))
    >>> information.round(4).tolist(), null.tolist()
    ([0.6931], [0.0])
    """
    found = pairwise_information(labels, np.concatenate([outputs[None], shuffled]))
    return found[:, 0], found[:, 1:].mean(1)


def ranking_agreement(corrected: NDArray[np.float64], attention: NDArray[np.float64]) -> tuple[float, float]:
    """Shieh's weighted tau, weighted by attention, and tau-b of information (k,) with attention (k,); NaN if undefined.

    >>> round(ranking_agreement(np.array([0.3, 0.1, 0.2]), np.array([0.5, 0.3, 0.2]))[0], 4)
    0.6129
    """
    import torch

    from attnaudit.metrics.kendall import kendall_tau_b, weighted_kendall_tau

    m, a = torch.from_numpy(corrected), torch.from_numpy(attention)
    return float(weighted_kendall_tau(m, a, a)), float(kendall_tau_b(m, a))


def _require_states(states: Floats) -> None:
    if states.ndim != 3 or 0 in states.shape:
        raise ValueError(f"states: expected shape (n, k, m), none of them 0, but got {states.shape}")


def _k_means(points: Floats, clusters: int, seed: int) -> tuple[Labels, NDArray[np.float64]]:
    from sklearn.cluster import KMeans

    values = np.ascontiguousarray(points, dtype=np.float64)
    distinct = len(np.unique(values, axis=0))
    with _one_thread():
        model = KMeans(min(clusters, distinct), n_init=1, random_state=seed).fit(values)
    return model.labels_.astype(np.int64), model.cluster_centers_


@contextmanager
def _one_thread() -> Iterator[None]:
    """k-means of a few thousand points on one thread: several, on busy cores, take up to eight times as long."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        yield
