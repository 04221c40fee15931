"""Reuse of hidden states when tokens are removed, for encoders whose states depend only on nearby tokens.

The reach of an encoder is the largest distance, in tokens, at which a state depends on a token. States that are farther
than the reach from every removed token are the same as in the whole input. Only a snippet around the removed tokens is
encoded again. The snippets of all variants in a batch are encoded together.

Shapes: B instances, T tokens (padded), V variants, W tokens of the longest variant, d features of an embedding, m
features of a hidden state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnaudit.adapters.pooled.ordered_tokens import OrderedTokens, in_order, pack

#: Number of states that can be copied from the whole input and attended to at the cost of encoding one token.
LOOKUPS_PER_TOKEN = 8
#: A text is short if its number of tokens is at most this many times the reach. Most tokens of a short text are near a
#: removed token, so the whole text is encoded again.
SHORT_TEXT = 6


@dataclass(frozen=True, kw_only=True)
class SharedStates(OrderedTokens):
    """The states of a batch. Inputs with some tokens removed can reuse the states far from the removed tokens.

    Attributes:
        encoder: (embeddings (B, T, d), mask (B, T)) -> states (B, T, m).
        reach: Largest distance in tokens at which a state depends on a token.
        embeddings: (B, T, d) embeddings of the tokens in order; arbitrary on padding.
    """

    encoder: Callable[[Tensor, Tensor], Tensor]
    reach: int
    embeddings: Tensor

    @cached_property
    def states(self) -> Tensor:
        """(B, T + 1, m) states of the tokens in order; arbitrary on padding.

        The last entry of each row is zero. Lookups of padding use this entry.
        """
        real = torch.arange(self.order.shape[1], device=self.order.device) < self.lengths[:, None]
        return torch.nn.functional.pad(self.encoder(self.embeddings, real), (0, 0, 0, 1))

    def variant_cost(self, rows: Tensor, keep: Tensor) -> Tensor:
        """Return the cost of computing each variant with `states_without`.

        Args:
            rows: (V,) index of the row that each variant is made from.
            keep: (V, T) True at the positions that the variant keeps.

        Returns:
            (V,) number of tokens that an ordinary pass processes at the same cost.
        """
        kept = self.kept(rows, keep)
        start, stop = self._changed_range(rows, kept)
        lengths = kept.sum(1)
        encoded = torch.where(lengths <= SHORT_TEXT * self.reach, lengths, stop - start + 2 * self.reach)
        return torch.maximum(encoded, (lengths + LOOKUPS_PER_TOKEN - 1) // LOOKUPS_PER_TOKEN)

    def states_without(self, rows: Tensor, keep: Tensor) -> Tensor:
        """Compute the states of variants: rows of the batch with some tokens removed.

        Args:
            rows: (V,) index of the row that each variant is made from.
            keep: (V, T) True at the positions that the variant keeps.

        Returns:
            (V, W, m) states of the kept tokens, in order; arbitrary on padding. They equal the states of an input that
            has only these tokens.
        """
        kept = self.kept(rows, keep)
        ranks, real = pack(kept)
        with torch.no_grad():
            if ranks.shape[1] <= SHORT_TEXT * self.reach:
                return self.encoder(_select(self.embeddings, rows, ranks), real)
            states = _select(self.states, rows, torch.where(real, ranks, kept.shape[1]))
            if self.reach:
                self._update_changed(states, rows, kept, ranks)
        return states

    def _changed_range(self, rows: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return the range of kept tokens whose states may differ from those of the whole input.

        Args:
            rows: (V,) index of the row that each variant is made from.
            kept: (V, T) mask over the ordered tokens, True on the tokens that the variant keeps.

        Returns:
            (V,) start and (V,) stop of the range, as indices into the kept tokens. Both are 0 if no token is removed.
        """
        lengths, ends = kept.sum(1), self.lengths[rows]
        ranks = torch.arange(kept.shape[1], device=kept.device)
        missing = ~kept & (ranks < ends[:, None])
        tokens_before = torch.where(missing, ranks, kept.shape[1]).amin(1)
        tokens_after = ends - 1 - torch.where(missing, ranks, -1).amax(1)
        unchanged = ~missing.any(1)
        start = (tokens_before - self.reach).clamp_min(0).masked_fill(unchanged, 0)
        stop = torch.minimum(lengths, lengths - tokens_after + self.reach).masked_fill(unchanged, 0)
        return start, stop

    def _update_changed(self, states: Tensor, rows: Tensor, kept: Tensor, ranks: Tensor) -> None:
        """Replace the states (V, W, m) that may differ from those of the whole input, in place.

        The encoder reads a snippet of each variant. The snippet contains the tokens of these states and, on each side,
        as many further tokens as the reach of the encoder.
        """
        start, stop = self._changed_range(rows, kept)
        first = (start - self.reach).clamp_min(0)
        end = torch.minimum(stop + self.reach, kept.sum(1)).where(stop > start, first)
        size = int((end - first).max()) if len(rows) else 0
        if not size:
            return
        places = first[:, None] + torch.arange(size, device=rows.device)
        tokens = ranks.gather(1, places.clamp_max(ranks.shape[1] - 1))
        snippets = self.encoder(_select(self.embeddings, rows, tokens), places < end[:, None])
        changed = (places >= start[:, None]) & (places < stop[:, None])
        variant, place = changed.nonzero(as_tuple=True)
        states[variant, places[variant, place]] = snippets[variant, place]


def share(encoder: Callable[[Tensor, Tensor], Tensor], embeddings: Tensor, mask: Tensor, reach: int) -> SharedStates:
    """Return the shared states of a batch, for use by `SharedStates.states_without`.

    Args:
        encoder: (embeddings (B, T, d), mask (B, T)) -> states (B, T, m).
        embeddings: (B, T, d) embeddings.
        mask: (B, T) mask, True on tokens.
        reach: Largest distance in tokens at which a state depends on a token.
    """
    order, lengths = in_order(mask)
    ordered = _select(embeddings.detach(), torch.arange(len(order), device=order.device), order)
    return SharedStates(order=order, lengths=lengths, encoder=encoder, reach=reach, embeddings=ordered)


def _select(values: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
    """Select entries (V, W, x) of values (B, T, x): those at positions[v] (W,) of row rows[v], for each variant v."""
    flat = (rows[:, None] * values.shape[1] + positions).flatten()
    return values.flatten(0, 1).index_select(0, flat).view(*positions.shape, -1)
