"""One LSTM layer, read in one direction or both: what inputs that lack some tokens share with the whole input.

A token that is taken away leaves the forward states before it and the backward states after it as they are, so only the
rest is computed again, for all variants of a batch together.

Shapes: B instances, T tokens (padded), V variants, W tokens of the longest variant, d features of an embedding, m of a
hidden state, h of one direction (m = h or 2h).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from attnaudit.errors import AdapterError

#: The layer: one LSTM, of one direction or two, or the forward and the backward one apart.
Layer = nn.LSTM | tuple[nn.LSTM, nn.LSTM]
#: Slopes below this are taken for zero: a CPU is slow with numbers too small for float32's exponent.
LOST = 1e-30
#: A pass over shared states holds one token of each variant at a time, and may have so many times the variants.
STEPPED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """One direction over one batch, tokens to the left in the order in which it reads them, padding behind them.

    gates: (B, T, 4h) what the inputs and biases add to the gates, in torch's order: input, forget, cell, output.
    recurrent: (h, 4h) from a state to the gates. hidden, cell: (B, T + 1, h) states after so many tokens; after more
    tokens than the row has they mean nothing. inward: (4h, d) from the gates to the input.
    """

    gates: Tensor
    recurrent: Tensor
    hidden: Tensor
    cell: Tensor
    inward: Tensor


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A batch read once. order: (B, T) positions of the tokens in their order, then padding. lengths: (B,)."""

    order: Tensor
    lengths: Tensor
    directions: tuple[Direction, ...]

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


def width(tokens: Tensor) -> Tensor:
    """tokens (V,) of variants -> (V,) as how many tokens of an ordinary pass they count in one from shared states."""
    return (tokens + STEPPED - 1) // STEPPED


def begin(layer: Layer, embeddings: Tensor, mask: Tensor) -> Begun:
    """embeddings (B, T, d), mask (B, T) -> their pass through the layer, without a graph."""
    with torch.no_grad():
        order = (~mask).to(torch.uint8).sort(dim=1, stable=True).indices
        lengths = mask.sum(1)
        steps = int(lengths.max()) if len(lengths) else 0
        directions = []
        for lstm, suffix, backwards in _cells(layer):
            read = _mirrored(order, lengths) if backwards else order
            taken = embeddings.gather(1, read[..., None].expand(-1, -1, embeddings.shape[-1]))
            directions.append(_direction(lstm, suffix, taken, steps))
    return Begun(order=order, lengths=lengths, directions=tuple(directions))


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
        return found

    gates = taken @ weight("weight_ih").T
    if lstm.bias:
        gates = gates + (weight("bias_ih") + weight("bias_hh"))
    recurrent = weight("weight_hh").T
    hidden = taken.new_zeros(taken.shape[0], taken.shape[1] + 1, lstm.hidden_size)
    cell = torch.zeros_like(hidden)
    for t in range(steps):
        hidden[:, t + 1], cell[:, t + 1] = _step(gates[:, t].clone(), hidden[:, t], cell[:, t], recurrent)
    return Direction(gates=gates, recurrent=recurrent, hidden=hidden, cell=cell, inward=weight("weight_ih"))


def _step(gates: Tensor, hidden: Tensor, cell: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor]:
    """gates (N, 4h) of the input, which are overwritten, and states (N, h) -> the next states."""
    h = hidden.shape[1]
    gates.addmm_(hidden, recurrent)
    taken = gates[:, : 2 * h].sigmoid_()
    cell = taken[:, h:] * cell
    cell.addcmul_(taken[:, :h], gates[:, 2 * h : 3 * h].tanh_())
    return gates[:, 3 * h :].sigmoid_() * cell.tanh(), cell


def kept_positions(begun: Begun, rows: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """rows (V,), keep (V, T) positions -> (V, W) positions of the tokens that stay, moved up in their order, and which
    of them are tokens, not padding."""
    kept = _kept(begun, rows, keep)
    order, inside = _moved_up(kept)
    return begun.order[rows].gather(1, order), inside


def _kept(begun: Begun, rows: Tensor, keep: Tensor) -> Tensor:
    """(V, T) which tokens stay, in their order and without padding."""
    places = torch.arange(keep.shape[1], device=keep.device)
    return keep.gather(1, begun.order[rows]) & (places < begun.lengths[rows, None])


def _moved_up(kept: Tensor) -> tuple[Tensor, Tensor]:
    lengths = kept.sum(1)
    width = max(1, int(lengths.max())) if len(kept) else 1
    order = (~kept).to(torch.uint8).sort(dim=1, stable=True).indices[:, :width]
    return order, torch.arange(width, device=kept.device) < lengths[:, None]


def states_without(begun: Begun, rows: Tensor, keep: Tensor) -> Tensor:
    """rows (V,), keep (V, T) which positions stay -> (V, W, m) states of those tokens read alone, moved up in their
    order, zero on padding."""
    kept = _kept(begun, rows, keep)
    lengths, size = kept.sum(1), begun.directions[0].hidden.shape[2]
    width = max(1, int(lengths.max())) if len(kept) else 1
    states = begun.directions[0].hidden.new_zeros(len(kept), width, size * len(begun.directions))
    with torch.no_grad():
        for number, direction in enumerate(begun.directions):
            read = _mirrored(kept, begun.lengths[rows]) if number else kept
            order, inside = _moved_up(read)
            target = torch.arange(width, device=kept.device).expand_as(order)
            if number:
                target = torch.where(inside, lengths[:, None] - 1 - target, target)
            part = states.flatten(0, 1)[:, number * size : (number + 1) * size]
            _read_on(direction, rows, read, order, target, part)
    return states


def _read_on(direction: Direction, rows: Tensor, read: Tensor, order: Tensor, target: Tensor, states: Tensor) -> None:
    """Fill states (V·W, h) of one direction. read (V, T): which tokens it reads; order, target (V, W): where the tokens
    that it reads one after another stand in its own order, and in the variant. Variants with most left to read come
    first, so that those that still read are always the first ones."""
    (variants, width), length = order.shape, read.shape[1]
    places = torch.arange(length, device=read.device)
    lengths = read.sum(1)
    same = torch.where(read, length, places).amin(1)
    target = target + torch.arange(variants, device=read.device)[:, None] * width
    which, step = (places[:width] < same[:, None]).nonzero(as_tuple=True)
    known = direction.hidden[rows[which], step + 1]
    states.index_copy_(0, target[which, step], known)

    left, first = (lengths - same).sort(descending=True, stable=True)
    longest = int(left[0]) if variants else 0
    steps = torch.arange(longest, device=read.device)
    active = (left[:, None] > steps).sum(0).tolist()
    at = (same[first, None] + steps).clamp_max(width - 1)
    token = (order[first].gather(1, at) + rows[first, None] * length).T.contiguous()
    to = target[first].gather(1, at).T.contiguous()
    gates = direction.gates.flatten(0, 1)
    hidden, cell = direction.hidden[rows[first], same[first]], direction.cell[rows[first], same[first]]
    for j, count in enumerate(active):
        taken = gates.index_select(0, token[j, :count])
        hidden, cell = _step(taken, hidden[:count], cell[:count], direction.recurrent)
        states.index_copy_(0, to[j, :count], hidden)


def _step_slopes(direction: Direction) -> Tensor:
    """(B, T, 6, h): what ∂/∂h of a step is multiplied by to be added to its ∂/∂c; what ∂/∂c is multiplied by to be
    the slope of the input, forget and cell gates; what ∂/∂h is multiplied by to be that of the output gate; and what
    ∂/∂c is multiplied by for the step before."""
    gates = direction.gates + direction.hidden[:, :-1] @ direction.recurrent
    taken, forgotten, candidate, shown = gates.chunk(4, dim=-1)
    taken, forgotten, candidate, shown = taken.sigmoid(), forgotten.sigmoid(), candidate.tanh(), shown.sigmoid()
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


def influence(begun: Begun, positions: slice) -> Tensor:
    """(B, P, T) ‖∂‖h_p‖/∂E_i‖ for each position p of the slice and i; zero where either is padding."""
    width = begun.order.shape[1]
    rank = begun.order.argsort(1)
    wanted = rank[:, positions]
    inside = wanted < begun.lengths[:, None]
    if not bool(inside.any()):
        return torch.zeros((*wanted.shape, width), device=wanted.device)
    first, last = int(wanted[inside].min()), int(wanted[inside].max())
    with torch.no_grad():
        found, own = torch.zeros(()), torch.zeros(())
        for number, direction in enumerate(begun.directions):
            squares, at_itself = _passed_back(direction, *begun.slopes[number], range(first, last + 1), bool(number))
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
        torch.mul(cell[:, :, None], step[:, 1:4], out=gates[:, :, :3])
        torch.mul(hidden, step[:, 4], out=gates[:, :, 3])
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
