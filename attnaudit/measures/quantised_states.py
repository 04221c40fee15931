"""Embeddings and hidden states of the same tokens, quantised, for the information that states retain (T §3.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnaudit.adapters.protocol import TEXT
from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.columns import Columns, Measure
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError, nearest
from attnaudit.registry import measures
from attnaudit.seeding import keyed_generator, keyed_integer

WORDS = ("frequent", "sampled")
#: T: words, clusters, and the batch of mini-batch k-means. T has up to a million occurrences.
MOST_WORDS, MOST_CLUSTERS, BATCH = 1000, 1000, 100
#: Occurrences that are kept, drawn evenly where there are more: states of a million would not fit in memory.
MOST_OCCURRENCES = 50_000
#: Fewer occurrences tell nothing.
FEWEST = 100

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


def clusters_for(occurrences: int, words: int) -> int:
    """⌊√occurrences⌋, at most 1000 and the number of words. T's own setting (1000 clusters for a million occurrences)
    at full size: as many cells of the joint table as occurrences, whatever the size."""
    return min(MOST_CLUSTERS, words, math.isqrt(occurrences))


def choose_words(ids: Labels, words: str, *, seed: int) -> Labels:
    """Which word ids count: up to 1000 of those that occur, the most frequent (MF) or drawn ∝ frequency^0.75 (RS)."""
    found, counts = np.unique(ids, return_counts=True)
    most = min(MOST_WORDS, len(found))
    if words == "frequent":
        return found[np.lexsort((found, -counts))[:most]]
    weight = counts**0.75
    chosen: Labels = keyed_generator(seed, "retained", "words").choice(
        found, size=most, replace=False, p=weight / weight.sum()
    )
    return chosen


def quantised(points: Floats, clusters: int, *, seed: int) -> Labels:
    """Labels (N,) of mini-batch k-means of points (N, m); fewer clusters where fewer points are distinct."""
    from sklearn.cluster import MiniBatchKMeans

    distinct = len(np.unique(points, axis=0))
    number = max(1, min(clusters, distinct))
    fitted = MiniBatchKMeans(
        n_clusters=number, batch_size=BATCH, init_size=3 * max(BATCH, number), n_init=1, random_state=seed % 2**32
    ).fit(points)
    labels: Labels = fitted.labels_.astype(np.int64)
    return labels


class Retained:
    """tables: .embeddings and .states, (N,) cluster of each occurrence of a chosen word on either side; .instances (N,)
    the instance it is in. Empty with fewer than 100 occurrences or fewer than two words. facts: .sizes in words."""

    requires: tuple[str, ...] = ()
    gradients = False
    depends_on_reading = True

    def __init__(self, words: str) -> None:
        self.name = f"retained.{words}"
        self.words = words
        self.start(())

    def start(self, lengths: Sequence[int]) -> None:
        self._offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        self._kept: NDArray[np.bool_] | None = None
        self._rows: dict[int, tuple[Labels, Floats, Floats]] = {}

    def _chosen(self, seed: int) -> NDArray[np.bool_]:
        if self._kept is None:
            total = int(self._offsets[-1])
            self._kept = np.ones(total, dtype=bool)
            if total > MOST_OCCURRENCES:
                self._kept[:] = False
                generator = keyed_generator(seed, "retained", "occurrences")
                self._kept[generator.choice(total, size=MOST_OCCURRENCES, replace=False)] = True
        return self._kept

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        kept = self._chosen(view.seed)
        ids = view.inputs.ids[TEXT].cpu().numpy()
        embeddings = view.embeddings[TEXT].detach().float().cpu().numpy()
        states = view.hidden.detach().float().cpu().numpy()
        for b, (position, row) in enumerate(zip(view.positions, view.real.cpu().numpy(), strict=True)):
            where = row.nonzero()[0][kept[self._offsets[position] : self._offsets[position + 1]]]
            self._rows[position] = (ids[b, where].astype(np.int64), embeddings[b, where], states[b, where])
        return Columns()

    def finish(self, measurements: Measurements) -> None:
        order = sorted(self._rows)
        ids = np.concatenate([self._rows[p][0] for p in order])
        instances = np.repeat(np.array(order, dtype=np.int64), [len(self._rows[p][0]) for p in order])
        among = np.isin(ids, choose_words(ids, self.words, seed=measurements.seed))
        number, words = int(among.sum()), len(np.unique(ids[among]))
        sides: list[Labels] = [np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)]
        clusters = clusters_for(number, words)
        if number >= FEWEST and words >= 2:
            for side in (0, 1):
                points = np.concatenate([self._rows[p][1 + side] for p in order])[among]
                seed = keyed_integer(measurements.seed, self.name, ("embeddings", "states")[side])
                sides[side] = quantised(points, clusters, seed=seed)
        else:
            among = np.zeros_like(among)
        measurements.tables[f"{self.name}.embeddings"], measurements.tables[f"{self.name}.states"] = sides
        measurements.tables[f"{self.name}.instances"] = instances[among]
        measurements.facts[f"{self.name}.sizes"] = f"{number:,} occurrences of {words:,} words in {clusters:,} clusters"
        self._rows = {}


@measures.register("retained")
def retained(argument: str) -> Measure:
    """retained.<frequent or sampled>"""
    if argument not in WORDS:
        raise CheckError(f"'retained.{argument}': expected .frequent or .sampled. {nearest(argument, WORDS)}")
    return Retained(argument)
