"""Normalised AOPC: erasure relative to the best and the worst order of the same text (Edin et al. 2025).

Let f(k) be the fall of the probability of the predicted class when the first k of the n tokens are erased. The AOPC
(area over the perturbation curve) of an order is the mean of f(k) over k = 1 to n - 1. The largest possible AOPC
depends on the model and on the text. The normalised AOPC is

    (AOPC - lowest) / (highest - lowest)

where lowest and highest are the extremes of the AOPC over all orders of the tokens. They are exact for texts of up to 8
tokens. For longer texts, a beam search of width 5 finds an order that is close to the best, and an order that is close
to the worst.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from attnaudit.engine.batches.logits import probabilities, rounding_of_logits, sizes_of_logits
from attnaudit.measures import AttentionView, Columns, Request, measure, one_of
from attnaudit.measures.erasure_curves import DRAWS, first, orders_tokens, random_orders, ranked
from attnaudit.metrics.erasure_orders import extreme_orders

#: For texts of at most this many tokens, every set of tokens is erased, so that the extremes are exact.
EXACT = 8
#: Width of the beam search for longer texts, as in Edin et al. 2025.
BEAM = 5
#: The largest number of tokens of a text that is measured. The search needs up to 5 n² passes for n tokens.
MOST = 32

#: (rows (V,), erased units (V, T)) -> fall of the probability of the predicted class (V,).
Falls = Callable[[Tensor, Tensor], Tensor]


@measure("normalised_aopc", argument=one_of("deletion", "mask"), capabilities=lambda operator: (operator,))
def normalised_aopc(view: AttentionView, request: Request) -> Columns:
    """Return the normalised AOPC (see the top of this module) of erasing tokens in the order of their attention.

    The columns are undefined for texts with one token or more than 32 tokens, for texts with equal attention weights,
    and for texts in which all orders have the same AOPC:

    * `.comprehensiveness`: the normalised AOPC if the most attended tokens are erased first.
    * `.sufficiency`: 1 minus the normalised AOPC if the least attended tokens are erased first. It is 1 if this order
      has the lowest AOPC of all orders.
    * `.random`: the expected normalised AOPC of a random order. It is exact for texts of up to 8 tokens, and the mean
      of 5 random orders for longer texts.
    * `.lowest` and `.highest`: the lowest and the highest AOPC of any order.
    * `.searched`: 1 if the lowest and the highest AOPC come from the beam search, 0 if they are exact.

    The beam search may miss the best and the worst order. The lowest and the highest AOPC therefore also include the
    orders by attention and the random orders, so the normalised values are always in [0, 1].
    """
    names = ("comprehensiveness", "sufficiency", "random", "lowest", "highest", "searched")
    table = torch.full((len(view.instances), len(names)), torch.nan, dtype=torch.float64, device=view.device)
    clean = view.probabilities.gather(1, view.predicted[:, None])[:, 0]

    rows = (orders_tokens(view) & (view.lengths <= MOST)).nonzero()[:, 0]
    sizes = view.logits.abs()
    if len(rows):
        sizes = sizes_of_logits(view.logits[:, None], view.batch.logits_leaving_one_out(request.argument)).amax(1)

    #: (B,) the largest rounding error of a fall.
    rounding = torch.zeros_like(clean)

    def falls(rows: Tensor, erased: Tensor) -> Tensor:
        logits = view.batch.erased_logits(rows, view.real[rows] & ~erased, request.argument)
        found = probabilities(logits)
        rounding.scatter_reduce_(0, rows, _rounding(view, rows, found, sizes[rows]), "amax")
        fall = clean[rows] - found.gather(1, view.predicted[rows, None])[:, 0]
        return fall.masked_fill(view.equal_outputs(rows, logits, view.logits[rows], sizes[rows]), 0.0)

    if len(rows):
        most_first, least_first, *random = _orders_aopc(view, rows, falls).unbind(1)
        at_random = torch.stack(random).mean(0)
        lowest, highest = (torch.full_like(at_random, torch.nan) for _ in range(2))
        short = view.lengths[rows] <= EXACT
        for index in short.nonzero()[:, 0].tolist():
            of_sets = _all_sets(view, int(rows[index]), falls)
            lowest[index], highest[index] = extreme_orders(of_sets)
            at_random[index] = _expected(of_sets)
        if not bool(short.all()):
            found = torch.stack([most_first, least_first, *random])[:, ~short]
            low, high = _searched_bounds(view, rows[~short], falls)
            lowest[~short], highest[~short] = torch.minimum(low, found.amin(0)), torch.maximum(high, found.amax(0))
        width = highest - lowest
        width = width.masked_fill(width <= 2 * rounding[rows], torch.nan)
        # Rounding must not move the best order out of [0, 1].
        shares = [((each - lowest) / width).clamp(0.0, 1.0) for each in (most_first, least_first, at_random)]
        columns = [shares[0], 1 - shares[1], shares[2], lowest, highest, (~short).double()]
        table[rows] = torch.stack(columns, dim=1).masked_fill(width.isnan()[:, None], torch.nan)
    return Columns(scalars={f"{request.name}.{name}": table[:, i] for i, name in enumerate(names)})


def _rounding(view: AttentionView, rows: Tensor, found: Tensor, sizes: Tensor) -> Tensor:
    """Return the (V,) rounding errors of the probability of the predicted class.

    Args:
        view: The batch.
        rows: (V,) the row of the batch that each output belongs to.
        found: (V, C) probabilities.
        sizes: (V, C) sizes of the logits.
    """
    open_classes = None if view.open_classes is None else view.open_classes[rows]
    errors = rounding_of_logits(sizes, view.precision, open_classes).double().expand_as(found)
    predicted = view.predicted[rows, None]
    others = found.scatter(1, predicted, 0.0)
    # The derivative of the probability is p (1 - p) for its own logit, and -p q for the logit of a class with q.
    slopes = found.gather(1, predicted) * others.scatter(1, predicted, others.sum(1, keepdim=True))
    return (slopes * errors).sum(1)


def _orders_aopc(view: AttentionView, rows: Tensor, falls: Falls) -> Tensor:
    """Return the (R, 2 + DRAWS) AOPC of three kinds of orders.

    The first order begins with the most attended token, the second with the least attended token, and the others are
    random.
    """
    orders = torch.stack([ranked(view, view.attention), ranked(view, -view.attention)], dim=1)
    orders = torch.cat([orders, random_orders(view, DRAWS, "erasure")], dim=1)[rows]
    lengths = view.lengths[rows]
    steps = torch.arange(1, int(lengths.max()), device=view.device).expand(*orders.shape[:2], -1)
    erased = first(orders, steps)
    used = (steps < lengths[:, None, None]).nonzero(as_tuple=True)
    total = torch.zeros(steps.shape, dtype=torch.float64, device=view.device)
    total[used] = falls(rows[used[0]], erased[used])
    return total.sum(2) / (lengths - 1)[:, None]


def _all_sets(view: AttentionView, row: int, falls: Falls) -> Tensor:
    """Return the (2^n,) falls for all sets of units (tokens or words) of a text; 0 for the empty and the full set."""
    units = view.real[row].nonzero()[:, 0]
    sets = torch.arange(2 ** len(units), device=view.device)
    erased = torch.zeros((len(sets), view.real.shape[1]), dtype=torch.bool, device=view.device)
    erased[:, units] = ((sets[:, None] >> torch.arange(len(units), device=view.device)) & 1).bool()
    result = torch.zeros(len(sets), dtype=torch.float64, device=view.device)
    result[1:-1] = falls(torch.full_like(sets[1:-1], row), erased[1:-1])
    return result


def _expected(of_sets: Tensor) -> float:
    """Return the expected AOPC of a random order, given the (2^n,) falls of all sets."""
    count = len(of_sets).bit_length() - 1
    sets = torch.arange(len(of_sets), device=of_sets.device)
    sizes = sum(((sets >> token) & 1 for token in range(count)), torch.zeros_like(sets))
    return float(torch.stack([of_sets[sizes == k].mean() for k in range(1, count)]).mean())


def _searched_bounds(view: AttentionView, rows: Tensor, falls: Falls) -> tuple[Tensor, Tensor]:
    """Return the (R,) lowest and the (R,) highest AOPC that a beam search finds.

    In each step, the search extends the best partial orders by every unit that they do not contain, for all texts at
    once. If several orders lead to the same set of units, only the best of these orders is kept.
    """
    units = [view.real[row].nonzero()[:, 0].cpu().numpy() for row in rows.tolist()]
    beams: dict[float, list[dict[int, float]]] = {sign: [{0: 0.0} for _ in units] for sign in (-1.0, 1.0)}
    for step in range(1, max(map(len, units))):
        running = [number for number, its in enumerate(units) if step < len(its)]
        sets = {
            number: sorted({s for beam in beams.values() for s in _extended(beam[number], len(units[number]))})
            for number in running
        }
        erased = np.zeros((sum(map(len, sets.values())), view.real.shape[1]), dtype=bool)
        start = 0
        for number, its_sets in sets.items():
            bits = np.array(its_sets)[:, None] >> np.arange(len(units[number])) & 1
            erased[start : start + len(its_sets), units[number]] = bits
            start += len(its_sets)
        row_of = torch.repeat_interleave(
            rows[torch.tensor(running, device=view.device)],
            torch.tensor([len(sets[number]) for number in running], device=view.device),
        )
        found = iter(falls(row_of, torch.from_numpy(erased).to(view.device)).tolist())
        for number, its_sets in sets.items():
            fall = dict(zip(its_sets, found, strict=False))
            for sign, beam in beams.items():
                beam[number] = _best(beam[number], len(units[number]), fall, sign)
    bounds = [
        [
            sign * max(sign * total for total in beam.values()) / (len(its) - 1)
            for its, beam in zip(units, each, strict=True)
        ]
        for sign, each in beams.items()
    ]
    lowest, highest = torch.tensor(bounds, dtype=torch.float64, device=view.device)
    return lowest, highest


def _extended(beam: dict[int, float], count: int) -> list[int]:
    """Return the sets that have one unit more than a set of the beam."""
    return [chosen | 1 << unit for chosen in beam for unit in range(count) if not chosen >> unit & 1]


def _best(beam: dict[int, float], count: int, fall: dict[int, float], sign: float) -> dict[int, float]:
    """Return the best extensions of a beam: set of units -> sum of the falls in the order that leads to this set."""
    totals: dict[int, float] = {}
    for chosen, total in beam.items():
        for extended in _extended({chosen: total}, count):
            new = total + fall[extended]
            if extended not in totals or sign * new > sign * totals[extended]:
                totals[extended] = new
    # Equal totals are ordered by the set, so that the result does not depend on the order of the search.
    kept = sorted(totals, key=lambda extended: (-sign * totals[extended], extended))[:BEAM]
    return {extended: totals[extended] for extended in kept}
