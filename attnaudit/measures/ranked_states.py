"""Collect hidden states in the order of their attention, as input of `attnaudit.metrics.ranked_information`.

Source: Wen, Subbalakshmi & Yang 2022, §3.2.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnaudit.engine.measurements import Measurements
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

    def __init__(self, name: str, argument: None, lengths: Sequence[int]) -> None:
        super().__init__(name, argument, lengths)
        # k never exceeds the 10th percentile of the lengths, so ranks beyond it are not stored.
        self._ranks = max(1, int(np.percentile(lengths, 10)))
        self._states: NDArray[np.float32] | None = None
        self._weights = np.zeros((len(lengths), self._ranks))
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def _new_states(self, width: int) -> NDArray[np.float32]:
        """Return an array for states with `width` features, in memory or in a temporary file."""
        shape = (len(self.lengths), self._ranks, width)
        if int(np.prod(shape)) * 4 <= IN_MEMORY_BYTES:
            return np.zeros(shape, dtype=np.float32)
        self._folder = tempfile.TemporaryDirectory(prefix="attnaudit-")
        return np.lib.format.open_memmap(
            Path(self._folder.name) / "states.npy", mode="w+", dtype=np.float32, shape=shape
        )

    def compute(self, view: AttentionView, request: Request) -> Columns:
        """Store the hidden states of the most attended tokens. Return no columns."""
        if self._states is None:
            self._states = self._new_states(view.hidden.shape[-1])
        weights = view.attention.nan_to_num(0.0).masked_fill(~view.real, -1.0)
        ranks = min(self._ranks, weights.shape[1])
        top, index = weights.sort(dim=1, descending=True, stable=True)
        top, index = top[:, :ranks], index[:, :ranks]
        states = view.hidden.detach().gather(1, index[:, :, None].expand(-1, -1, view.hidden.shape[-1]))
        rows = list(view.positions)
        self._weights[rows, :ranks] = top.clamp_min(0.0).cpu().numpy()
        self._states[rows, :ranks] = states.float().cpu().numpy()
        return Columns()

    def finish(self, measurements: Measurements) -> None:
        """Choose the number of ranks k, and add the tables and the fact."""
        lengths = np.array(self.lengths, dtype=np.int64)
        k, rule = choose_ranks(lengths, self._weights)
        rows = (lengths >= k).nonzero()[0]
        logits = np.stack([measurements.vector("logits")[i] for i in rows])
        assert self._states is not None
        # The array may be larger than the memory, so the rows are moved in place. The row indices ascend, so no row is
        # overwritten before it is moved.
        for target, row in enumerate(rows):
            if target != row:
                self._states[target] = self._states[row]
        measurements.tables[f"{self.name}.states"] = self._states[: len(rows), :k]
        measurements.tables[f"{self.name}.weights"] = self._weights[rows, :k]
        measurements.tables[f"{self.name}.instances"] = rows.astype(np.int64)
        measurements.tables[f"{self.name}.outputs"] = logits
        measurements.facts[f"{self.name}.k_rule"] = rule
        # The folder of the memory-mapped file must exist as long as the tables.
        measurements.keep_alive.append(self._folder)
