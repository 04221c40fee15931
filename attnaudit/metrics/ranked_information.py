"""The mutual-information ranking: does attention rank hidden states by their information about the output?

Each instance's hidden states are ranked by their attention: rank 1 is the most attended state, rank 2 the second, and
so on. For each rank, the mutual information between the hidden states and the outputs is estimated over all instances.
Source: Wen, Subbalakshmi & Yang 2022, §3.2. This module adds a correction for bias, estimated by shuffling the outputs,
and a rule for the number of clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnaudit.arrays import Floats, Integers, RealArray
from attnaudit.disk_arrays.mapped_arrays import release_mapped
from attnaudit.metrics.clusters import k_means, quantise_outputs, quantise_ranks
from attnaudit.metrics.mutual_information import pairwise_information, shuffles_of

#: When the number of ranks is chosen, a weight up to this value counts as no attention.
FLOOR_WEIGHT = 1e-5
#: The numbers of clusters that Wen, Subbalakshmi & Yang 2022 try.
WEN_CLUSTERS = range(50, 201)


@dataclass(frozen=True, kw_only=True)
class InformationRanking:
    """The information and the attention of the hidden states at each of k ranks.

    Attributes:
        information: (k,) plug-in mutual information of the hidden states at each rank with the outputs, in nats.
        null: (k,) mean of this mutual information over random shuffles of the outputs, in nats.
        corrected: (k,) `information` - `null`.
        attention: (k,) mean attention of each rank.
        weighted_tau: Shieh's weighted τ of `corrected` with `attention`. The weights are `attention`.
        tau_b: τ-b of `corrected` with `attention`.
        clusters: N, the number of clusters; None if the preset "wen" found no N. Without N, `information`,
            `null`, `corrected` and both τ are NaN, and `labels` has shape (k, 0).
        n: Number of instances.
        labels: (k, n) cluster of each hidden state. With these labels, subsamples of the instances can be evaluated
            without clustering again.
        outputs: (n,) cluster of each output.
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
    """Return k, the number of ranks to compare, and the rule that determined it.

    k is at least 1, and otherwise the smaller of two numbers. The first is the 10th percentile of the lengths, rounded
    down. The second is the largest rank r at which the weights of at least 80% of the instances exceed 1e-5. Instances
    shorter than k have no hidden state at rank k, so the caller must leave them out.

    Args:
        lengths: (n,) number of real tokens.
        weights: (n, K) attention of each instance from the largest to the smallest. Entries beyond the length of an
            instance are ignored. k never exceeds K.

    Returns:
        k, and a short description of the rule that determined it.

    Raises:
        ValueError: There is no instance, or the shapes do not fit.

    Examples:
        >>> choose_ranks([3, 3, 4], [[0.8, 0.2, 0.0], [0.9, 0.1, 0.0], [0.5, 0.3, 0.2]])
        (2, 'weights: at rank 3, only 33% of the weights exceed 1e-05')
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
            f"weights: at rank {by_weight + 1}, only {shares[by_weight]:.0%} of the weights exceed {FLOOR_WEIGHT:g}",
        )
    return by_length, "length: the 10th percentile of the number of real tokens"


def default_clusters(instances: int) -> int:
    """Return the default number of clusters for each rank: ⌊instances / 20⌋, but at least 5 and at most 200.

    Examples:
        >>> [default_clusters(n) for n in (40, 300, 10_000)]
        [5, 15, 200]
    """
    return min(200, max(5, instances // 20))


def wen_clusters(states: RealArray, *, seed: int, candidates: Sequence[int] = WEN_CLUSTERS) -> int | None:
    """Return the number of clusters by the rule of Wen, Subbalakshmi & Yang 2022.

    It is the smallest number N from 50 to 200 with which every cluster of every rank has at least two members. Often
    there is no such N, because even with N = 50 some clusters have a single member.

    Args:
        states: (n, k, m) hidden states by rank.
        seed: Seed of k-means.
        candidates: The numbers N to try, in ascending order.

    Returns:
        N; None if no candidate satisfies the rule.

    Raises:
        ValueError: The states have another shape.

    Examples:
        >>> states = np.repeat(np.arange(4.0), 3).reshape(12, 1, 1)
        >>> wen_clusters(states, seed=0, candidates=range(3, 5))
        3
    """
    _require_states(states)
    for clusters in candidates:
        if 2 * clusters > len(states):
            return None
        if all(
            np.bincount(k_means(states[:, rank], clusters, seed), minlength=clusters).min() >= 2
            for rank in range(states.shape[1])
        ):
            return clusters
    return None


def information_ranking(
    states: RealArray,
    weights: RealArray,
    logits: RealArray,
    *,
    seed: int,
    clusters: int | None = None,
    preset: str | None = None,
    shuffles: int = 100,
    order: Integers | None = None,
) -> InformationRanking:
    """Compare the attention of each rank with the information that its hidden states hold about the output.

    The hidden states of each rank are clustered, and so are the outputs. The information of a rank is the mutual
    information of these two clusterings, in nats, minus its mean over random shuffles of the outputs. The agreement is
    Shieh's weighted τ between the information and the mean attention of the ranks, with the mean attention as the
    weights. The first rank often has nearly all the weight, so τ-b is reported as well. The result depends on the order
    of the instances, because k-means depends on it.

    Args:
        states: (n, k, m) hidden states, ordered by rank of attention.
        weights: (n, k) attention of each instance, from the largest to the smallest.
        logits: (n, C) logits.
        seed: Seed of k-means and of the shuffles.
        clusters: N, the number of clusters of each rank; None for `default_clusters(n)`, or for the result of
            `wen_clusters` if the preset is "wen".
        preset: None, or "wen" for the rule of Wen, Subbalakshmi & Yang 2022.
        shuffles: Number of random shuffles of the outputs.
        order: (n,) the rows of all arguments in another order, in which the instances are used; None for their own
            order. Only one rank of the states is copied at a time, so this needs less memory than sorted arguments.

    Returns:
        The ranking. Both τ are NaN if there are fewer than two ranks, if all ranks have the same information, or if the
        preset finds no N.

    Raises:
        ValueError: Shapes do not fit, the preset is unknown, or `shuffles` is less than 1.

    Examples:
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
    order = np.arange(n) if order is None else order
    attention = np.asarray(weights, dtype=np.float64)[order].mean(0)
    outputs = quantise_outputs(logits[order], seed=seed)
    number = clusters or (wen_clusters(states[order], seed=seed) if preset == "wen" else default_clusters(n))
    if number is None:
        information = null = np.full(ranks, np.nan)
        labels = np.zeros((ranks, 0), dtype=np.int64)
    else:
        labels = quantise_ranks(
            lambda rank: states_at(states, order, np.full(n, rank)), states.shape, number, seed=seed
        )
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


def states_at(states: RealArray, rows: Integers, ranks: Integers) -> RealArray:
    """Return the hidden states of some rows, each at one rank.

    If the states are in a temporary file, at most one rank of them is in memory at a time.

    Args:
        states: (n, k, m) hidden states by rank.
        rows: (r,) the rows.
        ranks: (r,) the rank of each row.

    Returns:
        (r, m) hidden states.

    Examples:
        >>> states_at(np.arange(6.0).reshape(2, 3, 1), np.array([1, 0]), np.array([2, 0])).tolist()
        [[5.0], [0.0]]
    """
    found = np.empty((len(rows), states.shape[2]), dtype=states.dtype)
    for rank in np.unique(ranks):
        chosen = ranks == rank
        found[chosen] = states[rows[chosen], rank]
        release_mapped()
    return found


def information_by_rank(labels: Integers, outputs: Integers, shuffled: Integers) -> tuple[Floats, Floats]:
    """Return the mutual information of each rank with the outputs, in nats, and its mean over shuffles.

    Args:
        labels: (k, n) clusters of the hidden states.
        outputs: (n,) clusters of the outputs.
        shuffled: (S, n) shuffled outputs.

    Returns:
        (k,) information, and (k,) its means over the shuffles.

    Examples:
        >>> labels = outputs = np.array([0, 0, 1, 1])
        >>> information, null = information_by_rank(labels[None], outputs, np.array([[0, 1, 0, 1]]))
        >>> information.round(4).tolist(), null.tolist()
        ([0.6931], [0.0])
    """
    information = pairwise_information(labels, np.concatenate([outputs[None], shuffled]))
    return information[:, 0], information[:, 1:].mean(1)


def ranking_agreement(corrected: Floats, attention: Floats) -> tuple[float, float]:
    """Return the agreement of information and attention: Shieh's weighted τ with attention as the weights, and τ-b.

    Args:
        corrected: (k,) information of each rank.
        attention: (k,) mean attention of each rank.

    Returns:
        The weighted τ and τ-b. Each is NaN if it is undefined, for example with fewer than two ranks.

    Examples:
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
