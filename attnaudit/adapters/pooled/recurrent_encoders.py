"""Reuse of hidden states when tokens are removed, for one LSTM layer that reads in one direction or both.

Removing a token changes neither the forward states before it nor the backward states after it. Only the other states
are recomputed, for all variants of a batch together. After the last removed token, the states of a variant are computed
only until one of them equals the state of the whole input, up to rounding. All later states are then equal too.

Shapes: B instances, T tokens (padded), V variants, W tokens of the longest variant, P positions, d features of an
embedding, m features of a hidden state, h features of one direction (m = h or 2h).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from attnaudit.adapters.pooled.lstm_layers import Layer, cells_of, gate_parameters
from attnaudit.adapters.pooled.ordered_tokens import OrderedTokens, in_order, pack, select_positions

#: Gradients below this magnitude are set to zero, because CPUs are slow with numbers below float32's normal range.
SMALLEST_GRADIENT = 1e-30
#: How many times more variants a batch can have if states are reused. A pass that reuses states needs less memory than
#: an ordinary pass, because it holds only one token of each variant at a time.
VARIANTS_PER_TOKEN = 8
#: Number of steps between two comparisons of the states of variants with those of the whole input.
COMPARISON_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """The states of one batch in one direction of the layer.

    Tokens are in the order in which this direction reads them, followed by padding.

    Attributes:
        gates: (B, T, 4h) contribution of inputs and biases to the gates. The order of the gates is output, input,
            forget, cell. In torch, the output gate is last.
        recurrent: (h, 4h) weights from a hidden state to the gates.
        hidden: (B, T + 1, h) hidden states after 0, 1, ..., T tokens; arbitrary after more tokens than the row has.
        cell: (B, T + 1, h) cell states after 0, 1, ..., T tokens; arbitrary after more tokens than the row has.
        input_weights: (4h, d) weights from the input to the gates.
    """

    gates: Tensor
    recurrent: Tensor
    hidden: Tensor
    cell: Tensor
    input_weights: Tensor


@dataclass(frozen=True, kw_only=True)
class SharedStates(OrderedTokens):
    """The states of a batch in every direction of the layer. They can be reused when tokens are removed.

    Attributes:
        directions: One entry per direction: forward, then backward if the layer has two directions.
        later: States that are computed when they are first needed, by name.
    """

    directions: tuple[Direction, ...]
    later: dict[str, object] = field(default_factory=dict, compare=False)

    def variant_cost(self, rows: Tensor, keep: Tensor) -> Tensor:
        """Return the cost of computing each variant with `states_without`.

        Args:
            rows: (V,) index of the row that each variant is made from.
            keep: (V, T) True at the positions that the variant keeps.

        Returns:
            (V,) number of tokens that an ordinary pass processes with the same memory.
        """
        return (self.kept(rows, keep).sum(1) + VARIANTS_PER_TOKEN - 1) // VARIANTS_PER_TOKEN

    def states_without(self, rows: Tensor, keep: Tensor) -> Tensor:
        """Call the function `states_without` for this batch."""
        return states_without(self, rows, keep)

    @cached_property
    def states(self) -> Tensor:
        """(B, T + 1, m) states of the tokens in order; arbitrary on padding.

        The last entry of each row is zero. Lookups of padding use this entry.
        """
        with torch.no_grad():
            parts = [self.in_token_order(n, direction.hidden[:, 1:]) for n, direction in enumerate(self.directions)]
            return nn.functional.pad(torch.cat(parts, dim=-1), (0, 0, 0, 1))

    @cached_property
    def gradients(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """For each direction, two tensors for the backward pass, in token order and zero on padding.

        The first tensor (B, T, h) is the direction's part of ∂‖h_p‖/∂h_p, where h_p is the state of token p. The second
        tensor (B, T, 6, h) contains the factors of one step (see `_step_factors`).
        """
        real = torch.arange(self.order.shape[1], device=self.order.device) < self.lengths[:, None]
        with torch.no_grad():
            states = [self.in_token_order(n, direction.hidden[:, 1:]) for n, direction in enumerate(self.directions)]
            norms = torch.cat(states, dim=-1).norm(dim=-1, keepdim=True)
            units = [torch.where(norms > 0, part / norms, 0.0) * real[..., None] for part in states]
            steps = [self.in_token_order(n, _step_factors(direction)) for n, direction in enumerate(self.directions)]
            return tuple((u, s * real[..., None, None]) for u, s in zip(units, steps, strict=True))

    def in_token_order(self, direction: int, values: Tensor) -> Tensor:
        """Reorder values (B, T, ...) of a direction (0 or 1) from its reading order to the order of the tokens."""
        if not direction:
            return values
        rows = torch.arange(len(values), device=values.device)[:, None]
        ranks = torch.arange(values.shape[1], device=values.device).expand_as(self.order)
        return values[rows, reversed_rows(ranks, self.lengths)]


def share(layer: Layer, embeddings: Tensor, mask: Tensor) -> SharedStates:
    """Run the layer on a batch once, without gradients, and return its states.

    Args:
        layer: The LSTM layer.
        embeddings: (B, T, d) inputs of the layer.
        mask: (B, T) mask, True on tokens.
    """
    with torch.no_grad():
        order, lengths = in_order(mask)
        steps = int(lengths.max()) if len(lengths) else 0
        directions = []
        for lstm, suffix, is_backward in cells_of(layer):
            reading_order = reversed_rows(order, lengths) if is_backward else order
            directions.append(_read(lstm, suffix, select_positions(embeddings, reading_order), steps))
    return SharedStates(order=order, lengths=lengths, directions=tuple(directions))


def reversed_rows(values: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first lengths[n] entries of each row n of values (N, T). The other entries stay in place."""
    places = torch.arange(values.shape[1], device=values.device).expand_as(values)
    ends = lengths[:, None]
    return values.gather(1, torch.where(places < ends, ends - 1 - places, places))


def _read(lstm: nn.LSTM, suffix: str, inputs: Tensor, steps: int) -> Direction:
    """Run one direction of an LSTM over the first `steps` inputs, and return its states.

    Args:
        lstm: The LSTM.
        suffix: Suffix of the parameter names of this direction.
        inputs: (B, T, d) inputs in the order in which this direction reads them.
        steps: Number of inputs to read; the states after them stay zero.
    """
    input_weights, recurrent, bias = gate_parameters(lstm, suffix)
    gates = nn.functional.linear(inputs, input_weights, bias)
    states = inputs.new_zeros(2, inputs.shape[0], inputs.shape[1] + 1, lstm.hidden_size)
    hidden, cell = states[:, :, 0].clone()
    for t in range(steps):
        _step(gates[:, t].clone(), hidden, cell, recurrent)
        states[0, :, t + 1], states[1, :, t + 1] = hidden, cell
    return Direction(gates=gates, recurrent=recurrent, hidden=states[0], cell=states[1], input_weights=input_weights)


def _step(gates: Tensor, hidden: Tensor, cell: Tensor, recurrent: Tensor) -> None:
    """Run one step of the LSTM in place.

    Args:
        gates: (N, 4h) contribution of the input and biases to the gates. It is overwritten.
        hidden: (N, h) hidden states. They are updated.
        cell: (N, h) cell states. They are updated.
        recurrent: (h, 4h) weights from a hidden state to the gates.
    """
    h = hidden.shape[1]
    gates.addmm_(hidden, recurrent)
    sigmoid_gates = gates[:, : 3 * h].sigmoid_()
    cell.mul_(sigmoid_gates[:, 2 * h :]).addcmul_(sigmoid_gates[:, h : 2 * h], gates[:, 3 * h :].tanh_())
    torch.tanh(cell, out=hidden).mul_(sigmoid_gates[:, :h])


def states_without(shared: SharedStates, rows: Tensor, keep: Tensor) -> Tensor:
    """Compute the states of variants: rows of the batch with some tokens removed.

    Args:
        shared: The states of the batch.
        rows: (V,) index of the row that each variant is made from.
        keep: (V, T) True at the positions that the variant keeps.

    Returns:
        (V, W, m) states of the kept tokens, in order; zero on padding. They equal the states of an input that has only
        these tokens.
    """
    kept = shared.kept(rows, keep)
    order, real = pack(kept)
    (variants, width), length, lengths = order.shape, kept.shape[1], kept.sum(1)
    tokens = torch.where(real, order, length) + rows[:, None] * (length + 1)
    states = shared.states.flatten(0, 1).index_select(0, tokens.flatten())
    with torch.no_grad():
        for part, direction in zip(states.chunk(len(shared.directions), dim=1), shared.directions, strict=True):
            target = torch.arange(width, device=kept.device).expand_as(order)
            reads = kept
            if direction is not shared.directions[0]:
                reads = reversed_rows(kept, shared.lengths[rows])
                order, real = pack(reads)
                target = torch.where(real, lengths[:, None] - 1 - target, target)
            target = target + torch.arange(variants, device=kept.device)[:, None] * width
            places, ends = torch.arange(length, device=kept.device), shared.lengths[rows]
            recompute(
                direction,
                rows,
                first=torch.where(reads, length, places).amin(1),
                last=torch.where(reads | (places >= ends[:, None]), -1, places).amax(1),
                lengths=lengths,
                order=order,
                inputs=order + rows[:, None] * length,
                target=target,
                states=part,
            )
    return states.view(variants, width, -1)


def recompute(
    direction: Direction,
    rows: Tensor,
    *,
    first: Tensor,
    last: Tensor,
    lengths: Tensor,
    order: Tensor,
    inputs: Tensor,
    target: Tensor,
    states: Tensor,
) -> None:
    """Recompute, in place, the states of one direction at which variants differ from their original rows.

    Variants are sorted by the number of tokens that remain to be read, so the unfinished variants always come first.

    Args:
        direction: The states of the whole rows in this direction.
        rows: (V,) index of the row that each variant is made from.
        first: (V,) number of tokens that a variant shares with its row before the first difference, in reading order;
            any larger number if there is no difference.
        last: (V,) place of the last difference in the row, in reading order; -1 if there is none.
        lengths: (V,) number of tokens of each variant.
        order: (V, W) places, in its row, of the tokens that each variant reads, in reading order.
        inputs: (V, W) indices of the contributions of these tokens to the gates, in the flattened (B·T, 4h) gates.
        target: (V, W) indices in `states` at which the states of these tokens are stored.
        states: (V·W, h) states to update.
    """
    width, length = order.shape[1], direction.gates.shape[1]
    first = torch.minimum(first, lengths)
    remaining, by_remaining = (lengths - first).sort(descending=True, stable=True)
    steps = torch.arange(int(remaining[0]) if len(remaining) else 0, device=rows.device)
    at = (first[by_remaining, None] + steps).clamp_max(width - 1)
    source, read, destination = (table[by_remaining].gather(1, at).T.contiguous() for table in (order, inputs, target))
    rows, last = rows[by_remaining], last[by_remaining]
    flattened = (values.flatten(0, 1) for values in (direction.gates, direction.hidden, direction.cell))
    gates, whole_hidden, whole_cell = flattened
    hidden = direction.hidden[rows, first[by_remaining]]
    cell = direction.cell[rows, first[by_remaining]]
    rounding = torch.finfo(hidden.dtype).eps
    active = (remaining[:, None] > steps).sum(0).tolist()
    buffer = gates.new_empty(len(rows), gates.shape[1])
    for j in range(len(steps)):
        if (count := active[j]) < len(rows):
            rows, hidden, cell = rows[:count], hidden[:count], cell[:count]
        input_gates = torch.index_select(gates, 0, read[j, :count], out=buffer[:count])
        _step(input_gates, hidden, cell, direction.recurrent)
        states.index_copy_(0, destination[j, :count], hidden)
        if j % COMPARISON_STEPS == COMPARISON_STEPS - 1:
            place = source[j, :count]
            whole = place + rows * (length + 1) + 1
            difference = (hidden - whole_hidden.index_select(0, whole)).abs_().amax(1)
            difference = difference.maximum((cell - whole_cell.index_select(0, whole)).abs_().amax(1))
            going = ((difference > rounding) | (place < last[:count])).nonzero()[:, 0]
            if len(going) < count:
                rows, hidden, cell = rows[going], hidden[going], cell[going]
                last, remaining = last[going], remaining[going]
                source, read, destination = source[:, going], read[:, going], destination[:, going]
                active = (remaining[:, None] > steps).sum(0).tolist()


def _step_factors(direction: Direction) -> Tensor:
    """Return the factors (B, T, 6, h) by which gradients are multiplied in the backward pass of one step.

    Let h be the hidden state and c the cell state after the step. In the order of the factors:

    - ∂/∂h times the first factor is added to ∂/∂c;
    - ∂/∂c times each of the next three factors is the gradient at the input gate, the forget gate and the cell gate;
    - ∂/∂h times the next factor is the gradient at the output gate;
    - ∂/∂c times the last factor is ∂/∂c of the preceding step.
    """
    gates = direction.gates + direction.hidden[:, :-1] @ direction.recurrent
    output_gate, input_gate, forget_gate, candidate = gates.chunk(4, dim=-1)
    output_gate, input_gate, forget_gate = output_gate.sigmoid(), input_gate.sigmoid(), forget_gate.sigmoid()
    candidate = candidate.tanh()
    before, after = direction.cell[:, :-1], direction.cell[:, 1:].tanh()
    return torch.stack(
        [
            output_gate * (1 - after.square()),
            candidate * input_gate * (1 - input_gate),
            before * forget_gate * (1 - forget_gate),
            input_gate * (1 - candidate.square()),
            after * output_gate * (1 - output_gate),
            forget_gate,
        ],
        dim=2,
    )


def influence(shared: SharedStates, positions: slice) -> Tensor:
    """Compute how much the hidden states at P positions depend on each token.

    Args:
        shared: The states of the batch.
        positions: The P positions p whose hidden states are examined.

    Returns:
        (B, P, T) Euclidean norms ‖∂‖h_p‖/∂E_i‖, where h_p is the hidden state at position p and E_i is the embedding of
        token i. Zero where p or i is padding.
    """
    width = shared.order.shape[1]
    rank = shared.order.argsort(1)
    requested = rank[:, positions]
    real = requested < shared.lengths[:, None]
    if not bool(real.any()):
        return torch.zeros((*requested.shape, width), device=requested.device)
    first, last = int(requested[real].min()), int(requested[real].max())
    with torch.no_grad():
        squares, own = torch.zeros(()), torch.zeros(())
        for n, direction in enumerate(shared.directions):
            tokens = range(first, last + 1)
            its_squares, its_own = _backward(direction, *shared.gradients[n], tokens, reads_backwards=bool(n))
            squares, own = squares + its_squares, own + its_own
        # At i = p, both directions contribute to the gradient, so their gradients must be added before the norm.
        places = torch.arange(last + 1 - first, device=requested.device)
        squares[places, :, places + first] = own.square().sum(-1)
        at = torch.where(real, requested - first, 0)
        rows = torch.arange(len(at), device=at.device)[:, None]
        selected = squares[at, rows].gather(2, rank[:, None].expand(-1, at.shape[1], -1))
        return selected.sqrt() * real[..., None]


def _backward(
    direction: Direction, units: Tensor, factors: Tensor, tokens: range, *, reads_backwards: bool
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of ‖h_p‖ with respect to all inputs, for P tokens p, through one direction.

    Args:
        direction: The states of the direction.
        units: (B, T, h) the direction's part of ∂‖h_p‖/∂h_p, where h_p is the state of token p.
        factors: (B, T, 6, h) the result of `_step_factors`, in token order.
        tokens: The P tokens p, as indices into the ordered tokens.
        reads_backwards: Whether the direction reads from the last token to the first. Gradients then pass from a token
            to the tokens after it.

    Returns:
        (P, B, T) squared norms of the gradients with respect to every input, and (P, B, d) gradients with respect to
        the input of token p itself.
    """
    (rows, width, _, h), count = factors.shape, len(tokens)
    to_state_and_input = torch.cat([direction.recurrent.T, direction.input_weights], dim=1)
    squares = units.new_zeros(count, rows, width)
    own = units.new_zeros(count, rows, direction.input_weights.shape[1])
    at_hidden, at_cell = units.new_zeros(count, rows, h), units.new_zeros(count, rows, h)
    for t in range(tokens.start, width) if reads_backwards else range(tokens.stop - 1, -1, -1):
        if reads_backwards:
            active = slice(0, min(t - tokens.start + 1, count))
        else:
            active = slice(max(t - tokens.start, 0), count)
        starting = t - tokens.start if t in tokens else None
        if starting is not None:
            at_hidden[starting] = units[:, t]
        hidden, cell, step = at_hidden[active], at_cell[active], factors[:, t]
        cell.addcmul_(hidden, step[:, 0])
        gates = units.new_empty(len(cell), rows, 4, h)
        torch.mul(cell[:, :, None], step[:, 1:4], out=gates[:, :, 1:])
        torch.mul(hidden, step[:, 4], out=gates[:, :, 0])
        passed = (gates.view(-1, 4 * h) @ to_state_and_input).view(len(cell), rows, -1)
        at_input = passed[..., h:]
        squares[active, :, t] = at_input.square().sum(-1)
        if starting is not None:
            own[starting] = at_input[-1 if reads_backwards else 0]
        hidden.copy_(passed[..., :h])
        cell.mul_(step[:, 5])
        if t % 8 == 0:
            hidden.masked_fill_(hidden.abs() < SMALLEST_GRADIENT, 0.0)
            cell.masked_fill_(cell.abs() < SMALLEST_GRADIENT, 0.0)
    return squares, own
