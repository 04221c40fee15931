"""Collect hidden states in the order of their attention, as input of `attnaudit.metrics.ranked_information`.

Source: Wen, Subbalakshmi & Yang 2022, §3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Integers
from attnaudit.disk_arrays.mapped_arrays import new_in_file
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.ragged_columns import Array, rows_at
from attnaudit.measures import AttentionView, Columns, Request, StatefulMeasure, measure
from attnaudit.metrics.ranked_information import choose_ranks
from attnaudit.seeding import keyed_generator

#: In larger data sets, only a random sample of this many instances is used: the states of all instances would need too
#: much memory, and k-means too much time.
MOST_INSTANCES = 10_000
#: A larger array of states is stored in a temporary file.
IN_MEMORY_BYTES = 32 * 1024**2


@measure("ranked_hidden")
class RankedHidden(StatefulMeasure):
    """Collect the hidden states of the k most attended tokens of every instance.

    In a data set with more than `MOST_INSTANCES` instances, only a random sample is used. It depends on the seed and
    the number of instances alone. The tables have one entry for each of the n instances of the sample with at least k
    tokens:

    * `.states`: (n, k, m) hidden states, from the most attended token to the least attended one.
    * `.weights`: (n, k) attention weights of these tokens.
    * `.instances`: (n,) indices of the instances.
    * `.outputs`: (n, C) logits.

    The table `.long_enough` has one entry for each instance of the data set, which is 1 if the instance has at least k
    tokens. The fact `.k_rule` describes the rule that determined k (see `choose_ranks`).
    """

    keeps_rows = False

    def __init__(self, name: str, argument: None, lengths: Sequence[int]) -> None:
        super().__init__(name, argument, lengths)
        # k never exceeds the 10th percentile of the lengths, so ranks beyond it are not stored.
        self._ranks = max(1, int(np.percentile(np.asanyarray(lengths), 10)))
        self._sample: Integers | None = None

    def compute(self, view: AttentionView, request: Request) -> Columns:
        """Return the hidden states of the most attended tokens, and their weights, as states."""
        weights = view.attention.nan_to_num(0.0).masked_fill(~view.real, -1.0)
        ranks = min(self._ranks, weights.shape[1])
        top, index = weights.sort(dim=1, descending=True, stable=True)
        top, index = top[:, :ranks], index[:, :ranks]
        states = view.hidden.detach().gather(1, index[:, :, None].expand(-1, -1, view.hidden.shape[-1]))
        sample = self._sampled(view.seed)
        nearest = np.searchsorted(sample, view.positions).clip(max=len(sample) - 1)
        sampled = sample[nearest] == view.positions
        counts = (view.lengths.clamp_max(ranks).cpu().numpy() * sampled).tolist()
        return Columns(
            states={
                f"{self.name}.weights": _first(top.clamp_min(0.0).cpu().numpy(), counts),
                f"{self.name}.states": _first(states.float().cpu().numpy(), counts),
            }
        )

    def finish(self, measurements: Measurements) -> None:
        """Choose the number of ranks k, and add the tables and the fact."""
        lengths = np.asanyarray(self.lengths)
        sampled = self._sampled(measurements.seed)
        weights = np.zeros((len(sampled), self._ranks))
        for row, first in enumerate(rows_at(measurements.states[f"{self.name}.weights"], sampled.tolist())):
            weights[row, : len(first)] = first
        k, rule = choose_ranks(lengths[sampled], weights)
        enough = lengths[sampled] >= k
        rows = sampled[enough]
        stored = measurements.states[f"{self.name}.states"]
        states = _new_states(k, len(rows), stored[0].shape[1])
        for target, of_row in enumerate(rows_at(stored, rows.tolist())):
            states[target] = of_row[:k]
        measurements.tables[f"{self.name}.states"] = states
        measurements.tables[f"{self.name}.weights"] = weights[enough, :k]
        measurements.tables[f"{self.name}.instances"] = rows.astype(np.int64)
        measurements.tables[f"{self.name}.long_enough"] = (lengths >= k).astype(np.int64)
        logits = measurements.vector("logits")
        measurements.tables[f"{self.name}.outputs"] = np.stack(list(rows_at(logits, rows.tolist())))
        measurements.facts[f"{self.name}.k_rule"] = rule

    def _sampled(self, seed: int) -> Integers:
        """Return the indices of the instances in the sample, in ascending order."""
        if self._sample is None:
            total = len(self.lengths)
            self._sample = np.arange(min(total, MOST_INSTANCES))
            if total > MOST_INSTANCES:
                generator = keyed_generator(seed, "ranked_hidden", "instances")
                self._sample = np.sort(generator.choice(total, size=MOST_INSTANCES, replace=False))
        return self._sample


def _first(rows: NDArray[np.float32] | NDArray[np.float64], counts: Sequence[int]) -> list[Array]:
    """Return the first `counts[i]` entries of each row i."""
    return [row[:count] for row, count in zip(rows, counts, strict=True)]


def _new_states(ranks: int, n: int, width: int) -> NDArray[np.float32]:
    """Return an array (n, ranks, width) of zeros, in memory or in a temporary file, rank by rank."""
    shape = (ranks, n, width)
    size = int(np.prod(shape))
    in_memory = size * 4 <= IN_MEMORY_BYTES
    states = np.zeros(shape, dtype=np.float32) if in_memory else new_in_file(size, np.float32).reshape(shape)
    return states.transpose(1, 0, 2)
