"""Run rows a second time, and refuse a model that does not give the same result again.

The conformance suite sees a few texts before the audit. A model that is random on some rows only, or changes later, is
found here: after measuring, a sample of the rows runs again, and its logits and its attention at every site must be
those that were measured. The rows run in another order and with other rows than the first time, so that randomness is
found even if the model seeds its own generator in every pass, and so is a result that was cached by batch. Rounding
then differs, by much less than the tolerance, which is that of the conformance suite.

Shapes: B instances, H heads, Q queries, K keys, C classes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.protocol import Inputs, ModelAdapter, Site, Trace
from attnaudit.arrays import Floats
from attnaudit.conformance.contract import SMALLEST_SIZE, TOLERANCE
from attnaudit.engine.batch_loop import run_in_batches
from attnaudit.engine.clean_pass import CleanPass
from attnaudit.errors import ChangedModelError
from attnaudit.instances import Instance
from attnaudit.seeding import keyed_integer

#: Smallest number of rows that run again; all rows if there are fewer.
FEWEST_ROWS = 64
#: The number of rows that run again, as a share of the rows of all passes of the audit.
SHARE_OF_PASSES = 0.05
#: Fractional parts of the multiples of these irrational numbers give every position a coefficient of its own.
KEY_STEP, QUERY_STEP = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedPass:
    """The result of running rows a second time.

    Attributes:
        rows: how many rows ran again.
        largest_difference: largest difference between the two results of a row, in its logits, relative to their size,
            or in the summaries of its attention.
    """

    rows: int
    largest_difference: float


class FirstPass:
    """Keeps what a second pass is compared with: a number for every row, site and head.

    Args:
        n: number of instances of the whole data set.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._attention: Floats = np.empty((n, 0))

    def add(self, batch: CleanPass) -> None:
        """Keep the attention of a batch."""
        summaries = attention_summaries(batch.adapter.sites(), batch.inputs, batch.trace)
        if not self._attention.shape[1]:
            self._attention = np.full((self.n, summaries.shape[1]), np.nan)
        self._attention[list(batch.positions)] = summaries.cpu().numpy()

    def repeat(
        self,
        adapter: ModelAdapter,
        instances: Sequence[Instance],
        widths: Sequence[int],
        logits: Sequence[Floats],
        *,
        rows_of_passes: int,
        seed: int,
        device: str,
        budget: int,
    ) -> RepeatedPass:
        """Run a sample of the rows again and compare.

        Args:
            adapter: the model.
            instances: the n instances.
            widths: (n,) number of tokens of every instance.
            logits: the (C,) logits of every instance in the first pass.
            rows_of_passes: how many rows all passes of the audit had together.
            seed: seed of the audit, which chooses the rows.
            device: the device of the model.
            budget: tokens in one forward pass.

        Returns:
            How many rows ran again, and the largest difference.

        Raises:
            ChangedModelError: a row gives other logits or another attention than the first time.
        """
        chosen = rows_to_repeat(instances, rows_of_passes, seed)
        sizes = logit_sizes(np.stack(logits))
        differences = np.zeros((len(instances), 2))

        def run(positions: list[int], budget: int) -> None:
            positions = positions[::-1]
            rows = [instances[i] for i in positions]
            batch = CleanPass(
                adapter, rows, positions, seed=seed, keep_graph=False, budget=budget, pass_counts=Counter()
            )
            again = attention_summaries(adapter.sites(), batch.inputs, batch.trace).cpu().numpy()
            gaps = np.abs(batch.logits.cpu().numpy() - np.stack([logits[i] for i in positions]))
            differences[positions, 0] = _largest(gaps / sizes[positions])
            differences[positions, 1] = _largest(np.abs(again - self._attention[positions]))

        run_in_batches(
            run, instances, chosen, widths, device=device, budget=budget // 2, most=math.ceil(len(chosen) / 2)
        )
        worst = differences.max(1)
        if worst.max() > TOLERANCE:
            row = int(worst.argmax())
            instance, different = instances[row], int((worst > TOLERANCE).sum())
            in_logits = differences[row, 0] >= differences[row, 1]
            what = "logits. They differ" if in_logits else "attention weights. A weighted sum of them differs"
            raise ChangedModelError(
                f"{instance.where or instance.id}: measured a second time, this row gives other {what} by "
                f"{worst[row]:.2g}{' of their size' if in_logits else ''}; expected at most {TOLERANCE:g}. "
                f"{different:,} of {len(chosen):,} rows that ran again differ. A model must give the same result for "
                "the same text throughout an audit. Look for dropout or sampling that eval() does not switch off (use "
                "nn.Dropout instead of functional dropout), for state that forward() or the adapter keeps from one "
                "call to the next, and for results that depend on the other rows of a batch."
            )
        return RepeatedPass(rows=len(chosen), largest_difference=float(worst.max()))


def rows_to_repeat(instances: Sequence[Instance], rows_of_passes: int, seed: int) -> list[int]:
    """Choose the rows that run again.

    The order in which rows are drawn depends only on the seed and the ids, so a larger sample contains a smaller one.

    Args:
        instances: the n instances.
        rows_of_passes: how many rows all passes of the audit had together.
        seed: seed of the audit.

    Returns:
        The positions of the rows: 5% of `rows_of_passes`, but at least 64, and at most n.
    """
    drawn = sorted(range(len(instances)), key=lambda i: (keyed_integer(seed, "repeated", instances[i].id), i))
    return drawn[: max(FEWEST_ROWS, int(SHARE_OF_PASSES * rows_of_passes))]


def logit_sizes(logits: Floats) -> Floats:
    """Return the sizes (n, C) that differences of the logits (n, C) are relative to.

    The size of a logit is its absolute value, but at least the median absolute value of the rows' largest logits: a
    logit near 0 is a difference of larger numbers, and has their rounding errors.
    """
    typical = max(SMALLEST_SIZE, float(np.median(np.abs(logits.max(1)))))
    return np.maximum(np.abs(logits), typical)


def attention_summaries(sites: Sequence[Site], inputs: Inputs, trace: Trace) -> Tensor:
    """Summarise the attention of every row, because the weights themselves may not fit in memory.

    Args:
        sites: the attention sites.
        inputs: the batch.
        trace: its clean pass.

    Returns:
        (B, sum of H over the sites), float64: for each head, a sum of its weights with different coefficients between
        -0.5 and 0.5 for the tokens, divided by the square root of the number of queries, with which the rounding error
        of such a sum grows. Padding does not change it.
    """
    columns = []
    for site in sites:
        weights = trace.attention[site.key].detach()
        at_keys = _coefficients(inputs.mask[site.keys], KEY_STEP, weights) - 0.5
        by_query = (weights.flatten(1, 2) @ (at_keys * inputs.mask[site.keys])[:, :, None])[..., 0]
        by_query = by_query.reshape(weights.shape[:3]).double()
        if site.query is None:
            asked = torch.ones((len(weights), weights.shape[2]), dtype=torch.bool, device=weights.device)
        else:
            asked = inputs.mask[site.query]
        at_queries = (_coefficients(asked, QUERY_STEP, by_query) + 0.5) * asked
        columns.append((by_query * at_queries[:, None]).sum(2) / asked.sum(1, keepdim=True).clamp_min(1).sqrt())
    return torch.cat(columns, dim=1)


def _coefficients(mask: Tensor, step: float, like: Tensor) -> Tensor:
    """Return a coefficient in [0, 1) for each position (B, T), the same for the i-th token of every row."""
    return ((mask.cumsum(1) * step) % 1.0).to(like)


def _largest(differences: Floats) -> Floats:
    """Return the largest difference of each row (B, ...); infinity where one is not a number."""
    largest: Floats = np.where(np.isnan(differences), np.inf, differences).max(1, initial=0.0)
    return largest
