"""Collect hidden states in the order of their attention, as input of `attnaudit.metrics.ranked_information`.

Source: Wen, Subbalakshmi & Yang 2022, §3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnaudit.engine.measurements import Measurements
from attnaudit.engine.ragged_columns import Array
from attnaudit.mapped_arrays import new_in_file
from attnaudit.measures import AttentionView, Columns, Request, StatefulMeasure, measure
from attnaudit.metrics.ranked_information import choose_ranks

#: A larger array of states is stored in a temporary file.
IN_MEMORY_BYTES = 512 * 1024**2


@measure("ranked_hidden")
class RankedHidden(StatefulMeasure):
    """Collect the hidden states of the k most attended tokens of every instance.

    The tables have one entry for each of the n instances with at least k tokens:

    * `.states`: (n, k, m) hidden states, from the most attended token to the least attended one.
    * `.weights`: (n, k) attention weights of these tokens.
    * `.instances`: (n,) indices of the instances.
    * `.outputs`: (n, C) logits.

    The fact `.k_rule` describes the rule that determined k (see `choose_ranks`).
    """

    keeps_rows = False

    def __init__(self, name: str, argument: None, lengths: Sequence[int]) -> None:
        super().__init__(name, argument, lengths)
        # k never exceeds the 10th percentile of the lengths, so ranks beyond it are not stored.
        self._ranks = max(1, int(np.percentile(lengths, 10)))

    def compute(self, view: AttentionView, request: Request) -> Columns:
        """Return the hidden states of the most attended tokens, and their weights, as states."""
        weights = view.attention.nan_to_num(0.0).masked_fill(~view.real, -1.0)
        ranks = min(self._ranks, weights.shape[1])
        top, index = weights.sort(dim=1, descending=True, stable=True)
        top, index = top[:, :ranks], index[:, :ranks]
        states = view.hidden.detach().gather(1, index[:, :, None].expand(-1, -1, view.hidden.shape[-1]))
        counts = view.lengths.clamp_max(ranks).tolist()
        return Columns(
            states={
                f"{self.name}.weights": _first(top.clamp_min(0.0).cpu().numpy(), counts),
                f"{self.name}.states": _first(states.float().cpu().numpy(), counts),
            }
        )

    def finish(self, measurements: Measurements) -> None:
        """Choose the number of ranks k, and add the tables and the fact."""
        lengths = np.array(self.lengths, dtype=np.int64)
        weights = np.zeros((len(lengths), self._ranks))
        for row, first in enumerate(measurements.states[f"{self.name}.weights"]):
            weights[row, : len(first)] = first
        k, rule = choose_ranks(lengths, weights)
        rows = (lengths >= k).nonzero()[0]
        width = next(iter(measurements.states[f"{self.name}.states"])).shape[1]
        states = _new_states((len(rows), k, width))
        target = 0
        for length, first in zip(lengths, measurements.states[f"{self.name}.states"], strict=True):
            if length >= k:
                states[target] = first[:k]
                target += 1
        measurements.tables[f"{self.name}.states"] = states
        measurements.tables[f"{self.name}.weights"] = weights[rows, :k]
        measurements.tables[f"{self.name}.instances"] = rows.astype(np.int64)
        measurements.tables[f"{self.name}.outputs"] = np.stack(
            [measurements.vector("logits")[i] for i in rows.tolist()]
        )
        measurements.facts[f"{self.name}.k_rule"] = rule


def _first(rows: NDArray[np.float32] | NDArray[np.float64], counts: Sequence[int]) -> list[Array]:
    """Return the first `counts[i]` entries of each row i."""
    return [row[:count] for row, count in zip(rows, counts, strict=True)]


def _new_states(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return an array of a shape, in memory or in a temporary file."""
    numbers = int(np.prod(shape))
    if numbers * 4 <= IN_MEMORY_BYTES:
        return np.zeros(shape, dtype=np.float32)
    return new_in_file(numbers, np.float32).reshape(shape)
