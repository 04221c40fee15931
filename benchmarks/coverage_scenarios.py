"""The scenarios of coverage.py: statistics of the checks on populations with known true values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.cohens_kappa import CohensKappa
from attnaudit.statistics.f1_drop import F1Drop
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval, median_interval, proportion_interval, ratio_interval
from attnaudit.statistics.total_effect_index import TotalEffectIndex
from benchmarks.balanced_coverage import balanced_scenarios
from benchmarks.coverage_samples import (
    CORRELATION,
    LEVELS,
    Floats,
    Population,
    Scenario,
    clustered,
    independent,
    populations,
    shapes,
    uniform_of,
)

#: The number of permutations per instance.
PERMUTATIONS = 20
#: The expected attention weight of the states of each attention rank, in the scenarios of the information ranking.
WEIGHTS_OF_RANKS = (0.4, 0.25, 0.15, 0.12, 0.08)


def of_values(statistic: str, shape: str, population: Population, truth: float, *, sources: bool = False) -> Scenario:
    """Return the scenario of a mean, a median or a proportion.

    Args:
        statistic: The name of the statistic.
        shape: The name of the distribution.
        population: The distribution of the values.
        truth: The true value.
        sources: Whether several rows share a source.
    """

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        groups, members = clustered(n, random) if sources else independent(n)
        values = population.at(uniform_of(members, random, CORRELATION if sources else 0.0))
        if statistic.startswith("median"):
            return median_interval(values, groups, confidence=LEVELS[0])
        if statistic.startswith("proportion"):
            return proportion_interval(values, groups, confidence=LEVELS[0])
        return mean_interval(values, groups, confidence=LEVELS[0], generator=random)

    name = f"{statistic}, sources of 1 to 8" if sources else statistic
    return Scenario(name, shape, draw, lambda n: truth)


def of_ratio(shape: str, divisor: Population, share: float) -> Scenario:
    """Return the scenario of the ratio that the erasure checks compute: mean gain over mean largest gain.

    Args:
        shape: The name of the scenario.
        divisor: The distribution of the largest gain.
        share: The ratio around which the gains are drawn. Gains are clipped, so the true value is slightly different.
    """

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        largest = divisor.at(random.random(n))
        gain = largest * np.clip(share + 0.5 * random.normal(size=n), -1, 1)
        groups, _ = independent(n)

        return ratio_interval(gain, largest, groups, confidence=LEVELS[0], generator=random)

    truth = float(np.clip(share + 0.5 * np.random.default_rng(0).normal(size=4_000_000), -1, 1).mean())
    return Scenario("ratio of means", shape, draw, lambda n: truth)


def of_pointing(shape: str, power: int, *, sources: bool = False) -> Scenario:
    """Return the scenario of the pointing check: how far attention exceeds uniform weights in cosine.

    The population is the measured instances. Each has three numbers: its largest effect, and the cosines of attention
    and of uniform weights with the effects.

    Args:
        shape: The name of the scenario.
        power: The largest effects are raised to this power, so that fewer instances carry the weight.
        sources: Whether rows share sources. Rows of one source then point similarly well.
    """
    largest, cosine, uniform = (np.array(column) for column in shapes()["pointing"].values())
    gain, room = largest**power * (cosine - uniform), largest**power * (1 - uniform)
    truth = float(gain.sum() / room.sum())
    order = np.argsort(gain - truth * room)

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        groups, members = clustered(n, random) if sources else independent(n)
        u = uniform_of(members, random, CORRELATION if sources else 0.0)
        rows = order[np.minimum((u * len(order)).astype(np.int64), len(order) - 1)]
        return ratio_interval(
            gain[rows],
            room[rows],
            groups,
            confidence=LEVELS[0],
            generator=random,
            bounds=(-np.inf, 1.0),
            extremes=(-1.0, 1.0),
        )

    return Scenario("pointing" + (", sources of 1 to 8" if sources else ""), shape, draw, lambda n: truth)


def of_f1(shape: str, changed: Population | float, replacements: int, *, sources: bool = False) -> Scenario:
    """Return the scenario of a drop in F1, with two classes and the confusion matrix of the demo model.

    Args:
        shape: The name of the scenario.
        changed: The probability that a replacement of the weights flips a prediction. If it differs between instances,
            its distribution.
        replacements: The number of replacements per instance.
        sources: Whether several rows share a source.
    """
    counts = shapes()["uniform"]
    cells = [(t, p) for t in (0, 1) for p in (0, 1)]
    names = ("negative", "positive")
    share = np.array(
        [sum(v for k, v in counts.items() if k.startswith(f"{names[t]} predicted {names[p]},")) for t, p in cells],
        dtype=np.float64,
    )
    share /= share.sum()
    flip = changed if isinstance(changed, float) else changed.mean()

    def f1(positive: Floats) -> float:
        true = share[2] + share[3]
        return float(2 * (share[2:] * positive[2:]).sum() / (true + (share * positive).sum()))

    original = np.array([p for _, p in cells], dtype=np.float64)
    truth = f1(original) - f1(original * (1 - flip) + (1 - original) * flip)

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        chosen = random.choice(4, n, p=share)
        labels, predicted = np.array(cells)[chosen].T
        chance = np.full(n, changed) if isinstance(changed, float) else changed.at(random.random(n))
        groups, members = clustered(n, random) if sources else independent(n)
        drawn = [uniform_of(members, random, CORRELATION if sources else 0.0) for _ in range(replacements)]
        flipped = np.column_stack(drawn) < chance[:, None]
        replaced = np.where(flipped, 1 - predicted[:, None], predicted[:, None]).astype(np.float64)
        drop = F1Drop.of(labels, predicted[:, None].astype(float), replaced, classes=len(names))
        return drop.interval(groups, confidence=LEVELS[0])

    name = "ΔF1, " + ("uniform" if replacements == 1 else "permutations") + (", sources of 1 to 8" if sources else "")
    return Scenario(name, shape, draw, lambda n: truth)


def of_total_effect(
    on: str, shape: str, *, positive: float = 0.5, outliers: float = 1.0, sources: bool = False
) -> Scenario:
    """Return the scenario of the total-effect index of attention, or of Cohen's κ.

    The rows are 201 rows of the demo model, ordered by their logit.

    Args:
        on: "logits", "probabilities" or "decisions".
        shape: The name of the scenario.
        positive: The share of rows with a positive logit.
        outliers: The logit of one row in a hundred, and the change of this logit, are multiplied by this factor.
        sources: Whether rows share sources, which gives them similar logits.
    """
    stored = {name: np.array(values) for name, values in shapes()["rearrangement"].items()}
    size = len(stored["logit"])
    above = stored["logit"] > 0
    chance = np.where(above, positive / above.sum(), (1 - positive) / (~above).sum())
    factor = np.ones(size)
    factor[np.random.default_rng(0).permutation(size)[: size // 100]] = outliers
    z = stored["logit"] * factor
    p = 1 / (1 + np.exp(-z))
    outputs = np.stack([-z / 2, z / 2] if on == "logits" else [1 - p, p], axis=1)
    changes = stored["change of the logits"] * factor**2 if on == "logits" else stored["change of the probabilities"]
    flips = stored["decisions changed"][:, None]
    shares = np.where(above[:, None], np.hstack([flips, 1 - flips]), np.hstack([1 - flips, flips]))
    if on == "decisions":
        kappa = CohensKappa.of(above.astype(np.int64), shares)
        truth = float(kappa.kappa((chance @ kappa.columns(np.arange(len(chance))))[None])[0])
    else:
        variance = float(chance @ ((outputs - chance @ outputs) ** 2).sum(1))
        truth = float(chance @ changes) / (2 * variance)

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        groups, members = clustered(n, random) if sources else independent(n)
        u = uniform_of(members, random, CORRELATION if sources else 0.0)
        rows = np.minimum(np.searchsorted(chance.cumsum(), u), size - 1)
        if on == "decisions":
            kappa = CohensKappa.of(above[rows].astype(np.int64), shares[rows])
            return kappa.interval(groups, confidence=LEVELS[0], generator=random)
        index = TotalEffectIndex.of(changes[rows], outputs[rows], WeightedRows.equal(n, groups))
        return None if index is None else index.interval(confidence=LEVELS[0], generator=random)

    name = "Cohen's κ" if on == "decisions" else f"total effect, {on}"
    return Scenario(name + (", sources of 1 to 8" if sources else ""), shape, draw, lambda n: truth)


def of_ranking(shape: str, information: Sequence[float]) -> Scenario:
    """Return the scenario of the information ranking.

    The true value is the statistic for the true order of the strengths in `information`.

    Args:
        shape: The name of the scenario.
        information: For each attention rank, how strongly the states of this rank depend on the output.
    """
    from attnaudit.checks.builtin.information_ranking import ranking_interval
    from attnaudit.metrics.ranked_information import information_ranking, ranking_agreement

    def weights_of(n: int, random: np.random.Generator) -> Floats:
        found: Floats = -np.sort(-random.dirichlet(40 * np.array(WEIGHTS_OF_RANKS), n), axis=1)
        return found

    # Sorting the weights of each instance changes the mean weight of each rank, and therefore the weight of each pair.
    mean = weights_of(1_000_000, np.random.default_rng(0)).mean(0)
    truth = ranking_agreement(np.array(information, dtype=np.float64), mean)[0]

    def draw(n: int, random: np.random.Generator) -> IntervalEstimate | None:
        output = random.normal(size=n)
        states = random.normal(size=(n, len(information), 8))
        states[:, :, :2] += np.array(information)[None, :, None] * output[:, None, None]
        weights = weights_of(n, random)
        ranking = information_ranking(states, weights, output[:, None], seed=int(random.integers(1 << 30)))
        if np.isnan(ranking.weighted_tau):
            return None
        groups, _ = independent(n)
        return ranking_interval(ranking, weights, groups, confidence=LEVELS[0], generator=random, shuffling=random)

    return Scenario("MI ranking", shape, draw, lambda n: truth, slow=True)


def scenarios() -> list[Scenario]:
    """Return all scenarios in the order of the tables."""
    known = populations()
    found = []
    for name in (
        "tau of the gradient", "tau of the gradient, tied", "tau of leave-one-out", "influence entropy",
        "permutation TVD", "uniform TVD", "uniform TVD, 70% zero", "JSD at .01", "JSD at .2",
    ):  # fmt: skip
        found.append(of_values("mean", name, known[name], known[name].mean()))
    for name in ("tau of leave-one-out", "uniform TVD"):
        found.append(of_values("mean", name, known[name], known[name].mean(), sources=True))
    for name in ("tau of the gradient, tied", "largest weight", "uniform TVD"):
        found.append(of_values("median", name, known[name], known[name].median()))
    found.append(of_values("median", "uniform TVD", known["uniform TVD"], known["uniform TVD"].median(), sources=True))
    for share in (0.02, 0.1, 0.5):
        ones = Population(np.linspace(0, 1, 201), lambda u, share=share: (u < share).astype(np.float64))
        found.append(of_values("proportion", f"{share:g}", ones, share))
        if share != 0.02:
            found.append(of_values("proportion", f"{share:g}", ones, share, sources=True))
    for name in ("largest weight", "uniform TVD"):
        found.append(of_ratio(f"share of {name}", known[name], 0.6))
    found.append(of_f1("4% flip", 0.04, 1))
    found.append(of_f1("30% flip", 0.3, 1))
    found.append(of_f1("flips as measured", known["permutation flips"], PERMUTATIONS))
    found.append(of_ranking("in order", (1.2, 0.8, 0.5, 0.25, 0.0)))
    found.append(of_ranking("partly in order", (0.5, 1.2, 0.8, 0.0, 0.25)))
    found += [of_f1(shape, share, 1, sources=True) for shape, share in (("4% flip", 0.04), ("30% flip", 0.3))]
    for on in ("logits", "probabilities", "decisions"):
        found.append(of_total_effect(on, "as measured"))
        found.append(of_total_effect(on, "as measured", sources=True))
        rare = 0.2 if on == "decisions" else 0.05
        found.append(of_total_effect(on, f"{rare:.0%} positive", positive=rare))
    found.append(of_total_effect("logits", "1% of the logits threefold", outliers=3.0))
    found += [of_pointing("as measured", 1), of_pointing("few instances carry the weight", 4)]
    found.append(of_pointing("as measured", 1, sources=True))
    return found + balanced_scenarios()
