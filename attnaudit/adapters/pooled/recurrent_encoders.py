"""One LSTM layer, read in one direction or both: what inputs that lack some tokens share with the whole input.

A token that is taken away leaves the forward states before it and the backward states after it as they are, so only the
rest is computed again, for all variants of a batch together; and only until a state is that of the whole input again,
to rounding, from where on all others are.

Shapes: B instances, T tokens (padded), V variants, W tokens of the longest variant, d features of an embedding, m of a
hidden state, h of one direction (m = h or 2h).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from attnaudit.adapters.pooled.ordered_tokens import Ordered, at_places, in_order, moved_up
from attnaudit.errors import AdapterError

#: The layer: one LSTM, of one direction or two, or the forward and the backward one apart.
Layer = nn.LSTM | tuple[nn.LSTM, nn.LSTM]
#: Slopes below this are taken for zero: a CPU is slow with numbers too small for float32's exponent.
LOST = 1e-30
#: A pass over shared states holds one token of each variant at a time, and may have so many times the variants.
STEPPED = 8
#: Steps after which the states of variants are compared with those of the whole input.
SETTLING = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """One direction over one batch, tokens to the left in the order in which it reads them, padding behind them.

    gates: (B, T, 4h) what the inputs and biases add to the gates: output (which torch has last), input, forget, cell.
    recurrent: (h, 4h) from a state to the gates. hidden, cell: (B, T + 1, h) states after so many tokens; after more
    tokens than the row has they mean nothing. inward: (4h, d) from the gates to the input.
    """

    gates: Tensor
    recurrent: Tensor
    hidden: Tensor
    cell: Tensor
    inward: Tensor


@dataclass(frozen=True, kw_only=True)
class SharedStates(Ordered):
    """A batch read once."""

    directions: tuple[Direction, ...]

    def width(self, rows: Tensor, keep: Tensor) -> Tensor:
        """(V,) as how many tokens of an ordinary pass a variant counts in one from shared states."""
        return (self.kept(rows, keep).sum(1) + STEPPED - 1) // STEPPED

    def without(self, rows: Tensor, keep: Tensor) -> Tensor:
        """As `states_without`."""
        return states_without(self, rows, keep)

    @cached_property
    def states(self) -> Tensor:
        """(B, T + 1, m) of the tokens in their order; the last row is zero, those of padding mean nothing."""
        with torch.no_grad():
            parts = [self._in_order(number, one.hidden[:, 1:]) for number, one in enumerate(self.directions)]
            return nn.functional.pad(torch.cat(parts, dim=-1), (0, 0, 0, 1))

    @cached_property
    def slopes(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """For each direction, tokens in their order and zero on padding: (B, T, h) its part of ∂‖h_p‖/∂h_p, and
        (B, T, 6, h) how one step passes changes on (see `_step_slopes`)."""
        inside = torch.arange(self.order.shape[1], device=self.order.device) < self.lengths[:, None]
        with torch.no_grad():
            states = [self._in_order(number, one.hidden[:, 1:]) for number, one in enumerate(self.directions)]
            norms = torch.cat(states, dim=-1).norm(dim=-1, keepdim=True)
            units = [torch.where(norms > 0, part / norms, 0.0) * inside[..., None] for part in states]
            steps = [self._in_order(number, _step_slopes(one)) for number, one in enumerate(self.directions)]
            return tuple((u, s * inside[..., None, None]) for u, s in zip(units, steps, strict=True))

    def _in_order(self, number: int, values: Tensor) -> Tensor:
        """(B, T, ...) of a direction, in the order in which it reads -> in the order of the tokens."""
        if not number:
            return values
        rows = torch.arange(len(values), device=values.device)[:, None]
        places = torch.arange(values.shape[1], device=values.device).expand_as(self.order)
        return values[rows, _mirrored(places, self.lengths)]


def refuse_other(layer: object) -> None:
    """Raises AdapterError for anything that is not one plain LSTM layer, or one for each direction."""
    pair = isinstance(layer, tuple)
    parts = layer if isinstance(layer, tuple) else (layer,)
    if not all(isinstance(part, nn.LSTM) for part in parts) or len(parts) != 1 + pair:
        raise AdapterError(
            f"lstm is {type(layer).__name__}; expected an nn.LSTM, or a pair of them: forwards, backwards."
        )
    for part in parts:
        if part.num_layers != 1 or part.proj_size or (pair and part.bidirectional):
            raise AdapterError(
                f"lstm has {part.num_layers} layers, bidirectional={part.bidirectional} and proj_size="
                f"{part.proj_size}; expected one layer without projection, and one direction in each of a pair. "
                "Leave lstm out: the audit gives the same numbers, more slowly."
            )


def share(layer: Layer, embeddings: Tensor, mask: Tensor) -> SharedStates:
    """embeddings (B, T, d), mask (B, T) -> their pass through the layer, without a graph."""
    with torch.no_grad():
        order, lengths = in_order(mask)
        steps = int(lengths.max()) if len(lengths) else 0
        directions = []
        for lstm, suffix, backwards in _cells(layer):
            read = _mirrored(order, lengths) if backwards else order
            directions.append(_direction(lstm, suffix, at_places(embeddings, read), steps))
    return SharedStates(order=order, lengths=lengths, directions=tuple(directions))


def _cells(layer: Layer) -> list[tuple[nn.LSTM, str, bool]]:
    """(module, suffix of its parameters, whether it reads backwards)."""
    if isinstance(layer, tuple):
        return [(layer[0], "_l0", False), (layer[1], "_l0", True)]
    return [(layer, "_l0", False), (layer, "_l0_reverse", True)][: 1 + layer.bidirectional]


def _mirrored(values: Tensor, lengths: Tensor) -> Tensor:
    """(N, T) the first entries of each row in reverse, the rest in place."""
    places = torch.arange(values.shape[1], device=values.device).expand_as(values)
    ends = lengths[:, None]
    return values.gather(1, torch.where(places < ends, ends - 1 - places, places))


def _direction(lstm: nn.LSTM, suffix: str, taken: Tensor, steps: int) -> Direction:
    def weight(name: str) -> Tensor:
        found: Tensor = getattr(lstm, name + suffix).detach()
        taken, forgotten, candidate, shown = found.chunk(4)
        return torch.cat([shown, taken, forgotten, candidate])

    inward, recurrent = weight("weight_ih"), weight("weight_hh").T.contiguous()
    bias = weight("bias_ih") + weight("bias_hh") if lstm.bias else None
    gates = nn.functional.linear(taken, inward, bias)
    states = taken.new_zeros(2, taken.shape[0], taken.shape[1] + 1, lstm.hidden_size)
    hidden, cell = states[:, :, 0].clone()
    for t in range(steps):
        _step(gates[:, t].clone(), hidden, cell, recurrent)
        states[0, :, t + 1], states[1, :, t + 1] = hidden, cell
    return Direction(gates=gates, recurrent=recurrent, hidden=states[0], cell=states[1], inward=inward)


def _step(gates: Tensor, hidden: Tensor, cell: Tensor, recurrent: Tensor) -> None:
    """gates (N, 4h) of the input, which are overwritten, and states (N, h), which become the next ones."""
    h = hidden.shape[1]
    gates.addmm_(hidden, recurrent)
    opened = gates[:, : 3 * h].sigmoid_()
    cell.mul_(opened[:, 2 * h :]).addcmul_(opened[:, h : 2 * h], gates[:, 3 * h :].tanh_())
    torch.tanh(cell, out=hidden).mul_(opened[:, :h])


def states_without(shared: SharedStates, rows: Tensor, keep: Tensor) -> Tensor:
    """rows (V,), keep (V, T) which positions stay -> (V, W, m) states of those tokens read alone, moved up in their
    order, zero on padding."""
    kept = shared.kept(rows, keep)
    order, inside = moved_up(kept)
    (variants, width), length, lengths = order.shape, kept.shape[1], kept.sum(1)
    token = torch.where(inside, order, length) + rows[:, None] * (length + 1)
    states = shared.states.flatten(0, 1).index_select(0, token.flatten())
    with torch.no_grad():
        for part, direction in zip(states.chunk(len(shared.directions), dim=1), shared.directions, strict=True):
            target = torch.arange(width, device=kept.device).expand_as(order)
            read = kept
            if direction is not shared.directions[0]:
                read = _mirrored(kept, shared.lengths[rows])
                order, inside = moved_up(read)
                target = torch.where(inside, lengths[:, None] - 1 - target, target)
            target = target + torch.arange(variants, device=kept.device)[:, None] * width
            _read_on(direction, rows, shared.lengths[rows], read, order, target, part)
    return states.view(variants, width, -1)


def _read_on(
    direction: Direction, rows: Tensor, ends: Tensor, read: Tensor, order: Tensor, target: Tensor, states: Tensor
) -> None:
    """Put states that differ from those of the whole input in their place among states (V·W, h), of one direction.

    ends (V,): tokens of the whole input. read (V, T): which of them a variant reads; order, target (V, W): where those
    that it reads one after another stand in its own order, and among the states. Variants with most left to read come
    first, so that those that still read are always the first ones."""
    width, length = order.shape[1], read.shape[1]
    places = torch.arange(length, device=read.device)
    lengths = read.sum(1)
    same = torch.where(read, length, places).amin(1)
    last_gone = torch.where(read | (places >= ends[:, None]), -1, places).amax(1)

    left, first = (lengths - same).sort(descending=True, stable=True)
    steps = torch.arange(int(left[0]) if len(left) else 0, device=read.device)
    at = (same[first, None] + steps).clamp_max(width - 1)
    place, to = (table[first].gather(1, at).T.contiguous() for table in (order, target))
    rows, last_gone = rows[first], last_gone[first]
    gates, whole_hidden, whole_cell = (one.flatten(0, 1) for one in (direction.gates, direction.hidden, direction.cell))
    hidden, cell = direction.hidden[rows, same[first]], direction.cell[rows, same[first]]
    rounding = torch.finfo(hidden.dtype).eps
    active = (left[:, None] > steps).sum(0).tolist()
    room = gates.new_empty(len(rows), gates.shape[1])
    for j in range(len(steps)):
        if (count := active[j]) < len(rows):
            rows, hidden, cell = rows[:count], hidden[:count], cell[:count]
        here = place[j, :count]
        taken = torch.index_select(gates, 0, here + rows * length, out=room[:count])
        _step(taken, hidden, cell, direction.recurrent)
        states.index_copy_(0, to[j, :count], hidden)
        if j % SETTLING == SETTLING - 1:
            then = here + rows * (length + 1) + 1
            apart = (hidden - whole_hidden.index_select(0, then)).abs_().amax(1)
            apart = apart.maximum((cell - whole_cell.index_select(0, then)).abs_().amax(1))
            going = ((apart > rounding) | (here < last_gone[:count])).nonzero()[:, 0]
            if len(going) < count:
                rows, hidden, cell, last_gone, left = (one[going] for one in (rows, hidden, cell, last_gone, left))
                place, to = place[:, going], to[:, going]
                active = (left[:, None] > steps).sum(0).tolist()


def _step_slopes(direction: Direction) -> Tensor:
    """(B, T, 6, h): what ∂/∂h of a step is multiplied by to be added to its ∂/∂c; what ∂/∂c is multiplied by to be
    the slope of the input, forget and cell gates; what ∂/∂h is multiplied by to be that of the output gate; and what
    ∂/∂c is multiplied by for the step before."""
    gates = direction.gates + direction.hidden[:, :-1] @ direction.recurrent
    shown, taken, forgotten, candidate = gates.chunk(4, dim=-1)
    shown, taken, forgotten, candidate = shown.sigmoid(), taken.sigmoid(), forgotten.sigmoid(), candidate.tanh()
    before, after = direction.cell[:, :-1], direction.cell[:, 1:].tanh()
    return torch.stack(
        [
            shown * (1 - after.square()),
            candidate * taken * (1 - taken),
            before * forgotten * (1 - forgotten),
            taken * (1 - candidate.square()),
            after * shown * (1 - shown),
            forgotten,
        ],
        dim=2,
    )


def influence(shared: SharedStates, positions: slice) -> Tensor:
    """(B, P, T) ‖∂‖h_p‖/∂E_i‖ for each position p of the slice and i; zero where either is padding."""
    width = shared.order.shape[1]
    rank = shared.order.argsort(1)
    wanted = rank[:, positions]
    inside = wanted < shared.lengths[:, None]
    if not bool(inside.any()):
        return torch.zeros((*wanted.shape, width), device=wanted.device)
    first, last = int(wanted[inside].min()), int(wanted[inside].max())
    with torch.no_grad():
        found, own = torch.zeros(()), torch.zeros(())
        for number, direction in enumerate(shared.directions):
            squares, at_itself = _passed_back(direction, *shared.slopes[number], range(first, last + 1), bool(number))
            found, own = found + squares, own + at_itself
        places = torch.arange(last + 1 - first, device=wanted.device)
        found[places, :, places + first] = own.square().sum(-1)
        at = torch.where(inside, wanted - first, 0)
        rows = torch.arange(len(at), device=at.device)[:, None]
        chosen = found[at, rows].gather(2, rank[:, None].expand(-1, at.shape[1], -1))
        return chosen.sqrt() * inside[..., None]


def _passed_back(
    direction: Direction, units: Tensor, steps: Tensor, tokens: range, upwards: bool
) -> tuple[Tensor, Tensor]:
    """(P, B, T) squared norms of the slopes at each input of the norms at these tokens, through one direction, and
    (P, B, d) the slopes at the tokens themselves. upwards: the direction reads from the last token to the first, so its
    slopes travel from a token to later ones."""
    (rows, width, _, h), count = steps.shape, len(tokens)
    outward = torch.cat([direction.recurrent.T, direction.inward], dim=1)
    squares, own = units.new_zeros(count, rows, width), units.new_zeros(count, rows, direction.inward.shape[1])
    at_hidden, at_cell = units.new_zeros(count, rows, h), units.new_zeros(count, rows, h)
    for t in range(tokens.start, width) if upwards else range(tokens.stop - 1, -1, -1):
        active = slice(0, min(t - tokens.start + 1, count)) if upwards else slice(max(t - tokens.start, 0), count)
        here = t - tokens.start if t in tokens else None
        if here is not None:
            at_hidden[here] = units[:, t]
        hidden, cell, step = at_hidden[active], at_cell[active], steps[:, t]
        cell.addcmul_(hidden, step[:, 0])
        gates = units.new_empty(len(cell), rows, 4, h)
        torch.mul(cell[:, :, None], step[:, 1:4], out=gates[:, :, 1:])
        torch.mul(hidden, step[:, 4], out=gates[:, :, 0])
        passed = (gates.view(-1, 4 * h) @ outward).view(len(cell), rows, -1)
        at_input = passed[..., h:]
        squares[active, :, t] = at_input.square().sum(-1)
        if here is not None:
            own[here] = at_input[-1 if upwards else 0]
        hidden.copy_(passed[..., :h])
        cell.mul_(step[:, 5])
        if t % 8 == 0:
            hidden.masked_fill_(hidden.abs() < LOST, 0.0)
            cell.masked_fill_(cell.abs() < LOST, 0.0)
    return squares, own
