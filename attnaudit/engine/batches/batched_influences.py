"""The influence of tokens on hidden states, computed for many hidden states in one backward pass.

One backward pass for each position of a batch spends most of its time on padding: the passes of the last positions of
the longest row also run all shorter rows. Here, rows of the same length run in a forward pass of their own, which costs
little compared with the backward passes. These passes then have no padding.

Shapes: B instances, T tokens (padded), P positions, R rows of one length, W tokens of such a row (padded), n real
tokens of it, G numbers whose gradients are computed together, d features of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT
from attnaudit.engine.batches.batch import Batch
from attnaudit.engine.batches.clean_pass import differentiable

#: Number of gradients that are converted to float64 at once. They fit in the processor's cache.
NUMBERS_AT_ONCE = 2**17


def batched_influences(batch: Batch, states_of: Callable[[Batch], Tensor], positions: slice) -> Tensor:
    """Compute how much the hidden states at P positions depend on each token.

    Args:
        batch: The batch. Its adapter must declare `batches_gradients`.
        states_of: Returns the hidden states (R, W, m) of the clean pass of a batch, with their autograd graph.
        positions: The P positions p whose hidden states are examined.

    Returns:
        (B, P, T) Euclidean norms ‖∂‖h_p‖/∂E_i‖, float64, where h_p is the hidden state at position p and E_i is the
        embedding of token i. Zero where i is padding or no unit starts at p.
    """
    mask = batch.inputs.mask[TEXT]
    first, stop, _ = positions.indices(mask.shape[1])
    result = torch.zeros(len(mask), stop - first, mask.shape[1], dtype=torch.float64, device=mask.device)
    lengths = mask.sum(1)
    for length in torch.unique(lengths).tolist():
        rows = (lengths == length).nonzero()[:, 0].tolist()
        places = mask[rows].nonzero()[:, 1].view(len(rows), length)
        starts = batch.real[rows].gather(1, places) & (places >= first) & (places < stop)
        tokens = starts.any(0).nonzero()[:, 0]
        if not len(tokens):
            continue
        alone = batch if len(rows) == len(mask) else _of_rows(batch, rows)
        own_places = alone.inputs.mask[TEXT].nonzero()[:, 1].view(len(rows), length)
        norms = _gradient_norms(alone, states_of(alone), own_places[:, tokens])
        norms = norms.gather(2, own_places.expand(len(tokens), -1, -1))
        for number, row in enumerate(rows):
            its = starts[number, tokens]
            at = places[number, tokens[its]] - first
            result[row, at[:, None], places[number]] = norms[its, number]
    return result


def squared_norms(gradients: Tensor) -> Tensor:
    """Return the squared Euclidean norms (N, ...) of gradients (N, ..., d), in float64."""
    rows = max(1, NUMBERS_AT_ONCE // max(1, gradients[0].numel()))
    return torch.cat([part.double().square().sum(-1) for part in torch.split(gradients, rows)])


def _of_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return a batch of some of the instances, without the padding of the others. It reports no progress."""
    return Batch(
        batch.adapter,
        [batch.instances[row] for row in rows],
        [batch.positions[row] for row in rows],
        seed=batch.seed,
        keep_graph=True,
        budget=batch.budget,
        pass_counts=batch.pass_counts,
        unit=batch.unit,
        scopes=batch.scopes,
    )


def _gradient_norms(batch: Batch, states: Tensor, places: Tensor) -> Tensor:
    """Return the norms (G, R, W) of the gradients of ‖h_p‖ at the embeddings.

    Args:
        batch: A batch of R rows.
        states: (R, W, m) hidden states of its clean pass.
        places: (R, G) positions p. Position g of every row belongs to the same gradient.
    """
    together = max(1, batch.budget // states[..., 0].numel())
    found = []
    with differentiable(batch.device):
        # norm() has gradient 0 at 0, where the square root of a sum of squares would give NaN.
        norms = states.to(torch.promote_types(states.dtype, torch.float32)).norm(dim=-1)
        for part in torch.split(places.T, together):
            batch.count("backward", "backward_rows", part.numel())
            selected = torch.zeros(*part.shape, norms.shape[1]).to(norms).scatter(2, part[..., None], 1.0)
            (gradients,) = torch.autograd.grad(
                norms, batch.embeddings[TEXT], selected, is_grads_batched=True, retain_graph=True
            )
            found.append(squared_norms(gradients).sqrt())
    return torch.cat(found)
