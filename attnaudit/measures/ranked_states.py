"""Hidden states grouped by the rank of their attention, for the mutual-information ranking (W §3.2)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.columns import Columns, Measure
from attnaudit.engine.measurements import Measurements
from attnaudit.measures.prediction import no_argument
from attnaudit.metrics.ranked_information import choose_ranks
from attnaudit.registry import measures

#: Larger arrays of states than this live in a temporary file.
IN_MEMORY_BYTES = 512 * 1024**2


class RankedHidden:
    """tables: states (n_kept, k, m), weights (n_kept, k) sorted from the largest, instances (n_kept,) their positions,
    outputs (n_kept, C) logits. Instances with fewer than k tokens are left out, and counted by the check."""

    name = "ranked_hidden"
    requires: tuple[str, ...] = ()
    gradients = False
    depends_on_reading = True

    def __init__(self) -> None:
        self._lengths: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._most = 0
        self._states: NDArray[np.float32] | None = None
        self._weights: NDArray[np.float64] = np.empty((0, 0))
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, lengths: Sequence[int]) -> None:
        self._lengths = np.array(lengths, dtype=np.int64)
        # k never exceeds the 10th percentile of length, so no more ranks than that are kept.
        self._most = max(1, int(np.percentile(self._lengths, 10)))
        self._weights = np.zeros((len(lengths), self._most))

    def _array(self, width: int) -> NDArray[np.float32]:
        shape = (len(self._lengths), self._most, width)
        if int(np.prod(shape)) * 4 <= IN_MEMORY_BYTES:
            return np.zeros(shape, dtype=np.float32)
        self._folder = tempfile.TemporaryDirectory(prefix="attnaudit-")
        return np.lib.format.open_memmap(
            Path(self._folder.name) / "states.npy", mode="w+", dtype=np.float32, shape=shape
        )

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        if self._states is None:
            self._states = self._array(view.hidden.shape[-1])
        weights = view.attention.nan_to_num(0.0).masked_fill(~view.real, -1.0)
        most = min(self._most, weights.shape[1])
        top, index = weights.sort(dim=1, descending=True, stable=True)
        top, index = top[:, :most], index[:, :most]
        states = view.hidden.detach().gather(1, index[:, :, None].expand(-1, -1, view.hidden.shape[-1]))
        rows = list(view.positions)
        self._weights[rows, :most] = top.clamp_min(0.0).cpu().numpy()
        self._states[rows, :most] = states.float().cpu().numpy()
        return Columns()

    def finish(self, measurements: Measurements) -> None:
        k, rule = choose_ranks(self._lengths, self._weights)
        kept = (self._lengths >= k).nonzero()[0]
        logits = np.stack([measurements.vector("logits")[i] for i in kept])
        assert self._states is not None
        # In place, since the array may be larger than memory; kept is ascending, so no row is overwritten too soon.
        for to, row in enumerate(kept):
            if to != row:
                self._states[to] = self._states[row]
        measurements.tables["ranked_hidden.states"] = self._states[: len(kept), :k]
        measurements.tables["ranked_hidden.weights"] = self._weights[kept, :k]
        measurements.tables["ranked_hidden.instances"] = kept.astype(np.int64)
        measurements.tables["ranked_hidden.outputs"] = logits
        measurements.facts["ranked_hidden.k_rule"] = rule
        # The file behind a memory map may go once nothing refers to it.
        measurements.keep_alive.append(self._folder)


@measures.register("ranked_hidden")
def ranked_hidden(argument: str) -> Measure:
    no_argument("ranked_hidden", argument)
    return RankedHidden()
