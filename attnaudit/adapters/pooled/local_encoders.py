"""Reuse of hidden states when tokens are removed, for encoders whose states depend only on nearby tokens.

A state whose distance to every missing token exceeds the encoder's reach is the same as in the whole input. Only a
snippet around the missing tokens is encoded again, for all variants of a batch together.

Shapes: B instances, T tokens (padded), V variants, W tokens of the longest variant, S tokens of the longest snippet, d
features of an embedding, m features of a hidden state.
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
#: In texts of at most this many times the reach, most tokens are near a missing one, and all are encoded again.
SHORT_TEXT = 6


@dataclass(frozen=True, kw_only=True)
class SharedStates(OrderedTokens):
    """The states of a batch. Where a token is removed, the states beyond its reach are reused.

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
        """(B, T + 1, m) states of the tokens in order; arbitrary on padding. The last entry of each row is zero."""
        real = torch.arange(self.order.shape[1], device=self.order.device) < self.lengths[:, None]
        return torch.nn.functional.pad(self.encoder(self.embeddings, real), (0, 0, 0, 1))

    def variant_cost(self, rows: Tensor, keep: Tensor) -> Tensor:
        """Return the cost (V,) of each variant: the number of tokens of an ordinary pass that costs as much."""
        kept = self.kept(rows, keep)
        start, stop = self._changed_range(rows, kept)
        lengths = kept.sum(1)
        encoded = torch.where(lengths <= SHORT_TEXT * self.reach, lengths, stop - start + 2 * self.reach)
        return torch.maximum(encoded, (lengths + LOOKUPS_PER_TOKEN - 1) // LOOKUPS_PER_TOKEN)

    def states_without(self, rows: Tensor, keep: Tensor) -> Tensor:
        """Compute the states of inputs that lack tokens.

        Args:
            rows: (V,) row of each variant.
            keep: (V, T) positions that the variant keeps.

        Returns:
            (V, W, m) states of the kept tokens, in order, as if they were the whole input; arbitrary on padding.
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
        """Return start (V,) and stop (V,) of the kept tokens whose states may differ from those of the whole input.

        Both are 0 for a variant that lacks no token.
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
        """Encode the tokens whose states may differ once more, and write the new states into `states` (V, W, m).

        The encoder reads a snippet that extends beyond these tokens by its reach on either side.
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
    """Prepare a batch for `SharedStates.states_without`.

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
    """Select positions (V, W) of the rows (V,) of values (B, T, x): (V, W, x)."""
    flat = (rows[:, None] * values.shape[1] + positions).flatten()
    return values.flatten(0, 1).index_select(0, flat).view(*positions.shape, -1)
