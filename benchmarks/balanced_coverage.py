"""Scenarios of coverage.py for statistics in which every class has the same weight.

The rows are those of coverage_shapes.json. The statistic gives every class the same weight. Its true value therefore
does not depend on the share of a class in the samples. Its interval does, because a rare class has few rows. Samples in
which a class has no row are left out: their statistic is about the other class only.
"""

from __future__ import annotations

import numpy as np

from attnaudit.arrays import Integers
from attnaudit.checks.builtin.pointing_terms import POINTS
from attnaudit.checks.builtin.predicted_classes import FEWEST_SOURCES
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.standardised_logits import StandardisedLogits
from attnaudit.statistics.total_effect_index import TotalEffectIndex
from attnaudit.statistics.weighted_share import weighted_share_interval
from benchmarks.coverage_samples import (
    CORRELATION,
    LEVELS,
    Floats,
    Scenario,
    clustered,
    independent,
    shapes,
    uniform_of,
)


def drawn_rows(chance: Floats, n: int, random: np.random.Generator, sources: bool) -> tuple[Groups, Integers]:
    """Return groups of n rows, and the (n,) stored rows that are drawn with these probabilities."""
    groups, members = clustered(n, random) if sources else independent(n)
    u = uniform_of(members, random, CORRELATION if sources else 0.0)
    return groups, np.minimum(np.searchsorted(chance.cumsum(), u), len(chance) - 1)


def shares(classes: Integers, positive: float) -> Floats:
    """Return probabilities of the stored rows that give class 1 a share of `positive`."""
    one = classes == 1
    found: Floats = np.where(one, positive / one.sum(), (1 - positive) / (~one).sum())
    return found


def of_balanced_total_effect(
    on: str,
    shape: str,
    *,
    positive: float = 0.5,
    sources: bool = False,
    smallest: bool = False,
    mirrored: bool = False,
) -> Scenario:
    """Return the scenario of the total-effect index with balanced classes.

    The rows are 201 rows of the demo model, ordered by their logit. The class of a row is the sign of its logit. The
    logit under other weights is the stored logit, moved towards 0 by its average change.

    Args:
        on: "logits" or "standardised".
        shape: The name of the scenario.
        positive: The share of rows with a positive logit.
        sources: Whether rows share sources, which gives them similar logits.
        smallest: Whether the statistic is the smallest index of a class. Samples with fewer than 10 sources of a class
            then have no value.
        mirrored: Whether every row is also used with all signs reversed. Both classes then have the same index.
    """
    stored = {name: np.array(values) for name, values in shapes()["rearrangement"].items()}
    z = stored["logit"]
    moved = z - np.sign(z) * np.sqrt(2 * stored["change of the logits"])
    if mirrored:
        z, moved = (np.concatenate([-x[::-1], x]) for x in (z, moved))
        order = np.argsort(z, kind="stable")
        z, moved = z[order], moved[order]
    logits, others = (np.stack([-x / 2, x / 2], axis=1) for x in (z, moved))
    classes = (z > 0).astype(np.int64)

    def index(rows: Integers, weights: WeightedRows) -> TotalEffectIndex | None:
        before, after = logits[rows], others[rows]
        if on == "standardised":
            standard = StandardisedLogits.of(before, weights)
            if standard is None:
                return None
            before, after = standard.probabilities(before), standard.probabilities(after)
        return TotalEffectIndex.of(((before - after) ** 2).sum(1), before, weights)

    every = np.arange(len(z))
    population = index(every, WeightedRows.balanced(classes, independent(len(z))[0]))
    assert population is not None
    truth, chance = population.smallest if smallest else population.value, shares(classes, positive)

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        groups, rows = drawn_rows(chance, n, random, sources)
        weights = WeightedRows.balanced(classes[rows], groups)
        if len(weights.members) < 2 or (smallest and weights.fewest_sources < FEWEST_SOURCES):
            return None
        found = index(rows, weights)
        if found is None:
            return None
        interval = found.interval_of_smallest if smallest else found.interval
        return interval(confidence=LEVELS[0], generator=random)

    which = "smallest of the classes" if smallest else "balanced"
    name = f"total effect, {which}, {on}" + (", sources of 1 to 8" if sources else "")
    return Scenario(name, shape, draw, lambda n: truth, slow=True)


def of_balanced_pointing(
    measure: str, shape: str, *, right: float = 1.0, positive: float = 0.5, sources: bool = False
) -> Scenario:
    """Return the scenario of the pointing check with balanced classes.

    A row has the class 1 if its cosine is above the median. Attention therefore points better in this class.

    Args:
        measure: "cosine", "plain" or "share".
        shape: The name of the scenario.
        right: The share of the stored rows of each class on which attention points as measured. On the others, it
            points as uniform weights do.
        positive: The share of rows of class 1.
        sources: Whether rows share sources. Rows of one source then point similarly well.
    """
    largest, cosine, uniform = (np.array(column) for column in shapes()["pointing"].values())
    order = np.argsort(cosine)
    largest, cosine, uniform = largest[order], cosine[order], uniform[order]
    classes = (np.arange(len(cosine)) >= len(cosine) // 2).astype(np.int64)
    room, gain = largest * (1 - uniform), largest * (cosine - uniform)
    wrong = np.random.default_rng(0).permutation(len(cosine)) >= right * len(cosine)
    gain[wrong] = 0.0
    above = np.where(gain >= POINTS * room, room, 0.0) if measure == "share" else gain
    if measure == "plain":
        above, room = largest * cosine, largest
    population = WeightedRows.balanced(classes, independent(len(room))[0])
    truth, chance = float(population.mean(above) / population.mean(room)), shares(classes, positive)

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        groups, rows = drawn_rows(chance, n, random, sources)
        if len(np.unique(classes[rows])) < 2:
            return None
        weighted = WeightedRows.balanced(classes[rows], groups)
        if measure == "share":
            return weighted_share_interval(above[rows], room[rows], weighted, confidence=LEVELS[0])
        return weighted.ratio_interval(
            above[rows],
            room[rows],
            confidence=LEVELS[0],
            generator=random,
            bounds=(0.0 if measure == "plain" else -np.inf, 1.0),
            extremes=(0.0 if measure == "plain" else -1.0, 1.0),
        )

    name = f"pointing, balanced, {measure}" + (", sources of 1 to 8" if sources else "")
    return Scenario(name, shape, draw, lambda n: truth, slow=True)


def balanced_scenarios() -> list[Scenario]:
    """Return the scenarios in the order of the tables."""
    return [
        of_balanced_total_effect("logits", "as measured"),
        of_balanced_total_effect("logits", "5% positive", positive=0.05),
        of_balanced_total_effect("standardised", "as measured"),
        of_balanced_total_effect("standardised", "as measured", sources=True),
        of_balanced_total_effect("standardised", "5% positive", positive=0.05),
        of_balanced_pointing("cosine", "as measured"),
        of_balanced_pointing("cosine", "5% of one class", positive=0.05),
        of_balanced_pointing("plain", "as measured"),
        of_balanced_pointing("plain", "as measured", sources=True),
        of_balanced_pointing("plain", "5% of one class", positive=0.05),
        of_balanced_pointing("share", "60% right", right=0.6),
        of_balanced_pointing("share", "60% right", right=0.6, sources=True),
        of_balanced_pointing("share", "95% right", right=0.95),
        of_balanced_pointing("share", "95% right", right=0.95, sources=True),
        of_balanced_pointing("share", "98% right", right=0.98),
        of_balanced_pointing("share", "60% right, 5% of one class", right=0.6, positive=0.05),
        of_balanced_total_effect("standardised", "as measured", smallest=True),
        of_balanced_total_effect("standardised", "as measured", smallest=True, sources=True),
        of_balanced_total_effect("standardised", "30% positive", smallest=True, positive=0.3),
        of_balanced_total_effect("standardised", "both classes alike", smallest=True, mirrored=True),
    ]
