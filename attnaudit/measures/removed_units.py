"""Removal of several units: the linear datamodelling score and the top-k drop (Cohen-Wang et al. 2024, ContextCite).

Both compare the attention α of the units with what the output loses if units are deleted. A unit is a source of a
prompt, a word or a token. Let p(S) be the probability of the target if only the units in S are kept. If the target is
the class, p(S) is the probability of the class that is predicted for the whole input.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.adapters.sums_by_index import added_at
from attnaudit.engine.batches.logits import log_odds, log_probabilities, sizes_of_logits
from attnaudit.errors import CheckError
from attnaudit.measures import AttentionView, Columns, Request, measure
from attnaudit.measures.erasure_curves import random_orders, ranked
from attnaudit.metrics.spearman import spearman
from attnaudit.seeding import keyed_generator

#: Random sets of k units with which the top-k drop is compared.
DRAWS = 5
#: The largest number of subsets per instance, and of removed units.
MOST_SUBSETS, MOST_REMOVED = 10_000, 1_000


def whole_number(largest: int, example: str) -> Callable[[str], int]:
    """Return a parser for the argument of a measure. The parser accepts whole numbers from 1 to `largest`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= largest):
            raise CheckError(
                f"expected a whole number from 1 to {largest} after the dot, but got '{text}'. Write, for example, "
                f".{example}."
            )
        return int(text)

    return parse


@measure("datamodel_score", argument=whole_number(MOST_SUBSETS, "32"), capabilities=("deletion",))
def datamodel_score(view: AttentionView, request: Request) -> Columns:
    """Return the linear datamodelling score of attention (Cohen-Wang et al. 2024, "linear datamodeling score").

    Each of N random subsets S keeps every unit with probability ½, as in the published code. The empty set is left out.
    If there are at most N non-empty subsets, each of them is used once. Over the subsets, the score is Spearman's
    correlation between the sum of α over S and the log-odds log p(S) - log (1 - p(S)). The log-odds rank the subsets as
    p(S) does.

    The columns are undefined if there is a single unit, or if no subset changes the output:

    * `<name>`: the score. Undefined if all units have the same attention.
    * `.uniform`: the score of equal weights, which depends only on the number of kept units.
    """
    count, width = view.real.shape
    scores = torch.full((2, count), torch.nan, dtype=torch.float64, device=view.device)
    for b in (view.lengths > 1).nonzero()[:, 0].tolist():
        units = view.real[b].nonzero()[:, 0]
        kept = random_subsets(view, b, len(units), int(request.argument))
        keep = torch.zeros((len(kept), width), dtype=torch.bool, device=view.device)
        keep[:, units] = torch.from_numpy(kept).to(view.device)
        rows = torch.full((len(kept),), b, dtype=torch.long, device=view.device)
        logits = view.batch.erased_logits(rows, keep, "deletion")
        sizes = sizes_of_logits(logits, view.logits[b]).amax(0).expand_as(logits)
        if bool(view.equal_outputs(rows, logits[:1], logits, sizes).all()):
            continue
        odds = log_odds(logits, view.predicted[rows]).cpu().numpy()
        attention = view.attention[b, units].cpu().numpy()
        predictions = (kept @ attention, kept.sum(1).astype(np.float64))
        for i, predicted in enumerate(predictions):
            tied = np.ptp(attention) <= 1e-6 * abs(attention).max() if i == 0 else False
            scores[i, b] = torch.nan if tied or np.isnan(predicted).any() else spearman(predicted, odds)
    return Columns(scalars={request.name: scores[0], f"{request.name}.uniform": scores[1]})


def random_subsets(view: AttentionView, row: int, count: int, most: int) -> NDArray[np.bool_]:
    """Return (N, count) masks of non-empty subsets of the units of an instance.

    They depend only on the seed and the id of the instance.
    """
    if count < 20 and 2**count - 1 <= most:
        return (np.arange(1, 2**count)[:, None] >> np.arange(count) & 1).astype(bool)
    generator = keyed_generator(view.seed, "datamodel_score", view.instances[row].id)
    kept = generator.random((most, count)) < 0.5
    while not kept.any(1).all():
        empty = ~kept.any(1)
        kept[empty] = generator.random((int(empty.sum()), count)) < 0.5
    return kept


@measure("top_k_drop", argument=whole_number(MOST_REMOVED, "1"), capabilities=("deletion",))
def top_k_drop(view: AttentionView, request: Request) -> Columns:
    """Return the top-k drop of attention (Cohen-Wang et al. 2024, "top-k log-probability drop").

    It is log p - log p' in nats, where p' is the probability without the k most attended units. The columns are
    undefined if there are at most k units:

    * `<name>`: the drop. Undefined if all units have the same attention.
    * `.random`: the mean drop without k random units. It is exact for k = 1, and otherwise the mean of 5 draws.
    """
    removed, count = int(request.argument), len(view.real)
    several = view.lengths > removed
    predicted = view.predicted[:, None]
    clean = log_probabilities(view.logits).gather(1, predicted)[:, 0]

    def drop_without(order: Tensor, rows: Tensor) -> Tensor:
        """Return the drops (V,) without the first k units of orders (V, T)."""
        keep = view.real[rows].clone()
        keep.scatter_(1, order[:, :removed], torch.zeros_like(order[:, :removed], dtype=torch.bool))
        logits = view.batch.erased_logits(rows, keep, "deletion")
        sizes = sizes_of_logits(logits, view.logits[rows])
        same = view.equal_outputs(rows, logits, view.logits[rows], sizes)
        drop = clean[rows] - log_probabilities(logits).gather(1, predicted[rows])[:, 0]
        return drop.masked_fill(same, 0.0)

    drops = torch.full((2, count), torch.nan, dtype=torch.float64, device=view.device)
    rows = several.nonzero()[:, 0]
    if len(rows):
        order = ranked(view, view.attention)[rows]
        attention = torch.where(view.real, view.attention, torch.nan)[rows]
        largest = attention.nan_to_num(-torch.inf).amax(1)
        smallest = attention.nan_to_num(torch.inf).amin(1)
        tied = ~((largest - smallest) > 1e-6 * largest)
        drops[0, rows] = drop_without(order, rows).masked_fill(tied, torch.nan)
        if removed == 1:
            units = (view.real & several[:, None]).nonzero()
            single = drop_without(units[:, 1:], units[:, 0])
            sums = added_at(torch.zeros_like(drops[1]), units[:, 0], single)
            drops[1, rows] = (sums / view.lengths)[rows]
        else:
            orders = random_orders(view, DRAWS, "top_k_drop")[rows]
            each = [drop_without(orders[:, draw], rows) for draw in range(DRAWS)]
            drops[1, rows] = torch.stack(each).mean(0)
    return Columns(scalars={request.name: drops[0], f"{request.name}.random": drops[1]})
