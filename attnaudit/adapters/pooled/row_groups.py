"""Run an encoder on groups of rows of similar length, without most of their padding.

Shapes: B rows, T tokens, W tokens of the longest row of a group, d features of an embedding, m features of a hidden
state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

#: Largest number of tokens (rows × length) that an encoder reads at once on a CPU. The states of a recurrent encoder
#: then stay in the processor's cache.
TOKENS_AT_ONCE = 1536
#: Time of one call of an encoder, and time of one step from token to token, in addition to the time of the tokens. The
#: first is a number of tokens, and the second a number of rows. Measured on a BiLSTM with 128 units per direction.
TOKENS_PER_CALL, ROWS_PER_STEP = 16, 4


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
    sizes = group_sizes(ends)
    parts, start = [], 0
    # The backward pass of `split` is a concatenation, while that of a slice of rows fills a whole batch with zeros.
    for size, its_embeddings, its_mask in zip(
        sizes, torch.split(embedded, sizes), torch.split(mask, sizes), strict=True
    ):
        longest = max(ends[start : start + size])
        states = encoder(its_embeddings[:, :longest], its_mask[:, :longest])
        if not isinstance(states, Tensor) or states.dim() != 3 or states.shape[:2] != (size, longest):
            return encoder(embedded, mask)
        parts.append(states)
        start += size
    if torch.is_grad_enabled():
        return torch.cat([nn.functional.pad(part, (0, 0, 0, width - part.shape[1])) for part in parts])
    padded = parts[0].new_zeros(count, width, parts[0].shape[2])
    for place, part in zip(torch.split(padded, sizes), parts, strict=True):
        place[:, : part.shape[1]] = part
    return padded


def group_sizes(lengths: Sequence[int]) -> list[int]:
    """Split rows into consecutive groups that an encoder reads in as little time as possible.

    The size of a group times its largest length is at most TOKENS_AT_ONCE, unless the group is a single row.

    Args:
        lengths: (B,) number of tokens of each row.

    Returns:
        The number of rows of each group.
    """
    runs: list[tuple[int, int]] = []  # the length and the number of neighbouring rows that stay in one group
    for length, rows in groupby(lengths):
        count, most = len(list(rows)), max(1, TOKENS_AT_ONCE // max(1, length))
        runs += [(length, min(most, count - start)) for start in range(0, count, most)]
    time, following = [0] * (len(runs) + 1), [0] * len(runs)
    size_from = [0] * len(runs)
    for first in range(len(runs) - 1, -1, -1):
        longest = size = 0
        for stop in range(first + 1, len(runs) + 1):
            length, count = runs[stop - 1]
            longest, size = max(longest, length), size + count
            if stop > first + 1 and longest * size > TOKENS_AT_ONCE:
                break
            its_time = TOKENS_PER_CALL + longest * (size + ROWS_PER_STEP) + time[stop]
            if stop == first + 1 or its_time <= time[first]:
                time[first], following[first], size_from[first] = its_time, stop, size
    sizes, place = [], 0
    while place < len(runs):
        sizes.append(size_from[place])
        place = following[place]
    return sizes
