"""Fragility: how far the output moves when the weights are permuted or made uniform (JW, T).

In the rows that the reading shows, the states being fixed; or in all rows of its layer, or of every layer of its stack,
where what follows is computed again from the changed states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.engine import interventions
from attnaudit.engine.attention_view import AttentionView, Where
from attnaudit.engine.batch import probabilities
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.errors import CheckError, nearest
from attnaudit.metrics import total_variation
from attnaudit.registry import measures
from attnaudit.seeding import keyed_generator

#: JW: permutations per instance.
PERMUTATIONS = 100
#: The same where whole layers are permuted: each takes a pass through the model.
WIDE_PERMUTATIONS = 10
PLACES: tuple[Where, ...] = ("reading", "layer", "everywhere.live", "everywhere.frozen")


def ascending(draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """(R, n) whole multiples of 2^-53 in [0, 1), as generators draw them -> (R, n) places in the order of the draws.

    Few enough of them fit into one integer with their place, and integers are sorted faster than places."""
    bits = max(1, (draws.shape[1] - 1).bit_length())
    if bits > 63 - 53:
        return np.argsort(draws, axis=1)
    keys: NDArray[np.int64] = (draws * 2.0**53).astype(np.int64) << bits
    keys |= np.arange(draws.shape[1])
    keys.sort(axis=1)
    keys &= (1 << bits) - 1
    return keys


def permutation_index(view: AttentionView, count: int) -> Tensor:
    """(B, count, T) positions: real tokens in an order drawn from the seed and the instance's id, others in place."""
    real = view.batch.real_tokens
    index = np.broadcast_to(np.arange(real.shape[1]), (len(real), count, real.shape[1])).copy()
    for b, row in enumerate(real.cpu().numpy()):
        where = row.nonzero()[0]
        draws = keyed_generator(view.seed, "permutation", view.instances[b].id).random((count, len(where)))
        first, order = int(where[0]) if len(where) else 0, ascending(draws)
        if row[first : first + len(where)].all():
            np.add(order, first, out=index[b, :, first : first + len(where)])
        else:
            index[b][:, where] = where[order]
    return torch.from_numpy(index).to(view.device)


def _undefined(view: AttentionView) -> Tensor:
    """(B,) True where nothing is shown, so that nothing can be replaced."""
    return (view.attention.isnan() & view.real).any(1)


@dataclass(frozen=True, kw_only=True)
class Permutation(PerBatch):
    """tvd: median over the permutations of the total variation to the original output. predicted: class under each.
    Both are NaN where nothing is shown."""

    where: Where

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        count = PERMUTATIONS if self.where == "reading" else WIDE_PERMUTATIONS
        index = permutation_index(view, count)
        clean = view.probabilities[:, None, :]
        step = max(view.at_once, view.budget * count // max(1, index.shape[0] * index.shape[2]))
        moved, predicted = [], []
        for start in range(0, count, step):
            found = probabilities(self._logits(view, index[:, start : start + step]))
            moved.append(total_variation(found, clean.expand_as(found)))
            predicted.append(found.argmax(-1))
        # torch.median takes the lower of the two middle values; the quantile is the mean of them, as in JW.
        median = torch.cat(moved, dim=1).quantile(0.5, dim=1)
        nothing, classes = _undefined(view), torch.cat(predicted, dim=1).double()
        return Columns(
            scalars={f"{self.name}.tvd": median.masked_fill(nothing, torch.nan)},
            vectors={f"{self.name}.predicted": classes.masked_fill(nothing[:, None], torch.nan)},
        )

    def _logits(self, view: AttentionView, index: Tensor) -> Tensor:
        if self.where == "reading":
            return view.permuted(index)

        def change(weights: Tensor, free: Tensor, part: slice) -> Tensor:
            return interventions.permuted(weights, index[:, part].reshape(-1, 1, 1, index.shape[2]), free)

        return view.changed(self.where, index.shape[1], change)


@dataclass(frozen=True, kw_only=True)
class Uniform(PerBatch):
    """tvd to the original output, and the predicted class, under α = 1/n. Both are NaN where nothing is shown."""

    where: Where

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        found, nothing = probabilities(self._logits(view))[:, 0, :], _undefined(view)
        return Columns(
            scalars={
                f"{self.name}.tvd": total_variation(found, view.probabilities).masked_fill(nothing, torch.nan),
                f"{self.name}.predicted": found.argmax(-1).double().masked_fill(nothing, torch.nan),
            }
        )

    def _logits(self, view: AttentionView) -> Tensor:
        even = view.batch.real_tokens.double()[:, None, :]
        if self.where == "reading":
            return view.put_on_tokens(even)
        return view.changed(self.where, 1, lambda weights, free, _part: interventions.put(weights, free.double(), free))


def _where(family: str, argument: str) -> Where:
    found = next((place for place in PLACES if place == (argument or "reading")), None)
    if found is None:
        raise CheckError(f"'{family}.{argument}': unknown place. {nearest(argument, PLACES)}")
    return found


def _name(family: str, argument: str) -> str:
    return f"{family}.{argument}" if argument else family


@measures.register("permutation")
def permutation(argument: str) -> Measure:
    """permutation, or permutation.<layer, everywhere.live or everywhere.frozen>"""
    return Permutation(name=_name("permutation", argument), where=_where("permutation", argument))


@measures.register("uniform")
def uniform(argument: str) -> Measure:
    """uniform, or uniform.<layer, everywhere.live or everywhere.frozen>"""
    return Uniform(name=_name("uniform", argument), where=_where("uniform", argument))
