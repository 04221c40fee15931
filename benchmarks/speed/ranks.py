"""Time Kendall's τ-b, Shieh's weighted τ and the mutual-information ranking against scipy and scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnaudit.metrics import kendall_tau_b, weighted_kendall_tau
from attnaudit.metrics.ranked_information import default_clusters, information_ranking
from benchmarks.speed.timing import Comparison

#: Length of the longest row -> (number of rows for τ-b, number of rows for the weighted τ, target for the speed ratio).
LENGTHS = {20: (1000, 1000, 10.0), 100: (1000, 300, 10.0), 200: (1000, 200, 5.0), 2000: (200, 20, 1.0)}
Floats = NDArray[np.float64]


def ragged(rows: int, longest: int, *, rectangular: bool = False) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return random rows for rank statistics.

    Args:
        rows: The number of rows.
        longest: The length of the longest row.
        rectangular: Whether all rows have this length.

    Returns:
        Three arrays of shape (rows, longest): weights like those of attention, scores that partly follow the weights,
        and a mask of real entries. A tenth of the scores are tied.
    """
    random = np.random.default_rng(longest)
    lengths = np.full(rows, longest) if rectangular else random.integers(2, longest + 1, rows)
    real = np.arange(longest) < lengths[:, None]
    logits = random.normal(size=real.shape)
    weights = np.where(real, np.exp(logits), 0.0)
    weights /= weights.sum(1, keepdims=True)
    scores = np.where(real, np.abs(logits + random.normal(size=real.shape)), 0.0)
    scores = np.where(real & (random.random(real.shape) < 0.1), scores.round(), scores)
    return weights, scores, real


def largest_difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference between two arrays. It is infinite if any element is NaN on only one side."""
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    return float(np.nanmax(np.abs(a - b), initial=0.0))


def kendall(shrink: int = 1) -> Iterator[Comparison]:
    """Yield the comparisons of τ-b. The number of rows is divided by `shrink`."""
    from scipy.stats import kendalltau

    for longest, (rows, _, target) in LENGTHS.items():
        rows = max(4, rows // shrink)
        weights, scores, real = ragged(rows, longest)
        x, y, mask = torch.from_numpy(weights), torch.from_numpy(scores), torch.from_numpy(real)

        def loop(weights: Floats = weights, scores: Floats = scores, real: Any = real) -> Floats:
            return np.array([kendalltau(w[r], s[r]).statistic for w, s, r in zip(weights, scores, real, strict=True)])

        yield Comparison(
            name=f"τ-b, lengths to {longest:,}",
            rival="scipy.stats.kendalltau in a loop",
            instances=rows,
            ours=lambda x=x, y=y, mask=mask: kendall_tau_b(x, y, mask).numpy(),
            theirs=loop,
            difference=largest_difference,
            tolerance=1e-9,
            target=target,
        )
        full, second, _ = ragged(rows, longest, rectangular=True)
        x, y = torch.from_numpy(full), torch.from_numpy(second)
        yield Comparison(
            name=f"τ-b, all of length {longest:,}",
            rival="scipy.stats.kendalltau(axis=1)",
            instances=rows,
            ours=lambda x=x, y=y: kendall_tau_b(x, y).numpy(),
            theirs=lambda a=full, b=second: kendalltau(a, b, axis=1).statistic,
            difference=largest_difference,
            tolerance=1e-9,
        )


def weighted(shrink: int = 1) -> Iterator[Comparison]:
    """Yield the comparisons of the weighted τ. The number of rows is divided by `shrink`."""
    from scipy.stats import weightedtau

    for longest, (_, rows, target) in LENGTHS.items():
        rows = max(4, rows // shrink)
        weights, _, real = ragged(rows, longest)
        # scipy gives the same statistic only if there are no ties.
        scores = weights + np.random.default_rng(0).normal(size=weights.shape) / longest
        x, y, mask = torch.from_numpy(weights), torch.from_numpy(scores), torch.from_numpy(real)

        def loop(weights: Floats = weights, scores: Floats = scores, real: Any = real) -> Floats:
            found = []
            for row, score, r in zip(weights, scores, real, strict=True):
                own = row[r]
                weigh = own.tolist().__getitem__
                found.append(weightedtau(own, score[r], rank=False, weigher=weigh, additive=False).statistic)
            return np.array(found)

        yield Comparison(
            name=f"weighted τ, lengths to {longest:,}",
            rival="scipy.stats.weightedtau in a loop",
            instances=rows,
            ours=lambda x=x, y=y, mask=mask: weighted_kendall_tau(x, y, x, mask).numpy(),
            theirs=loop,
            difference=largest_difference,
            tolerance=1e-9,
            target=target,
        )


def merged(labels: NDArray[np.int32], centres: Floats) -> NDArray[np.int32]:
    """Merge each cluster that has a single member with the nearest larger cluster.

    Args:
        labels: The number of the cluster of each member. This array is changed in place.
        centres: The centre of each cluster.

    Returns:
        The changed labels.
    """
    sizes = np.bincount(labels, minlength=len(centres))
    kept = np.flatnonzero(sizes > 1)
    for alone in np.flatnonzero(sizes == 1):
        labels[labels == alone] = kept[((centres[kept] - centres[alone]) ** 2).sum(1).argmin()]
    return labels


def information(shrink: int = 1) -> Iterator[Comparison]:
    """Yield the comparison of the mutual-information ranking. It uses k-means, plug-in estimates and 100 shuffles.

    The number of instances is divided by `shrink`.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import mutual_info_score
    from threadpoolctl import threadpool_limits

    n, ranks, width, shuffles = 600 // shrink, 6, 64, 100
    random = np.random.default_rng(0)
    logits = random.normal(size=(n, 1))
    # Every state has six well separated groups.
    groups = random.integers(0, 6, size=(n, ranks))
    states = random.normal(size=(6, width))[groups] + logits[:, None] * random.normal(size=(ranks, width)) * 0.5
    weights = np.tile(np.arange(ranks, 0, -1) / (ranks * (ranks + 1) / 2), (n, 1))

    def theirs() -> Floats:
        with threadpool_limits(limits=1):
            outputs = KMeans(5, n_init=1, random_state=0).fit_predict(logits)
            order = np.random.default_rng(0)
            shuffled = [order.permutation(outputs) for _ in range(shuffles)]
            found = []
            for rank in range(ranks):
                model = KMeans(default_clusters(n), n_init=1, random_state=0).fit(states[:, rank])
                labels = merged(model.labels_, model.cluster_centers_)
                null = np.mean([mutual_info_score(labels, one) for one in shuffled])
                found.append(mutual_info_score(labels, outputs) - null)
        return np.array(found)

    yield Comparison(
        name="MI ranking, 6 ranks",
        rival="scikit-learn KMeans and mutual_info_score",
        instances=n,
        ours=lambda: information_ranking(states, weights, logits, seed=0).corrected,
        theirs=theirs,
        difference=largest_difference,
        tolerance=1e-9,
        note="both spend most of their time in k-means",
    )
