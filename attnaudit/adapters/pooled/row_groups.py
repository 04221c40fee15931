"""Run an encoder on groups of rows of similar length, without most of their padding.

Shapes: B rows, T tokens, W tokens of the longest row of a group, d features of an embedding, m features of a hidden
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

#: Largest number of tokens (rows × length) that an encoder reads at once on a CPU. The states of a recurrent encoder
#: then stay in the processor's cache.
TOKENS_AT_ONCE = 1536


def encode_in_groups(encoder: Callable[[Tensor, Tensor], Tensor], embedded: Tensor, mask: Tensor) -> Tensor:
    """Return the states of an encoder, which runs on a few neighbouring rows at a time.

    The states of a row depend neither on other rows nor on padding, so the result is the same as for the whole batch,
    up to rounding. On a GPU, and for small batches, the encoder runs once.

    Args:
        encoder: (embeddings (B, T, d), mask (B, T)) -> states (B, T, m).
        embedded: (B, T, d) embeddings.
        mask: (B, T) mask, True on tokens. Batches have rows of similar length next to each other.

    Returns:
        (B, T, m) states. If the encoder returns something else, its result for the whole batch.
    """
    count, width = mask.shape
    if mask.device.type != "cpu" or count == 1 or count * width <= TOKENS_AT_ONCE:
        return encoder(embedded, mask)
    ends = (mask * torch.arange(1, width + 1)).amax(1).clamp_min(1).tolist()
    groups = list(_groups(ends))
    sizes = [len(group) for group in groups]
    parts = []
    # The backward pass of `split` is a concatenation, while that of a slice of rows fills a whole batch with zeros.
    for group, its_embeddings, its_mask in zip(
        groups, torch.split(embedded, sizes), torch.split(mask, sizes), strict=True
    ):
        longest = max(group)
        states = encoder(its_embeddings[:, :longest], its_mask[:, :longest])
        if not isinstance(states, Tensor) or states.dim() != 3 or states.shape[:2] != (len(group), longest):
            return encoder(embedded, mask)
        parts.append(states)
    if torch.is_grad_enabled():
        return torch.cat([nn.functional.pad(part, (0, 0, 0, width - part.shape[1])) for part in parts])
    padded = parts[0].new_zeros(count, width, parts[0].shape[2])
    for place, part in zip(torch.split(padded, sizes), parts, strict=True):
        place[:, : part.shape[1]] = part
    return padded


def _groups(lengths: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split lengths into consecutive groups. The size of a group times its largest length is at most TOKENS_AT_ONCE.

    A single length above TOKENS_AT_ONCE is a group of its own.
    """
    start = longest = 0
    for stop, length in enumerate(lengths):
        if stop > start and max(longest, length) * (stop + 1 - start) > TOKENS_AT_ONCE:
            yield lengths[start:stop]
            start, longest = stop, 0
        longest = max(longest, length)
    yield lengths[start:]
