"""A second pass over a sample of the rows, which must give the same results as the first.

The conformance suite runs on a few texts before the audit. It cannot find a model that is random only on some rows, or
that changes later. After measuring, the model therefore runs again on a sample of the rows. Its logits, and its
attention at every site, must be the same as before.

The rows run in another order and in other batches than the first time. This also exposes a model that seeds its own
random generator in every pass, and an adapter that caches results by batch. In other batches, results differ by
rounding errors. The tolerance is that of the conformance suite, and is much larger than these errors.

Shapes: B instances, H heads, Q queries, K keys, C classes.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.protocol import Inputs, ModelAdapter, Site
from attnaudit.arrays import Floats
from attnaudit.engine.batch_loop import run_in_batches
from attnaudit.engine.batches.batch_sizes import tokens_per_pass
from attnaudit.engine.batches.clean_pass import CleanPass
from attnaudit.engine.batches.scopes import Scope
from attnaudit.engine.unit_strings import EncodedInstances
from attnaudit.errors import ChangedModelError
from attnaudit.instances import Instance
from attnaudit.precision import counted_size, tolerance
from attnaudit.seeding import keyed_integer

#: A class is closed if its logit is lower than the largest one by more than this (a probability below 2e-22).
CLOSED = 50.0
#: Smallest number of rows that run again. If there are fewer rows, all of them run again.
FEWEST_ROWS = 64
#: Number of these rows that run alone, so that a model whose results depend on the number of rows in a batch is found.
ROWS_ALONE = 8
#: Number of rows that run again, as a share of the rows of all passes of the audit.
SHARE_OF_PASSES = 0.05
#: Irrational numbers. The fractional parts of their multiples give every position a different coefficient.
KEY_STEP, QUERY_STEP = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1

#: A function that checks the attention weights at a site. Its arguments are the batch, the site, the weights
#: (B, H, R, K) of R queries, and the mask (B, 1 or H, 1 or R, K) of the allowed keys.
CheckWeights = Callable[[CleanPass, Site, Tensor, Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedPass:
    """The result of running rows a second time.

    Attributes:
        rows: Number of rows that ran again.
        largest_difference: Largest difference between the two results of a row. It is the larger of two numbers: the
            difference of the logits relative to their size (see `logit_sizes`), and the difference of the summaries of
            the attention (see `SiteSummary`).
    """

    rows: int
    largest_difference: float


class FirstPass:
    """Stores a summary of the attention in the first pass, and compares a second pass with it.

    The summary has one number for every row, site and head.

    Args:
        n: Number of instances.
        first: Index of the first of these instances in the whole data set.

    Attributes:
        summaries: (n, S) the summaries.
    """

    def __init__(self, n: int, first: int = 0) -> None:
        self.n = n
        self.first = first
        self.summaries: Floats = np.empty((n, 0))

    def add(self, batch: CleanPass, check: CheckWeights | None = None) -> None:
        """Store the attention summaries of a batch.

        Args:
            batch: The batch.
            check: Called with the weights that are summarised; None to check nothing.
        """
        summaries = attention_summaries(batch, check)
        if not self.summaries.shape[1]:
            self.summaries = np.full((self.n, summaries.shape[1]), np.nan)
        self.summaries[[position - self.first for position in batch.positions]] = summaries.cpu().numpy()

    def repeat(
        self,
        adapter: ModelAdapter,
        instances: Sequence[Instance],
        widths: Sequence[int],
        logits: Sequence[Floats],
        *,
        rows_of_passes: int,
        fewest: int = FEWEST_ROWS,
        seed: int,
        device: str,
        budget: int,
        scopes: Sequence[Scope] | None = None,
        encoded: EncodedInstances | None = None,
    ) -> RepeatedPass:
        """Run a sample of the rows again, and compare the results with those of the first pass.

        Args:
            adapter: The model.
            instances: The n instances.
            widths: (n,) number of tokens of every instance.
            logits: One array (C,) per instance: its logits in the first pass.
            rows_of_passes: Total number of rows in all passes over the instances.
            fewest: Smallest number of rows that run again.
            seed: Seed of the audit. It determines which rows run again.
            device: The device of the model.
            budget: Largest number of tokens in one forward pass. The second pass uses half of it, and runs some rows
                alone.
            scopes: The scopes whose attention the first pass contains; None for all sites and queries.
            encoded: The instances, encoded again since the first pass; None to encode each batch.

        Returns:
            The number of rows that ran again, and the largest difference.

        Raises:
            ChangedModelError: The logits or the attention of a row differ from those of the first pass.
        """
        chosen = rows_to_repeat([one.id for one in instances], rows_of_passes, seed, fewest=fewest)
        limit = tolerance(adapter.capabilities.precision)
        sizes = logit_sizes(np.stack(logits), limit)
        differences = np.zeros((len(instances), 2))

        def run(positions: list[int], budget: int) -> None:
            positions = positions[::-1]
            rows = [instances[i] for i in positions]
            batch = CleanPass(
                adapter,
                rows,
                positions,
                seed=seed,
                keep_graph=False,
                budget=budget,
                pass_counts=Counter(),
                scopes=scopes,
                inputs=None if encoded is None else encoded.selected(adapter, positions),
            )
            again = attention_summaries(batch).cpu().numpy()
            gaps = np.abs(batch.logits.cpu().numpy() - np.stack([logits[i] for i in positions]))
            differences[positions, 0] = _largest(gaps / sizes[positions])
            differences[positions, 1] = _largest(np.abs(again - self.summaries[positions]))

        alone, together = chosen[:ROWS_ALONE], chosen[ROWS_ALONE:]
        for rows, most in ((alone, 1), (together, math.ceil(len(together) / 2))):
            if rows:
                run_in_batches(
                    run,
                    instances,
                    rows,
                    widths,
                    device=device,
                    budget=budget // 2,
                    most=most,
                    per_pass=tokens_per_pass(adapter, torch.device(device).type),
                )
        worst = differences.max(1)
        if worst.max() > limit:
            row = int(worst.argmax())
            instance, different = instances[row], int((worst > limit).sum())
            in_logits = differences[row, 0] >= differences[row, 1]
            what = "logits" if in_logits else "weighted sum of the attention weights"
            raise ChangedModelError(
                f"{instance.where or instance.id}: when this row was measured a second time, its {what} differed by "
                f"{worst[row]:.2g}{' relative to their size' if in_logits else ''}; expected at most {limit:g}. "
                f"{different:,} of the {len(chosen):,} rows that ran again differed. A model must give the same "
                "result for the same text throughout an audit. Look for dropout or sampling that eval() does not "
                "switch off (use nn.Dropout instead of functional dropout), for state that forward() or the "
                "adapter keeps from one call to the next, and for results that depend on the other rows of a batch."
            )
        return RepeatedPass(rows=len(chosen), largest_difference=float(worst.max()))


def rows_to_repeat(ids: Sequence[str], rows_of_passes: int, seed: int, *, fewest: int = FEWEST_ROWS) -> list[int]:
    """Choose the rows that run again.

    The rows are drawn in an order that depends only on the seed and the ids of the instances. A larger sample therefore
    contains every smaller one.

    Args:
        ids: The ids of the n instances.
        rows_of_passes: Total number of rows in all passes over the instances.
        seed: Seed of the audit.
        fewest: Smallest number of chosen instances.

    Returns:
        The indices of the chosen instances. Their number is 5% of `rows_of_passes`, but at least `fewest` and at most
        n.
    """
    keys = ((keyed_integer(seed, "repeated", one), i) for i, one in enumerate(ids))
    return [i for _, i in heapq.nsmallest(max(fewest, int(SHARE_OF_PASSES * rows_of_passes)), keys)]


def logit_sizes(logits: Floats, tolerance: float) -> Floats:
    """Return the sizes (n, C) by which differences of the logits (n, C) are divided before they are compared.

    The size of a logit is its absolute value, but at least a typical value. To get this value, take the largest
    absolute value in each row, and then the median over the rows. Without this minimum, the size of a logit near 0
    would be too small, because such a logit is a difference of larger numbers and has their rounding errors. Classes
    with a probability near 0 are left out of the typical value, because models close a class with a logit such as -1e4.

    Args:
        logits: The logits of n instances.
        tolerance: The largest accepted quotient. If the typical value is small, it is increased (see `counted_size`).
    """
    open_classes = logits > logits.max(1, keepdims=True) - CLOSED
    largest = np.where(open_classes, np.abs(logits), 0).max(1)
    return np.maximum(np.abs(logits), counted_size(float(np.median(largest)), tolerance))


def attention_summaries(batch: CleanPass, check: CheckWeights | None = None) -> Tensor:
    """Summarise the attention of every row by one number per head. The weights themselves may not fit in memory.

    Args:
        batch: The batch.
        check: Called with the weights of every site; None to check nothing.

    Returns:
        (B, sum of H over the sites) summaries, float64.
    """
    columns = []
    for site in batch.recorded_sites:
        summary = SiteSummary(
            site, batch.inputs, all_queries=site.key not in batch.trace.queries.keys() - batch.trace.blocks
        )
        for first, weights, allowed in batch.recorded_blocks(site):
            if check is not None:
                check(batch, site, weights, allowed)
            summary.add(weights, first)
        columns.append(summary.value())
    return torch.cat(columns, dim=1)


class SiteSummary:
    """A summary of the attention at one site: one number per head.

    The summary of a head is a weighted sum of its attention weights. If the pass recorded the weights of only some
    queries, only these weights are summed. Each key has a different coefficient between -0.5 and 0.5, and each query a
    different coefficient between 0.5 and 1.5. The sum is divided by the square root of the number of queries, because
    its rounding error grows with that root. Padding does not change the sum.

    Args:
        site: The site.
        inputs: The batch.
        all_queries: Whether the weights of all queries are summarised.
    """

    def __init__(self, site: Site, inputs: Inputs, *, all_queries: bool) -> None:
        self.keys = inputs.mask[site.keys]
        self.queries = inputs.mask[site.query] if all_queries and site.query is not None else None
        self._parts: list[Tensor] = []
        self._count: Tensor | None = None

    def add(self, weights: Tensor, first: int) -> None:
        """Add the weights (B, H, R, K) of the R queries that follow position `first`."""
        at_keys = _coefficients(self.keys, KEY_STEP, weights) - 0.5
        by_query = (weights.flatten(1, 2) @ (at_keys * self.keys)[:, :, None])[..., 0]
        by_query = by_query.reshape(weights.shape[:3]).double()
        asked = self.queries
        if asked is None:
            asked = torch.ones((len(weights), weights.shape[2]), dtype=torch.bool, device=weights.device)
        at_queries = ((_coefficients(asked, QUERY_STEP, by_query) + 0.5) * asked)[:, first : first + weights.shape[2]]
        self._parts.append((by_query * at_queries[:, None]).sum(2))
        self._count = asked.sum(1, keepdim=True)

    def value(self) -> Tensor:
        """Return the summaries (B, H), float64."""
        assert self._count is not None
        return torch.stack(self._parts).sum(0) / self._count.clamp_min(1).sqrt()


def _coefficients(mask: Tensor, step: float, like: Tensor) -> Tensor:
    """Return coefficients (B, T) in [0, 1). The i-th token of every row has the same coefficient.

    Args:
        mask: (B, T) True on tokens.
        step: An irrational number. The coefficient of the i-th token is the fractional part of i times this number.
        like: A tensor with the data type and device of the result.
    """
    return ((mask.cumsum(1) * step) % 1.0).to(like)


def _largest(differences: Floats) -> Floats:
    """Return the largest difference (B,) of each row (B, ...). A row that contains NaN gives infinity."""
    largest: Floats = np.where(np.isnan(differences), np.inf, differences).max(1, initial=0.0)
    return largest
