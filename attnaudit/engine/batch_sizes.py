"""How many rows run in one pass of the model, if the rows have different lengths.

A pass of a Transformer takes time for each token, including padding, and some time for the pass itself. Fewer passes
need more padding. The sizes are chosen so that the sum of both is as small as possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnaudit.adapters.protocol import ModelAdapter

#: Time of a pass of a Transformer on a CPU, in addition to the time of its tokens, as a number of tokens. Measured on a
#: BERT of the size of MiniLM: a pass over 120 tokens takes 42 ms, and one over 1,008 tokens takes 254 ms.
TOKENS_PER_PASS = 52


def tokens_per_pass(adapter: ModelAdapter, device_type: str) -> int | None:
    """Return the argument `per_pass` of `sizes_of_batches` for a model; None for models that need few passes.

    Args:
        adapter: the model.
        device_type: the type of the device, such as "cpu".
    """
    return TOKENS_PER_PASS if adapter.capabilities.replays and device_type == "cpu" else None


def sizes_of_batches(
    widths: Sequence[int], budget: int, *, per_pass: int | None = None, most: int | None = None
) -> list[int]:
    """Split rows into batches of neighbours.

    Args:
        widths: number of tokens of each row; the longest row first.
        budget: largest number of tokens (rows × length of the longest) in a batch. A batch always has at least one row.
        per_pass: the time of a pass, as a number of tokens. The sum of this number and of the tokens of each batch is
            then as small as possible. If None, all batches but the last have as many rows as the budget allows.
        most: largest number of rows in one batch; None for no limit.

    Returns:
        The number of rows of each batch.
    """
    count = len(widths)
    largest = [min(count - i, max(1, budget // max(1, width)), most or count) for i, width in enumerate(widths)]
    if per_pass is None:
        next_size = largest
    else:
        cost, next_size = np.zeros(count + 1), [0] * count
        rows = np.arange(1, max(largest, default=0) + 1)
        for i in range(count - 1, -1, -1):
            costs = per_pass + rows[: largest[i]] * widths[i] + cost[i + 1 : i + 1 + largest[i]]
            # Of several sizes with the same cost, the largest one needs the fewest passes.
            next_size[i] = largest[i] - int(costs[::-1].argmin())
            cost[i] = costs[next_size[i] - 1]
    sizes, start = [], 0
    while start < count:
        sizes.append(next_size[start])
        start += sizes[-1]
    return sizes
