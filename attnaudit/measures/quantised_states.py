"""Cluster embeddings and hidden states, to estimate how much information about a word its hidden state retains.

Source: Tutek & Šnajder 2020, §3.4.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from attnaudit.adapters.protocol import TEXT
from attnaudit.arrays import Integers
from attnaudit.disk_arrays.filed_arrays import blocks
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.ragged_columns import Array
from attnaudit.measures import AttentionView, Columns, Request, StatefulMeasure, measure, one_of
from attnaudit.seeding import keyed_generator, keyed_integer

#: Largest number of words, largest number of clusters, and batch size of mini-batch k-means (Tutek & Šnajder 2020).
MOST_WORDS, MOST_CLUSTERS, BATCH = 1000, 1000, 100
#: Largest number of occurrences of words. If there are more, a random sample is used. The paper uses up to a million
#: occurrences, but so many states would not fit in memory.
MOST_OCCURRENCES = 50_000
#: Smallest number of occurrences from which the information can be estimated.
FEWEST_OCCURRENCES = 100

#: What is stored of each occurrence until the words are chosen.
STORED = ("ids", "embeddings", "states")

Vectors = NDArray[np.float32]


def clusters_for(occurrences: int, words: int) -> int:
    """Return the number of clusters: ⌊√occurrences⌋, but at most 1000 and at most the number of words.

    With ⌊√occurrences⌋ clusters, the joint table of the two clusterings has about as many cells as there are
    occurrences. The paper has the same ratio: 1000 clusters for a million occurrences.
    """
    return min(MOST_CLUSTERS, words, math.isqrt(occurrences))


def choose_words(ids: Integers, selection: str, *, seed: int) -> Integers:
    """Choose up to 1000 different words.

    Args:
        ids: (N,) word id of each occurrence.
        selection: "frequent" for the most frequent words; "sampled" for words drawn without replacement, with
            probabilities proportional to frequency^0.75.
        seed: Seed of the draw.

    Returns:
        The chosen word ids.
    """
    words, counts = np.unique(ids, return_counts=True)
    size = min(MOST_WORDS, len(words))
    if selection == "frequent":
        return words[np.lexsort((words, -counts))[:size]]
    weight = counts**0.75
    sampled: Integers = keyed_generator(seed, "retained", "words").choice(
        words, size=size, replace=False, p=weight / weight.sum()
    )
    return sampled


def quantised(points: Vectors, clusters: int, *, seed: int) -> Integers:
    """Cluster points by mini-batch k-means.

    Args:
        points: (N, m) points.
        clusters: Number of clusters. It is reduced to the number of distinct points if there are fewer of them.
        seed: Seed of k-means.

    Returns:
        (N,) cluster of each point.
    """
    from sklearn.cluster import MiniBatchKMeans

    distinct = len(np.unique(points, axis=0))
    number = max(1, min(clusters, distinct))
    fitted = MiniBatchKMeans(
        n_clusters=number, batch_size=BATCH, init_size=3 * max(BATCH, number), n_init=1, random_state=seed % 2**32
    ).fit(points)
    labels: Integers = fitted.labels_.astype(np.int64)
    return labels


@measure("retained", argument=one_of("frequent", "sampled"))
class Retained(StatefulMeasure):
    """Cluster the embeddings and the hidden states of all occurrences of the chosen words.

    If the data contain the same text several times, its occurrences count once: the words and the numbers of clusters
    are chosen from the first copy, and the clusters are fitted to it. The other copies have its clusters.

    The tables have one entry for each of the N occurrences of the chosen words, including copies:

    * `.embeddings`: (N,) cluster of the embedding.
    * `.states`: (N,) cluster of the hidden state.
    * `.instances`: (N,) index of the instance.
    * `.first`: (N,) index of the entry of the first copy; the entry's own index if it is the first.

    The tables are empty if the chosen words have fewer than 100 occurrences without copies, or if fewer than two words
    are chosen. The fact `.sizes` gives the numbers of occurrences without copies, words and clusters.
    """

    keeps_rows = False

    def __init__(self, name: str, argument: str, lengths: Sequence[int]) -> None:
        super().__init__(name, argument, lengths)
        self._offsets: Integers = np.append(np.zeros(1, np.int64), np.cumsum(np.asanyarray(lengths).astype(np.int64)))
        self._sample: Integers | None = None

    def _sampled(self, seed: int) -> Integers:
        """Return the places of the occurrences in the sample among those in all instances, in ascending order."""
        if self._sample is None:
            total = int(self._offsets[-1])
            self._sample = np.arange(min(total, MOST_OCCURRENCES))
            if total > MOST_OCCURRENCES:
                generator = keyed_generator(seed, "retained", "occurrences")
                self._sample = np.sort(generator.choice(total, size=MOST_OCCURRENCES, replace=False))
        return self._sample

    def compute(self, view: AttentionView, request: Request) -> Columns:
        """Return the word ids, embeddings and hidden states of the sampled occurrences as states."""
        sample = self._sampled(view.seed)
        ids = view.inputs.ids[TEXT].cpu().numpy()
        embeddings = view.embeddings[TEXT].detach().float().cpu().numpy()
        states = view.hidden.detach().float().cpu().numpy()
        found: dict[str, list[Array]] = {f"{self.name}.{what}": [] for what in STORED}
        for b, (position, row) in enumerate(zip(view.positions, view.real.cpu().numpy(), strict=True)):
            offset, end = self._offsets[position : position + 2].tolist()
            first, last = np.searchsorted(sample, [offset, end]).tolist()
            tokens = row.nonzero()[0][sample[first:last] - offset]
            stored = (ids[b, tokens].astype(np.int64), embeddings[b, tokens], states[b, tokens])
            for rows, array in zip(found.values(), stored, strict=True):
                rows.append(array)
        return Columns(states=found)

    def finish(self, measurements: Measurements) -> None:
        """Choose the words, cluster their embeddings and states, and add the tables."""
        stored = [measurements.states[f"{self.name}.{what}"] for what in STORED]
        ids = stored[0].values().astype(np.int64)
        counts = np.diff(stored[0].ends, prepend=0)
        instances = np.concatenate(
            [
                np.repeat(np.arange(some.start, some.stop), of_rows[some])
                for some, of_rows in blocks(len(counts), counts)
            ]
        )
        first = self._first_copies(measurements, instances)
        is_first = first == np.arange(len(first))
        chosen = np.isin(ids, choose_words(ids[is_first], self.argument, seed=measurements.seed))
        counted = chosen & is_first
        occurrences, words = int(counted.sum()), len(np.unique(ids[counted]))
        sides: list[Integers] = [np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)]
        clusters = clusters_for(occurrences, words)
        if occurrences >= FEWEST_OCCURRENCES and words >= 2:
            for side in (0, 1):
                points = stored[1 + side].values().astype(np.float32, copy=False)[counted]
                seed = keyed_integer(measurements.seed, self.name, ("embeddings", "states")[side])
                labels = np.zeros(len(ids), dtype=np.int64)
                labels[counted] = quantised(points, clusters, seed=seed)
                sides[side] = labels[first[chosen]]
        else:
            chosen = np.zeros_like(chosen)
        measurements.tables[f"{self.name}.embeddings"], measurements.tables[f"{self.name}.states"] = sides
        measurements.tables[f"{self.name}.instances"] = instances[chosen]
        measurements.tables[f"{self.name}.first"] = (np.cumsum(chosen) - 1)[first[chosen]]
        measurements.facts[f"{self.name}.sizes"] = (
            f"{occurrences:,} occurrences of {words:,} words in {clusters:,} clusters"
        )

    def _first_copies(self, measurements: Measurements, instances: Integers) -> Integers:
        """Return, for each stored occurrence, the index of the first occurrence of which it is a copy, or its own.

        A copy is the same position of an instance with the same content.

        Args:
            measurements: The measurements.
            instances: (N,) index of the instance of each stored occurrence, in ascending order.
        """
        positions = self._sampled(measurements.seed) - self._offsets[instances]
        first = np.arange(len(instances))
        entries: dict[Hashable, dict[int, int]] = {}  # content -> position -> the first occurrence
        starts = np.flatnonzero(np.diff(instances, prepend=-1))
        for start, end in zip(starts.tolist(), np.append(starts[1:], len(instances)).tolist(), strict=True):
            known = entries.setdefault(measurements.content(int(instances[start])), {})
            for entry, position in enumerate(positions[start:end].tolist(), start):
                first[entry] = known.setdefault(position, entry)
        return first
