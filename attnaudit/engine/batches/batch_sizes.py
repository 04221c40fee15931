"""How many rows run in one pass of the model, if the rows have different lengths.

A pass of a Transformer takes time for each token, including padding, and some time for the pass itself. Fewer passes
need more padding. The sizes are chosen so that the sum of both is as small as possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnaudit.adapters.protocol import ModelAdapter

IntegerArray = NDArray[np.int64]
#: Time of a pass of a Transformer on a CPU, in addition to the time of its tokens, as a number of tokens. Measured on a
#: BERT of the size of MiniLM: a pass over 120 tokens takes 42 ms, and one over 1,008 tokens takes 254 ms.
TOKENS_PER_PASS = 52


def tokens_per_pass(adapter: ModelAdapter, device_type: str) -> int | None:
    """Return the argument `per_pass` of `sizes_of_batches` for a model; None for models that need few passes.

    Args:
        adapter: The model.
        device_type: The type of the device, such as "cpu".
    """
    return TOKENS_PER_PASS if adapter.capabilities.replays and device_type == "cpu" else None


def sizes_of_batches(
    widths: Sequence[int], budget: int, *, per_pass: int | None = None, most: int | None = None
) -> list[int]:
    """Split rows into batches of neighbours.

    Args:
        widths: Number of tokens of each row.
        budget: Largest number of tokens (rows × length of the longest) in a batch. A batch always has at least one row.
        per_pass: The time of a pass itself, as a number of tokens. The sum of this number and the number of tokens,
            over all batches, is then as small as possible. If None, each batch has as many rows as the budget allows.
        most: Largest number of rows in one batch; None for no limit.

    Returns:
        The number of rows of each batch.
    """
    count = len(widths)
    lengths = np.maximum(np.array(widths, dtype=np.int64), 1)

    def tokens_from(start: int) -> IntegerArray:
        """Return the tokens of the batches that begin with a row and have 1, 2, ... rows, within the limits."""
        limit = min(count - start, max(1, budget // int(lengths[start])), most or count)
        longest = np.maximum.accumulate(lengths[start : start + limit])
        tokens = longest * np.arange(1, limit + 1)
        return tokens[: max(1, int((tokens <= budget).sum()))]

    sizes, start = [], 0
    if per_pass is None:
        while start < count:
            sizes.append(len(tokens_from(start)))
            start += sizes[-1]
        return sizes
    cost, next_size = np.zeros(count + 1), [0] * count
    for first in range(count - 1, -1, -1):
        tokens = tokens_from(first)
        costs = per_pass + tokens + cost[first + 1 : first + 1 + len(tokens)]
        # Of several sizes with the same cost, the largest one needs the fewest passes.
        next_size[first] = len(costs) - int(costs[::-1].argmin())
        cost[first] = costs[next_size[first] - 1]
    while start < count:
        sizes.append(next_size[start])
        start += sizes[-1]
    return sizes
