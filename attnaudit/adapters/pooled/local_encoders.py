"""Encoders that read each token alone or a few on either side: what inputs that lack some tokens share with the whole
input.

A state further from every gap than the encoder reaches is that of the whole input, so that only a snippet around the
gaps is encoded again, for all variants of a batch together.

Shapes: B instances, T tokens (padded), V variants, W tokens of the longest variant, S of the longest snippet, d
features of an embedding, m of a hidden state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnaudit.adapters.pooled.ordered_tokens import Ordered, in_order, moved_up

#: What a kept state costs beside an encoded token: it is looked up, and attended to.
LOOKED_UP = 8
#: Up to so many times the reach, most of a text is near a single gap, and all of it is encoded again.
MOST = 6


@dataclass(frozen=True, kw_only=True)
class SharedStates(Ordered):
    """A batch read once. embeddings (B, T, d) of the tokens in their order; those of padding mean nothing. reach: how
    many tokens away a state may depend on."""

    encoder: Callable[[Tensor, Tensor], Tensor]
    reach: int
    embeddings: Tensor

    @cached_property
    def states(self) -> Tensor:
        """(B, T + 1, m) of the tokens in their order; the last one is zero, those of padding mean nothing."""
        inside = torch.arange(self.order.shape[1], device=self.order.device) < self.lengths[:, None]
        return torch.nn.functional.pad(self.encoder(self.embeddings, inside), (0, 0, 0, 1))

    def width(self, rows: Tensor, keep: Tensor) -> Tensor:
        """(V,) as how many tokens of an ordinary pass a variant counts."""
        kept = self.kept(rows, keep)
        start, stop = self._changed(rows, kept)
        lengths = kept.sum(1)
        encoded = torch.where(lengths <= MOST * self.reach, lengths, stop - start + 2 * self.reach)
        return torch.maximum(encoded, (lengths + LOOKED_UP - 1) // LOOKED_UP)

    def without(self, rows: Tensor, keep: Tensor) -> Tensor:
        """rows (V,), keep (V, T) which positions stay -> (V, W, m) states of those tokens read alone, moved up in their
        order, zero on padding."""
        kept = self.kept(rows, keep)
        places, inside = moved_up(kept)
        with torch.no_grad():
            if places.shape[1] <= MOST * self.reach:
                return self.encoder(_looked_up(self.embeddings, rows, places), inside)
            states = _looked_up(self.states, rows, torch.where(inside, places, kept.shape[1]))
            if self.reach:
                self._encode_again(states, rows, kept, places)
        return states

    def _changed(self, rows: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """(V,) among the tokens that stay, the first and the end of those whose states may have changed."""
        lengths, ends = kept.sum(1), self.lengths[rows]
        here = torch.arange(kept.shape[1], device=kept.device)
        gone = ~kept & (here < ends[:, None])
        before = torch.where(gone, here, kept.shape[1]).amin(1)
        after = ends - 1 - torch.where(gone, here, -1).amax(1)
        whole = ~gone.any(1)
        start = (before - self.reach).clamp_min(0).masked_fill(whole, 0)
        return start, torch.minimum(lengths, lengths - after + self.reach).masked_fill(whole, 0)

    def _encode_again(self, states: Tensor, rows: Tensor, kept: Tensor, places: Tensor) -> None:
        """Put the states that may have changed in their place. What they read reaches as far again as they do."""
        start, stop = self._changed(rows, kept)
        first = (start - self.reach).clamp_min(0)
        end = torch.minimum(stop + self.reach, kept.sum(1)).where(stop > start, first)
        size = int((end - first).max()) if len(rows) else 0
        if not size:
            return
        at = first[:, None] + torch.arange(size, device=rows.device)
        there = at < end[:, None]
        token = places.gather(1, at.clamp_max(places.shape[1] - 1))
        snippets = self.encoder(_looked_up(self.embeddings, rows, token), there)
        variant, place = ((at >= start[:, None]) & (at < stop[:, None])).nonzero(as_tuple=True)
        states[variant, at[variant, place]] = snippets[variant, place]


def share(encoder: Callable[[Tensor, Tensor], Tensor], embeddings: Tensor, mask: Tensor, reach: int) -> SharedStates:
    """embeddings (B, T, d), mask (B, T) -> what variants share, without a graph."""
    order, lengths = in_order(mask)
    taken = _looked_up(embeddings.detach(), torch.arange(len(order), device=order.device), order)
    return SharedStates(order=order, lengths=lengths, encoder=encoder, reach=reach, embeddings=taken)


def _looked_up(values: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """values (B, T, x), rows (V,), places (V, W) -> (V, W, x)."""
    flat = (rows[:, None] * values.shape[1] + places).flatten()
    return values.flatten(0, 1).index_select(0, flat).view(*places.shape, -1)
