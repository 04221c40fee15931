"""Reuse of hidden states when tokens are replaced by the mask token, for one LSTM layer (see `recurrent_encoders`).

The layer reads two texts once: the whole text, and the text with all of its tokens masked. A variant has tokens of
both. In each direction, the computation starts from the text that has more tokens in common with the variant before the
first difference. After the last difference, it ends as soon as the state of the variant equals the state of this text,
up to rounding.

Shapes: B instances, T tokens (padded), V variants, W tokens of the longest variant, m features of a hidden state, h
features of one direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from attnaudit.adapters.pooled.recurrent_encoders import Direction, SharedStates, recompute, reversed_rows


@dataclass(frozen=True, kw_only=True)
class MaskedStates:
    """The states of whole texts and of masked texts, as a batch of 2B rows. Row B + b is the masked text of row b.

    Attributes:
        order: (B, T) positions of the tokens of each text, in order, as in `SharedStates`.
        lengths: (B,) number of tokens of each text.
        maskable: (B, T) mask over the tokens in order, True on the tokens that are masked in the masked texts.
        directions: One entry per direction, with the states of all 2B rows.
        states: One tensor (2B, T + 1, h) per direction: the states of the tokens in order. They are arbitrary on
            padding, and the last entry of each row is zero.
    """

    order: Tensor
    lengths: Tensor
    maskable: Tensor
    directions: tuple[Direction, ...]
    states: tuple[Tensor, ...]

    def states_with_masks(self, rows: Tensor, keep: Tensor) -> Tensor:
        """Compute the states of texts in which some tokens are masked.

        Args:
            rows: (V,) index of the row that each variant is made from.
            keep: (V, T) True at the positions of the tokens that are not masked. Only tokens that are masked in the
                masked texts can be masked.

        Returns:
            (V, W, m) states of the tokens, in order; zero on padding.
        """
        ends, maskable = self.lengths[rows], self.maskable[rows]
        kept = keep.gather(1, self.order[rows])
        texts, length = self.maskable.shape
        width = max(1, int(ends.max())) if len(ends) else 1
        features = sum(one.shape[-1] for one in self.states)
        states = self.states[0].new_empty(len(rows) * width, features)
        places = torch.arange(length, device=rows.device)
        order = places[:width].expand(len(rows), -1)
        real = order < ends[:, None]
        start_of_variant = torch.arange(len(rows), device=rows.device)[:, None] * width
        parts = states.chunk(len(self.directions), dim=1)
        for n, (direction, of_texts, part) in enumerate(zip(self.directions, self.states, parts, strict=True)):
            masked, unmasked = maskable & ~kept, maskable & kept
            if n:
                masked, unmasked = reversed_rows(masked, ends), reversed_rows(unmasked, ends)
            before_masked, before_unmasked = (torch.where(m, places, length).amin(1) for m in (masked, unmasked))
            from_masked = before_unmasked > before_masked
            base = rows + texts * from_masked
            tokens = torch.where(real, order, length) + base[:, None] * (length + 1)
            part.copy_(of_texts.flatten(0, 1).index_select(0, tokens.flatten()))
            target = torch.where(real, ends[:, None] - 1 - order, order) if n else order
            recompute(
                direction,
                base,
                first=torch.maximum(before_masked, before_unmasked),
                last=torch.where(torch.where(from_masked[:, None], unmasked, masked), places, -1).amax(1),
                lengths=ends,
                order=order,
                inputs=order + (rows[:, None] + texts * masked[:, :width]) * length,
                target=target + start_of_variant,
                states=part,
            )
        return states.view(len(rows), width, -1)


def share_masked(whole: SharedStates, masked: SharedStates, maskable: Tensor) -> MaskedStates:
    """Combine the states of whole texts and of masked texts.

    Args:
        whole: The states of the whole texts.
        masked: The states of the same texts with all maskable tokens masked.
        maskable: (B, T) True at the positions of the tokens that are masked in `masked`.
    """
    directions = tuple(_joined(*pair) for pair in zip(whole.directions, masked.directions, strict=True))
    states = [
        torch.cat([texts.in_token_order(n, texts.directions[n].hidden[:, 1:]) for texts in (whole, masked)])
        for n in range(len(directions))
    ]
    return MaskedStates(
        # Not `whole` itself: it refers to the result, and a cycle of references keeps the memory of both for long.
        order=whole.order,
        lengths=whole.lengths,
        maskable=maskable.gather(1, whole.order),
        directions=directions,
        states=tuple(functional.pad(one, (0, 0, 0, 1)) for one in states),
    )


def _joined(first: Direction, second: Direction) -> Direction:
    """Return one direction with the rows of two. Both have the same weights."""
    return Direction(
        gates=torch.cat([first.gates, second.gates]),
        recurrent=first.recurrent,
        hidden=torch.cat([first.hidden, second.hidden]),
        cell=torch.cat([first.cell, second.cell]),
        input_weights=first.input_weights,
    )
