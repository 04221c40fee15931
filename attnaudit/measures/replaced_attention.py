"""Fragility: how far the output moves when the attention weights are permuted or made uniform.

Sources: Jain & Wallace 2019, §4.2.1; Tutek & Šnajder 2020. The weights are replaced in the rows that the reading shows,
in all rows of its layer, or in all rows of every layer of its stack. Later layers are recomputed from the changed
states.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnaudit.arrays import Floats, Integers
from attnaudit.engine import interventions
from attnaudit.engine.attention_view import Extent
from attnaudit.engine.clean_pass import probabilities
from attnaudit.errors import CheckError, nearest
from attnaudit.measures import AttentionView, Columns, Request, measure
from attnaudit.metrics import total_variation
from attnaudit.seeding import keyed_generator

#: Permutations per instance (Jain & Wallace 2019).
PERMUTATIONS = 100
#: Permutations per instance where whole layers are permuted, since each takes a pass through the model.
LAYER_PERMUTATIONS = 10
EXTENTS: tuple[Extent, ...] = ("reading", "layer", "everywhere.live", "everywhere.frozen")


def extent_of(text: str) -> Extent:
    """Parse the argument of `permutation` and `uniform`: "", "layer", "everywhere.live" or "everywhere.frozen"."""
    extent = next((extent for extent in EXTENTS if extent == (text or "reading")), None)
    if extent is None:
        raise CheckError(f"unknown place '{text}' to replace attention weights at. {nearest(text, EXTENTS)}")
    return extent


def ascending(draws: Floats) -> Integers:
    """Return the order that sorts each row of draws.

    The draws must be whole multiples of 2^-53 in [0, 1), as numpy's generators produce them. For short rows, each draw
    and its position are packed into one integer, because sorting integers is faster than an argsort.

    Args:
        draws: (R, n) random numbers.

    Returns:
        (R, n) positions of the draws from the smallest to the largest.
    """
    bits = max(1, (draws.shape[1] - 1).bit_length())
    if bits > 63 - 53:
        return np.argsort(draws, axis=1)
    keys: Integers = (draws * 2.0**53).astype(np.int64) << bits
    keys |= np.arange(draws.shape[1])
    keys.sort(axis=1)
    keys &= (1 << bits) - 1
    return keys


def permutation_index(view: AttentionView, count: int) -> Tensor:
    """Draw permutations of the real tokens, keyed by the seed and the instance's id.

    Returns:
        (B, count, T) positions; special tokens and padding stay in place.
    """
    real = view.batch.real_tokens
    index = np.broadcast_to(np.arange(real.shape[1]), (len(real), count, real.shape[1])).copy()
    for b, row in enumerate(real.cpu().numpy()):
        positions = row.nonzero()[0]
        draws = keyed_generator(view.seed, "permutation", view.instances[b].id).random((count, len(positions)))
        first, order = int(positions[0]) if len(positions) else 0, ascending(draws)
        if row[first : first + len(positions)].all():
            np.add(order, first, out=index[b, :, first : first + len(positions)])
        else:
            index[b][:, positions] = positions[order]
    return torch.from_numpy(index).to(view.device)


def _nothing_shown(view: AttentionView) -> Tensor:
    """Return (B,) True where the reading shows no attention on real tokens, so that nothing can be replaced."""
    return (view.attention.isnan() & view.real).any(1)


@measure("permutation", argument=extent_of)
def permutation(view: AttentionView, request: Request) -> Columns:
    """Return how far the output moves under random permutations of the weights.

    Columns, NaN where nothing is shown: `.tvd`, the median over the permutations of the total variation to the original
    output; `.predicted`, the predicted class under each permutation.
    """
    extent: Extent = request.argument
    count = PERMUTATIONS if extent == "reading" else LAYER_PERMUTATIONS
    index = permutation_index(view, count)
    clean = view.probabilities[:, None, :]
    step = max(view.variants_per_pass, view.budget * count // max(1, index.shape[0] * index.shape[2]))
    distances, predicted = [], []
    for start in range(0, count, step):
        output = probabilities(_permuted_logits(view, extent, index[:, start : start + step]))
        distances.append(total_variation(output, clean.expand_as(output)))
        predicted.append(output.argmax(-1))
    # torch.median returns the lower of the two middle values; the quantile is their mean, as in the published code.
    median = torch.cat(distances, dim=1).quantile(0.5, dim=1)
    undefined, classes = _nothing_shown(view), torch.cat(predicted, dim=1).double()
    return Columns(
        scalars={f"{request.name}.tvd": median.masked_fill(undefined, torch.nan)},
        vectors={f"{request.name}.predicted": classes.masked_fill(undefined[:, None], torch.nan)},
    )


def _permuted_logits(view: AttentionView, extent: Extent, index: Tensor) -> Tensor:
    """Return the logits (B, V, C) under the permutations (B, V, T)."""
    if extent == "reading":
        return view.logits_permuted(index)

    def change(weights: Tensor, attendable: Tensor, part: slice) -> Tensor:
        return interventions.permuted(weights, index[:, part].reshape(-1, 1, 1, index.shape[2]), attendable)

    return view.logits_with_changed_layers(extent, index.shape[1], change)


@measure("uniform", argument=extent_of)
def uniform(view: AttentionView, request: Request) -> Columns:
    """Return how far the output moves if each head's weight on real tokens is spread over them equally.

    Columns, NaN where nothing is shown: `.tvd`, the total variation to the original output; `.predicted`, the predicted
    class under uniform weights.
    """
    output, undefined = probabilities(_uniform_logits(view, request.argument))[:, 0, :], _nothing_shown(view)
    return Columns(
        scalars={
            f"{request.name}.tvd": total_variation(output, view.probabilities).masked_fill(undefined, torch.nan),
            f"{request.name}.predicted": output.argmax(-1).double().masked_fill(undefined, torch.nan),
        }
    )


def _uniform_logits(view: AttentionView, extent: Extent) -> Tensor:
    """Return the logits (B, 1, C) under uniform weights."""
    if extent == "reading":
        return view.logits_with_token_shares(view.batch.real_tokens.double()[:, None, :])

    def change(weights: Tensor, attendable: Tensor, _part: slice) -> Tensor:
        return interventions.redistributed(weights, attendable.double(), attendable)

    return view.logits_with_changed_layers(extent, 1, change)
