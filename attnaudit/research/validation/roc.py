"""ROC curves, the areas under them, and alarm rates.

Models with the same mechanism lead to similar errors. An additional model with a known mechanism therefore says little
about other mechanisms. For this reason, the interval of an area comes from resampling mechanisms, and then models
within each drawn mechanism. The interval does not cover mechanisms that are absent from the population. The interval of
a rate treats all models as independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnaudit.research.validation.figures_schema import Area, Rate, RocPoint
from attnaudit.seeding import keyed_generator

RESAMPLES = 2000
CONFIDENCE = 0.95

Floats = NDArray[np.float64]


def area_under_curve(faithful: Sequence[float], unfaithful: Sequence[float]) -> float:
    """Return the share of pairs in which the faithful model scores higher than the unfaithful one.

    This share is the area under the ROC curve (Mann & Whitney 1947). A tie counts as one half.

    Args:
        faithful: The scores of the faithful models. An undefined check counts as -inf.
        unfaithful: The scores of the unfaithful models, in the same form.

    Returns:
        The area, from 0 to 1. It is NaN if either argument is empty.
    """
    if not len(faithful) or not len(unfaithful):
        return math.nan
    return float(_wins(np.asarray(faithful, float), np.asarray(unfaithful, float)).mean())


def area(scores: Sequence[float], faithful: Sequence[bool], mechanisms: Sequence[str], *, seed: int) -> Area | None:
    """Return the area under the ROC curve with a 95% percentile interval.

    The interval comes from a two-stage bootstrap (Davison & Hinkley 1997, section 3.8). It draws mechanisms, and then
    models within each drawn mechanism. Faithful and unfaithful models are drawn separately.

    Args:
        scores: One score per model. A higher score means that attention seems more faithful.
        faithful: Whether each model is faithful.
        mechanisms: The mechanism of each model.
        seed: The seed of the bootstrap.

    Returns:
        The area with its interval. It is None unless there are both faithful and unfaithful models.
    """
    values, truth, names = np.asarray(scores, float), np.asarray(faithful, bool), np.asarray(mechanisms, dtype=object)
    if truth.all() or not truth.any():
        return None
    wins = _wins(values[truth], values[~truth])
    generator = keyed_generator(seed, "validation", "mechanisms")
    good, good_mechanisms = _bootstrap_weights(names[truth], generator)
    bad, bad_mechanisms = _bootstrap_weights(names[~truth], generator)
    areas = np.einsum("ri,ij,rj->r", good, wins, bad, optimize=True) / (good.sum(1) * bad.sum(1))
    low, high = np.quantile(areas, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Area(
        value=float(wins.mean()),
        low=float(low),
        high=float(high),
        faithful=int(truth.sum()),
        unfaithful=int((~truth).sum()),
        faithful_mechanisms=good_mechanisms,
        unfaithful_mechanisms=bad_mechanisms,
    )


def roc_curve(faithful: Sequence[float], unfaithful: Sequence[float]) -> list[RocPoint]:
    """Return the points of the ROC curve, from (0, 0) to (1, 1).

    Each score serves as a cut-off. A model raises an alarm if its score is at most the cut-off.

    Args:
        faithful: The scores of the faithful models.
        unfaithful: The scores of the unfaithful models.

    Returns:
        The points without duplicates. The list is empty if either argument is empty.
    """
    good, bad = np.sort(np.asarray(faithful, float)), np.sort(np.asarray(unfaithful, float))
    if not len(good) or not len(bad):
        return []
    points = [(0.0, 0.0)]
    for cutoff in np.unique(np.concatenate([good, bad])):
        points.append(
            (
                float(np.searchsorted(good, cutoff, side="right") / len(good)),
                float(np.searchsorted(bad, cutoff, side="right") / len(bad)),
            )
        )
    return [RocPoint(false_alarms=x, sensitivity=y) for x, y in dict.fromkeys(points)]


def wilson(hits: int, n: int) -> Rate:
    """Return the rate hits / n with Wilson's score interval (Wilson 1927).

    For n = 0, the value of the rate is None and the interval is [0, 1].
    """
    from scipy.stats import binomtest

    if not n:
        return Rate(hits=0, n=0, value=None, low=0.0, high=1.0)
    interval = binomtest(hits, n).proportion_ci(confidence_level=CONFIDENCE, method="wilson")
    return Rate(hits=hits, n=n, value=hits / n, low=float(interval.low), high=float(interval.high))


def _bootstrap_weights(mechanisms: NDArray[np.object_], generator: np.random.Generator) -> tuple[Floats, int]:
    """Draw the resamples of the bootstrap.

    Returns:
        (RESAMPLES, models) How often each resample draws each model, and the number of mechanisms.
    """
    names = sorted(set(mechanisms))
    draws = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLES)
    weights = np.zeros((RESAMPLES, len(mechanisms)))
    for position, name in enumerate(names):
        members = np.flatnonzero(mechanisms == name)
        even = np.full(len(members), 1 / len(members))
        weights[:, members] = generator.multinomial(draws[:, position] * len(members), even)
    return weights, len(names)


def _wins(good: Floats, bad: Floats) -> Floats:
    """Compare each score in `good` with each score in `bad`.

    Returns:
        (len(good), len(bad)) 1 where the score in `good` is higher, 1/2 for a tie, else 0.
    """
    wins: Floats = (good[:, None] > bad[None, :]) + 0.5 * (good[:, None] == bad[None, :])
    return wins
