"""ROC curves, areas and rates over models, with intervals that know that models come in kinds.

Models of one kind are built alike and err alike: what generalises is the kind. So intervals of an area resample kinds,
and models within them, and say nothing of kinds that nobody thought of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attnaudit.research.validation.validation_records import Area, Rate, RocPoint
from attnaudit.seeding import keyed_generator

RESAMPLES = 2000
CONFIDENCE = 0.95

Scores = NDArray[np.float64]


def area_under_curve(faithful: Sequence[float], unfaithful: Sequence[float]) -> float:
    """The chance that a faithful model scores higher than an unfaithful one, ties counted half (Mann & Whitney).

    NaN when either side is empty. Scores may be -inf: the value of a check that is undefined.
    """
    if not len(faithful) or not len(unfaithful):
        return math.nan
    return float(_wins(np.asarray(faithful, float), np.asarray(unfaithful, float)).mean())


def area(scores: Sequence[float], faithful: Sequence[bool], kinds: Sequence[str], *, seed: int) -> Area | None:
    """The area with a percentile interval from resampling kinds, and models within each drawn kind; faithful and
    unfaithful ones apart (two-stage bootstrap; Davison & Hinkley 1997, 3.8).

    scores: one per model, higher where attention seems faithful. None when either truth is absent.
    """
    values, truth, names = np.asarray(scores, float), np.asarray(faithful, bool), np.asarray(kinds, dtype=object)
    if truth.all() or not truth.any():
        return None
    wins = _wins(values[truth], values[~truth])
    generator = keyed_generator(seed, "validation", "kinds")
    good, good_kinds = _resampled(names[truth], generator)
    bad, bad_kinds = _resampled(names[~truth], generator)
    found = np.einsum("ri,ij,rj->r", good, wins, bad, optimize=True) / (good.sum(1) * bad.sum(1))
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Area(
        value=float(wins.mean()),
        low=float(low),
        high=float(high),
        faithful=int(truth.sum()),
        unfaithful=int((~truth).sum()),
        faithful_kinds=good_kinds,
        unfaithful_kinds=bad_kinds,
    )


def roc_curve(faithful: Sequence[float], unfaithful: Sequence[float]) -> list[RocPoint]:
    """Points of the curve, from (0, 0) to (1, 1): an alarm is raised for a score below the cut.

    sensitivity: share of unfaithful models with an alarm. false_alarms: share of faithful ones.
    """
    good, bad = np.sort(np.asarray(faithful, float)), np.sort(np.asarray(unfaithful, float))
    if not len(good) or not len(bad):
        return []
    cuts = np.unique(np.concatenate([good, bad]))
    points = [(0.0, 0.0)]
    for cut in cuts:
        points.append(
            (
                float(np.searchsorted(good, cut, side="right") / len(good)),
                float(np.searchsorted(bad, cut, side="right") / len(bad)),
            )
        )
    return [RocPoint(false_alarms=x, sensitivity=y) for x, y in dict.fromkeys(points)]


def wilson(hits: int, n: int, *, confidence: float = CONFIDENCE) -> Rate:
    """The share hits / n with Wilson's score interval (1927, eq. for the inverted score test). n = 0 gives [0, 1]."""
    from scipy.special import ndtri

    if not n:
        return Rate(hits=0, n=0, value=None, low=0.0, high=1.0)
    z2 = float(ndtri((1 + confidence) / 2)) ** 2
    share = hits / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    low = 0.0 if hits == 0 else max(0.0, centre - reach)
    high = 1.0 if hits == n else min(1.0, centre + reach)
    return Rate(hits=hits, n=n, value=share, low=low, high=high)


def _resampled(kinds: NDArray[np.object_], generator: np.random.Generator) -> tuple[Scores, int]:
    """(RESAMPLES, models) how often each model is drawn, and how many kinds there are."""
    names = sorted(set(kinds))
    drawn = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLES)
    weights = np.zeros((RESAMPLES, len(kinds)))
    for position, name in enumerate(names):
        members = np.flatnonzero(kinds == name)
        even = np.full(len(members), 1 / len(members))
        weights[:, members] = generator.multinomial(drawn[:, position] * len(members), even)
    return weights, len(names)


def _wins(good: Scores, bad: Scores) -> Scores:
    higher: Scores = (good[:, None] > bad[None, :]) + 0.5 * (good[:, None] == bad[None, :])
    return higher
