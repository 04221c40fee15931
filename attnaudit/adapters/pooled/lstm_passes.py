"""Passes through an LSTM layer that are faster than PyTorch's, and so are their gradients with respect to the inputs.

Texts contain the same words again and again, so the contributions of the inputs to the gates are computed once for each
different token. Padding is not read at all. PyTorch's backward pass through an LSTM also computes the gradients of the
weights, which an audit does not need.

The tokens of a batch are packed as in `torch.nn.utils.rnn.PackedSequence`: first the first token of every row, then the
second token of every row that has one, and so on. Longer rows come first.

Shapes: B rows, T tokens (padded), N tokens of all rows together, U different tokens, d features of an embedding, h
features of one direction, m features of a state (m = h or 2h).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnaudit.adapters.pooled.lstm_layers import Layer, cells_of, gate_parameters
from attnaudit.adapters.pooled.ordered_tokens import in_order, reordered

#: Number of tokens in one matrix product. Its factors then stay in the processor's cache.
TOKENS_PER_PRODUCT = 1024
#: Number of tokens whose inputs are compared at once, for the same reason.
TOKENS_COMPARED = 256
#: Nanoseconds: of one multiplication in a matrix product, and by how much a pass takes longer than PyTorch's, for each
#: feature of a state and for each step. The first and the last were measured on an AMD EPYC processor. The second is a
#: cautious choice: on an Intel Xeon, a feature takes no longer than in PyTorch's pass.
PER_PRODUCT, PER_FEATURE, PER_STEP = 1 / 47, 2.0, 50_000


def can_run(layer: Layer | None, embeddings: Tensor, mask: Tensor, ids: Tensor) -> bool:
    """Return whether to replace a pass through an encoder by `packed_states`.

    This is possible on a CPU, if gradients with respect to the weights are not needed. If no gradients are needed at
    all, PyTorch's own pass is faster for few rows, few features, or few words that occur again.

    Args:
        layer: The LSTM layer of the encoder; None if it has none.
        embeddings: (B, T, d) inputs of the layer.
        mask: (B, T) mask, True on tokens.
        ids: (B, T) token ids.
    """
    if layer is None or embeddings.device.type != "cpu":
        return False
    modules = layer if isinstance(layer, tuple) else (layer,)
    if any(module.training or any(p.requires_grad for p in module.parameters()) for module in modules):
        return False
    if torch.is_grad_enabled() and embeddings.requires_grad:
        return True
    tokens, h = ids[mask], modules[0].hidden_size
    saved = (len(tokens) - len(torch.unique(tokens))) * embeddings.shape[2] * 4 * h * PER_PRODUCT
    added = len(tokens) * h * PER_FEATURE + mask.shape[1] * PER_STEP
    return saved > 1.1 * added


def packed_states(layer: Layer, embeddings: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    """Return the states of an LSTM layer. Only first derivatives with respect to the embeddings are defined.

    Args:
        layer: The LSTM layer.
        embeddings: (B, T, d) inputs of the layer.
        mask: (B, T) mask, True on tokens.
        ids: (B, T) token ids. Tokens with the same id usually have the same embedding.

    Returns:
        (B, T, m) states; zero on padding.
    """
    count, width = mask.shape
    counts, places = _packing(mask)
    if not (torch.is_grad_enabled() and embeddings.requires_grad):
        return _states_without_gradients(layer, embeddings, ids, counts, places)
    tokens = torch.arange(len(places[0]), device=mask.device)
    packed = _Selection.apply(embeddings.flatten(0, 1), places[0])  # type: ignore[no-untyped-call]
    distinct, number = _distinct(packed.detach(), ids.flatten()[places[0]], tokens)
    parts = []
    for (lstm, suffix, is_backward), place in zip(cells_of(layer), places, strict=False):
        input_weights, recurrent, bias = gate_parameters(lstm, suffix)
        with torch.no_grad():
            gates = _product(distinct, input_weights.T, bias)
        if not is_backward:
            hidden = _Direction.apply(packed, gates[number], counts, input_weights, recurrent)  # type: ignore[no-untyped-call]
        else:
            token_at = tokens.new_empty(count * width)
            token_at[places[0]] = tokens
            read = token_at[place]
            token_at[place] = tokens
            written = token_at[places[0]]
            inputs = reordered(packed, read, written)
            hidden = _Direction.apply(inputs, gates[number[read]], counts, input_weights, recurrent)  # type: ignore[no-untyped-call]
            hidden = reordered(hidden, written, read)
        parts.append(hidden)
    states = _Placement.apply(torch.cat(parts, dim=1), places[0], count * width)  # type: ignore[no-untyped-call]
    return cast(Tensor, states).view(count, width, -1)


def _packing(mask: Tensor) -> tuple[list[int], tuple[Tensor, Tensor]]:
    """Return how the tokens of a batch are packed, given its mask (B, T).

    Returns:
        The number of tokens that are read in each step; and for each of the two directions, the places (N,) of the
        tokens in the flattened batch, in the order in which this direction reads them.
    """
    width = mask.shape[1]
    order, lengths = in_order(mask)
    lengths, by_length = lengths.sort(descending=True, stable=True)
    steps = torch.arange(int(lengths[0]) if len(mask) else 0, device=mask.device)
    reads = steps[:, None] < lengths
    step, rank = reads.nonzero(as_tuple=True)
    row = by_length[rank]
    backwards = row * width + order[row, lengths[rank] - 1 - step]
    return reads.sum(1).tolist(), (row * width + order[row, step], backwards)


def _states_without_gradients(
    layer: Layer, embeddings: Tensor, ids: Tensor, counts: Sequence[int], places: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the states (B, T, m), computed without storing what a backward pass needs.

    Only the values of one step are in memory at once, and each state is written to its final place. The processor's
    cache then holds all values of a step.
    """
    inputs = embeddings.detach().flatten(0, 1)
    distinct, number = _distinct(inputs, ids.flatten()[places[0]], places[0])
    number_at = number.new_empty(len(inputs))
    number_at[places[0]] = number
    cells = cells_of(layer)
    h = cells[0][0].hidden_size
    states = inputs.new_zeros(len(inputs), h * len(cells))
    most = counts[0] if counts else 0
    buffer = inputs.new_empty(most, 4 * h)
    hidden, cell, following = (inputs.new_empty(most, h) for _ in range(3))
    for part, place, (lstm, suffix, _) in zip(torch.split(states, h, dim=1), places, cells, strict=False):
        input_weights, recurrent, bias = gate_parameters(lstm, suffix)
        gates, numbers = _product(distinct, input_weights.T, bias), number_at[place]
        for count, stop in zip(counts, accumulate(counts), strict=True):
            now = slice(stop - count, stop)
            step = torch.index_select(gates, 0, numbers[now], out=buffer[:count])
            if now.start:
                step.addmm_(hidden[:count], recurrent)
            step[:, : 3 * h].sigmoid_()
            after = torch.mul(step[:, h : 2 * h], step[:, 3 * h :].tanh_(), out=following[:count])
            if now.start:
                after.addcmul_(step[:, 2 * h : 3 * h], cell[:count])
            state = torch.tanh(after, out=hidden[:count]).mul_(step[:, :h])
            part.index_copy_(0, place[now], state)
            cell, following = following, cell
    return states.view(*ids.shape, -1)


def _distinct(inputs: Tensor, ids: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return different inputs (U, d), and for each token the number (N,) of the one that it has.

    Args:
        inputs: (P, d) inputs.
        ids: (N,) token ids. If tokens with the same id have different inputs, all inputs count as different.
        places: (N,) place of each token in `inputs`.
    """
    unique, number = torch.unique(ids, return_inverse=True)
    some = places.new_empty(len(unique))
    some[number] = places
    distinct = inputs.index_select(0, some)
    for its_places, its_numbers in zip(
        torch.split(places, TOKENS_COMPARED), torch.split(number, TOKENS_COMPARED), strict=True
    ):
        if not torch.equal(distinct.index_select(0, its_numbers), inputs.index_select(0, its_places)):
            return inputs.index_select(0, places), torch.arange(len(ids), device=ids.device)
    return distinct, number


def _product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rows @ matrix + bias, computed for a few rows at a time."""
    product = rows.new_empty(len(rows), matrix.shape[1])
    for some, out in zip(torch.split(rows, TOKENS_PER_PRODUCT), torch.split(product, TOKENS_PER_PRODUCT), strict=True):
        if bias is None:
            torch.mm(some, matrix, out=out)
        else:
            torch.addmm(bias, some, matrix, out=out)
    return product


class _Selection(torch.autograd.Function):
    """Select different entries of the first dimension."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.length = len(values)
        return values.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        (gradient,) = gradients
        return gradient.new_zeros(ctx.length, *gradient.shape[1:]).index_copy_(0, places, gradient), None


class _Placement(torch.autograd.Function):
    """Store entries at different places of a longer array of zeros."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, length: int) -> Tensor:
        ctx.save_for_backward(places)
        return values.new_zeros(length, *values.shape[1:]).index_copy_(0, places, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradients[0].index_select(0, places), None, None


class _Direction(torch.autograd.Function):
    """One direction of the layer, on packed tokens. The order of the gates is output, input, forget, cell.

    Args:
        inputs: (N, d) inputs. Their values are not read, because `gates` contains their contributions.
        gates: (N, 4h) contributions of the inputs and biases to the gates. They are overwritten.
        counts: Number of tokens that are read in each step.
        input_weights: (4h, d) weights from an input to the gates.
        recurrent: (h, 4h) weights from a hidden state to the gates.

    Returns:
        (N, h) hidden states.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, gates: Tensor, counts: Sequence[int], input_weights: Tensor, recurrent: Tensor
    ) -> Tensor:
        h = len(recurrent)
        hidden, cells, squashed = (gates.new_empty(len(gates), h) for _ in range(3))
        before = slice(0, 0)
        for count, stop in zip(counts, accumulate(counts), strict=True):
            now = slice(stop - count, stop)
            before = slice(before.start, before.start + count)
            step, cell = gates[now], cells[now]
            if now.start:
                step.addmm_(hidden[before], recurrent)
            step[:, : 3 * h].sigmoid_()
            torch.mul(step[:, h : 2 * h], step[:, 3 * h :].tanh_(), out=cell)
            if now.start:
                cell.addcmul_(step[:, 2 * h : 3 * h], cells[before])
            torch.mul(torch.tanh(cell, out=squashed[now]), step[:, :h], out=hidden[now])
            before = now
        ctx.save_for_backward(gates, cells, squashed, input_weights, recurrent)
        ctx.counts = counts
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        gates, cells, squashed, input_weights, recurrent = ctx.saved_tensors
        at_hidden, to_gates = gradients[0].clone(), recurrent.T.contiguous()
        output_gate, input_gate, forget_gate, candidate = gates.chunk(4, dim=1)
        h = len(recurrent)
        at_gates = torch.empty_like(gates)
        torch.mul(squashed * output_gate, 1 - output_gate, out=at_gates[:, :h])
        torch.mul(candidate * input_gate, 1 - input_gate, out=at_gates[:, h : 2 * h])
        torch.mul(forget_gate, 1 - forget_gate, out=at_gates[:, 2 * h : 3 * h])
        torch.mul(input_gate, 1 - candidate.square(), out=at_gates[:, 3 * h :])
        to_cell = output_gate * (1 - squashed.square())
        at_cell = cells.new_zeros(max(ctx.counts, default=0), h)
        stops = list(accumulate(ctx.counts))
        after = slice(0, 0)
        for index in range(len(stops) - 1, -1, -1):
            now, count = slice(stops[index] - ctx.counts[index], stops[index]), ctx.counts[index]
            later = after.stop - after.start
            at_hidden[now][:later].addmm_(at_gates[after], to_gates)
            cell = at_cell[:count].addcmul_(at_hidden[now], to_cell[now])
            at_gates[now, :h].mul_(at_hidden[now])
            at_gates[now, h:].view(count, 3, h).mul_(cell[:, None])
            if index:
                first = stops[index - 1] - ctx.counts[index - 1]
                at_gates[now, 2 * h : 3 * h].mul_(cells[first : first + count])
                cell.mul_(forget_gate[now])
            else:
                at_gates[now, 2 * h : 3 * h] = 0.0
            after = now
        return _product(at_gates, input_weights), None, None, None, None
