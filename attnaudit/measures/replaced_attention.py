"""Fragility: how much the output changes if the attention weights are permuted or made uniform.

The weights are replaced in the rows that the reading selects, in all rows of its layer, or in all rows of every layer
of its stack (see `attnaudit.engine.attention_view.Extent`). Later layers are computed again from the changed states.
Sources: Jain & Wallace 2019, §4.2.1; Tutek & Šnajder 2020.
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

#: Number of permutations per instance (Jain & Wallace 2019).
PERMUTATIONS = 100
#: Number of permutations per instance if whole layers are permuted. It is smaller, because each permutation needs a
#: whole pass of the model.
LAYER_PERMUTATIONS = 10
EXTENTS: tuple[Extent, ...] = ("reading", "layer", "everywhere.live", "everywhere.frozen")


def extent_of(text: str) -> Extent:
    """Parse the argument of `permutation` and `uniform`: a value of `Extent`, or "" for "reading".

    Raises:
        CheckError: the text is not such a value.
    """
    extent = next((extent for extent in EXTENTS if extent == (text or "reading")), None)
    if extent is None:
        raise CheckError(f"unknown place '{text}' to replace attention weights at. {nearest(text, EXTENTS)}")
    return extent


def ascending(draws: Floats) -> Integers:
    """Return the order that sorts each row of random numbers, as `np.argsort` does, but faster for short rows.

    In short rows, each number and its position are packed into one integer, because sorting integers is faster than an
    argsort.

    Args:
        draws: (R, n) random numbers in [0, 1). They must be multiples of 2^-53, as those of numpy's generators are.

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
    """Draw random permutations of the real tokens of each instance.

    The permutations of an instance depend only on the seed of the audit, the id and the number of real tokens.

    Args:
        view: B instances.
        count: number of permutations per instance.

    Returns:
        (B, count, T) permuted positions. Special tokens and padding stay in place.
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
    """Return a mask (B,), True for instances without attention on real tokens, so that nothing can be replaced."""
    return (view.attention.isnan() & view.real).any(1)


@measure("permutation", argument=extent_of)
def permutation(view: AttentionView, request: Request) -> Columns:
    """Return how much the output changes under random permutations of the attention weights.

    The columns are NaN for instances without attention on real tokens:

    * `.tvd`: total variation between the output under a permutation and the original output; the median over the
      permutations.
    * `.predicted`: index of the predicted class under each permutation.
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
    # The quantile is the mean of the two middle values, as in the published code. torch.median returns the lower one.
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
    """Return how much the output changes if each head's weight on real tokens is distributed over them equally.

    The columns are NaN for instances without attention on real tokens:

    * `.tvd`: total variation between the output under uniform weights and the original output.
    * `.predicted`: index of the predicted class under uniform weights.
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
