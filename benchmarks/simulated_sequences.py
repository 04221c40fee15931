"""Simulated confidence sequences whose true value lies exactly on the threshold, so that every verdict is an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.records import Requirement
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.centred_logits import CentredLogits
from attnaudit.statistics.confidence_sequence import ConfidenceSequence, EnclosedSequence
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.independent_units import balanced_units
from attnaudit.statistics.kept_differences import KeptDifferences
from attnaudit.statistics.standardised_logits import StandardisedLogits
from attnaudit.statistics.statistic_sequences import (
    KEPT_ROWS,
    limited_ratio_sequence,
    lost_share_sequence,
    mean_sequence,
    total_effect_sequence,
    unbet_units,
)
from benchmarks.coverage_samples import CLUSTERS, grouped, populations, shapes

CONFIDENCE = 0.95
#: Rows or sources of a simulated sequence.
LENGTH = 1000
#: The z-test is looked at from this number of values on.
FIRST_PEEK = 30

#: Draws one sequence, and returns it with the true value of its statistic.
Draw = Callable[[np.random.Generator], tuple[ConfidenceSequence | EnclosedSequence, float]]


def of_mean(values: Callable[[np.random.Generator], Floats], truth: float) -> Draw:
    """Return how to draw a sequence of a mean of independent values between 0 and 1."""

    groups, order = grouped(np.arange(LENGTH)), np.arange(LENGTH)

    def draw(random: np.random.Generator) -> tuple[ConfidenceSequence, float]:
        return mean_sequence(values(random), groups, order, bounds=(0.0, 1.0), confidence=CONFIDENCE), truth

    return draw


def draw_clustered(random: np.random.Generator) -> tuple[ConfidenceSequence, float]:
    """Draw sources of 1, 2, 4 or 8 rows. Rows of one source have similar values, and larger sources larger ones."""
    sizes = random.choice(CLUSTERS, LENGTH)
    mean = 0.1 + 0.08 * sizes
    rates = np.repeat(random.beta(2 * mean, 2 * (1 - mean)), sizes)
    values = (random.random(len(rates)) < rates).astype(np.float64)
    groups = Groups(rows=np.arange(len(rates)), starts=np.cumsum(sizes) - sizes)
    truth = float(sum(size * (0.1 + 0.08 * size) for size in CLUSTERS) / sum(CLUSTERS))
    return mean_sequence(values, groups, np.arange(LENGTH), bounds=(0.0, 1.0), confidence=CONFIDENCE), truth


def drawn_rows(classes: Integers, positive: float, random: np.random.Generator) -> Integers:
    """Return 2,000 rows drawn with replacement, of which a share of `positive` is expected to have the class 1."""
    first, second = (random.choice(np.flatnonzero(classes == one), 2 * LENGTH) for one in (0, 1))
    found: Integers = np.where(random.random(2 * LENGTH) < positive, second, first)
    return found


def of_share(positive: float) -> Draw:
    """Return how to draw a sequence of the share of rows on which attention points, with the weights of the texts."""
    largest, cosine, uniform = (np.array(column) for column in shapes()["pointing"].values())
    weights = largest * (1 - uniform)
    chosen = (largest * (cosine - uniform) >= 0.5 * weights).astype(np.float64)
    classes = (cosine > np.median(cosine)).astype(np.int64)
    population = WeightedRows.balanced(classes, grouped(np.arange(len(classes))))

    def draw(random: np.random.Generator) -> tuple[ConfidenceSequence, float]:
        rows = drawn_rows(classes, positive, random)
        units = balanced_units(classes[rows], range(len(rows)), 1)
        one = limited_ratio_sequence(
            chosen[rows] * weights[rows], weights[rows], weights[rows], units, confidence=CONFIDENCE, high=1.0
        )
        limited = np.minimum(weights, one.bounds.most_below)
        return one, float(population.mean(limited * chosen) / population.mean(limited))

    return draw


def of_total_effect(positive: float) -> Draw:
    """Return how to draw a sequence of the total-effect index of standardised probabilities."""
    stored = {name: np.array(values) for name, values in shapes()["rearrangement"].items()}
    before = stored["logit"]
    after = before - np.sign(before) * np.sqrt(2 * stored["change of the logits"])
    logits, others = (np.stack([-z / 2, z / 2], axis=1) for z in (before, after))
    classes = (before > 0).astype(np.int64)
    population = WeightedRows.balanced(classes, grouped(np.arange(len(classes))))

    def draw(random: np.random.Generator) -> tuple[ConfidenceSequence, float]:
        rows = drawn_rows(classes, positive, random)
        units = balanced_units(classes[rows], range(len(rows)), 2)
        outputs, changes = standardised(logits, others[:, None], classes, rows[units[: unbet_units(units)]])
        one = total_effect_sequence(changes[rows], outputs[rows], units, confidence=CONFIDENCE)
        limited = np.minimum(changes, one.bounds.most_above)
        return one, float(population.mean(limited)) / (2 * variance(outputs, population))

    return draw


def of_lost_share(positive: float) -> Draw:
    """Return how to draw a sequence of the lost share of the differences between outputs.

    The outputs under rearranged attention weights stand for the outputs if only the attended tokens are kept.
    """
    stored = {name: np.array(values) for name, values in shapes()["rearrangement"].items()}
    before = stored["logit"]
    after = before - np.sign(before) * np.sqrt(2 * stored["change of the logits"])
    logits, changes = (np.stack([-z / 2, z / 2], axis=1) for z in (before, after - before))
    classes = (before > 0).astype(np.int64)

    def draw(random: np.random.Generator) -> tuple[EnclosedSequence, float]:
        drawn = drawn_rows(classes, positive, random)
        rows = np.concatenate([drawn, np.arange(len(classes))])  # and all rows of the population
        units = balanced_units(classes[rows], range(len(drawn)), KEPT_ROWS // 2)
        first = np.unique(units[: unbet_units(units)])
        kept = kept_differences(logits[rows], changes[rows], classes[rows], first)
        one = lost_share_sequence(kept.outputs, kept.kept, kept.factor, units, confidence=CONFIDENCE)
        longest = np.maximum(kept.sizes, kept.lost)
        scale = np.minimum(1.0, longest[first].max() / longest)[:, None]
        outputs, shifts = ((vectors * scale)[len(drawn) :] for vectors in (kept.outputs, kept.kept - kept.outputs))
        return one, 1 - kept_differences(outputs, shifts, classes, np.arange(len(classes))).value

    return draw


def kept_differences(logits: Floats, changes: Floats, classes: Integers, chosen: Integers) -> KeptDifferences:
    """Return the differences between outputs that stay, with the means and the factor of the chosen rows.

    Args:
        logits: (n, C) centred logits.
        changes: (n, C) their changes.
        classes: (n,) classes. All have the same weight.
        chosen: The chosen rows, without duplicates.
    """
    rows = WeightedRows.balanced(classes, Groups(rows=chosen, starts=np.arange(len(chosen))))
    centred = CentredLogits.of(logits, rows)
    if centred is None:
        raise ValueError("The logits of the chosen rows do not vary.")
    return KeptDifferences.of(centred, changes, rows)


def standardised(logits: Floats, others: Floats, classes: Integers, first: Integers) -> tuple[Floats, Floats]:
    """Standardise the outputs of all rows with the mean and the scale of some rows, and measure their changes.

    Args:
        logits: (n, C) centred logits.
        others: (n, K, C) the same after K rearrangements; NaN where there are fewer.
        classes: (n,) classes.
        first: The rows that decide the mean and the scale. A row can occur several times.

    Returns:
        (n, C) probabilities, and (n,) mean squared distances between them and the probabilities after rearrangements.
    """
    flat = first.ravel()
    rows = WeightedRows.balanced(classes[flat], grouped(np.arange(len(flat))))
    standard = StandardisedLogits.of(logits[flat], rows)
    if standard is None:
        raise ValueError("The logits of the first rows do not vary.")
    outputs = standard.probabilities(logits)
    squares = ((standard.probabilities(others) - outputs[:, None]) ** 2).sum(-1)
    return outputs, np.nanmean(squares, axis=1)


def variance(outputs: Floats, rows: WeightedRows) -> float:
    """Return the weighted variance of outputs, summed over the classes."""
    return float(rows.mean(((outputs - rows.mean(outputs)) ** 2).sum(1)))


def scenarios() -> dict[str, Draw]:
    """Return the simulated sequences by name."""
    tvd = populations()["permutation TVD"]
    grid = np.linspace(0, 1, 100_001)
    return {
        "Bernoulli, 0.3": of_mean(lambda random: (random.random(LENGTH) < 0.3).astype(np.float64), 0.3),
        "Bernoulli, 0.02": of_mean(lambda random: (random.random(LENGTH) < 0.02).astype(np.float64), 0.02),
        "Beta(5, 2)": of_mean(lambda random: random.beta(5, 2, LENGTH), 5 / 7),
        "Beta(0.2, 6), skewed": of_mean(lambda random: random.beta(0.2, 6, LENGTH), 0.2 / 6.2),
        "permutation TVD, as measured": of_mean(
            lambda random: tvd.at(random.random(LENGTH)), float(np.trapezoid(tvd.at(grid), grid))
        ),
        "sources of 1 to 8 rows, alike": draw_clustered,
        "share, weighted, balanced classes": of_share(0.5),
        "share, weighted, 10% of one class": of_share(0.1),
        "total effect, standardised, balanced classes": of_total_effect(0.5),
        "total effect, standardised, 10% of one class": of_total_effect(0.1),
        "lost share of differences, balanced classes": of_lost_share(0.5),
        "lost share of differences, 10% of one class": of_lost_share(0.1),
    }


def peeked(one: ConfidenceSequence | EnclosedSequence, truth: float) -> tuple[bool, bool]:
    """Run a 95% z-test after each value. Return whether its first error is above, and whether it is below."""
    if isinstance(one, EnclosedSequence):
        return peeked(one.lower, truth)[0], peeked(one.upper, truth)[1]
    differences = one.above - truth * one.below
    count = np.arange(1, len(differences) + 1)
    total, squares = differences.cumsum(), (differences**2).cumsum()
    spread = np.sqrt(np.maximum(squares - total**2 / count, 1e-300) * count / np.maximum(count - 1, 1))
    z = (total / spread)[FIRST_PEEK:]
    reached = np.flatnonzero(np.abs(z) > 1.96)
    if not len(reached):
        return False, False
    return bool(z[reached[0]] > 0), bool(z[reached[0]] < 0)


def simulate(draw: Draw, trials: int, seed: int) -> dict[str, Any]:
    """Return how often a sequence errs, that is, settles on either side although the truth is on the threshold."""
    random, verdicts, peeks = np.random.default_rng(seed), Counter[str](), np.zeros(2)
    for _ in range(trials):
        one, truth = draw(random)
        verdicts[one.settle(Requirement(direction="at_least", value=truth)).verdict] += 1
        peeks += peeked(one, truth)
    return {
        "above": verdicts["pass"] / trials,
        "below": verdicts["fail"] / trials,
        "peeking": (peeks / trials).tolist(),
    }
