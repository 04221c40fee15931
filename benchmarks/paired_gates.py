"""Measure how often paired gates block by mistake, how often they detect a change, and how many rows pairing saves.

The difference between the two models of a pair is known on a population of rows. The pairs are the same model twice, a
model and a copy with noise on its weights, two models that were trained with different seeds, and two models of which
one was trained without regularisation. Samples of rows are drawn from the population with replacement, and each is
judged as an audit would judge it. The true difference is the difference on the whole population.

    python -m benchmarks.paired_gates MODEL OTHER_SEED UNREGULARISED > benchmarks/paired_gates.md

The arguments are checkpoint folders, for example of

    attnaudit train --encoder gru --embedding-size 32 --hidden-size 32 --attention-size 32 --epochs 3 --data NAME

with NAME = movie-reviews and --seed 0, --seed 1, or --seed 0 --dropout 0 --weight-decay 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import binomtest

from attnaudit.adapters.loading import LoadedModel, load_model
from attnaudit.arrays import Integers
from attnaudit.checks import Agreement, Pointing, TotalEffect
from attnaudit.checks.base import Check
from attnaudit.data import label_indices, load, sample
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.records import Requirement
from attnaudit.statistics import bootstrap_samples
from attnaudit.statistics.detectable_change import detectable_change
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.paired_difference import paired_difference
from attnaudit.statistics.sample_size import POWER
from attnaudit.statistics.verdict import fail_confidence

CHECKS: tuple[Check, ...] = (
    TotalEffect(on="standardised", severity="report"),
    Pointing(on="logits", severity="report"),
    Pointing(on="logits", measure="share", severity="report"),
    Agreement(importance="leave_one_out", severity="report"),
)
#: The rows of the population, the rows of a sample, and the number of samples.
POPULATION, ROWS, TRIALS = 500, 400, 400
CONFIDENCE, GATES = 0.95, 2
#: Bootstrap samples per interval: a quarter of those of an audit, which saves time.
RESAMPLES = 1000
NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """How often the samples of a pair are blocked.

    Attributes:
        difference: The true difference.
        blocked: The number of samples that are blocked by mistake: the true change is exactly the margin.
        detected: The number of samples that are blocked if the change exceeds the margin by the detectable change.
        detectable: The detectable change, the median over the samples.
        saving: How many times as many rows are needed for the same standard error if each model is measured on its own
            sample.
    """

    difference: float
    blocked: int
    detected: int
    detectable: float
    saving: float


def with_noise(loaded: LoadedModel) -> LoadedModel:
    """Add noise to every parameter. Its standard deviation is a share of that of the parameter."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in loaded.adapter.modules:
            for parameter in module.parameters():
                spread = NOISE * float(parameter.std()) if parameter.numel() > 1 else 0.0
                parameter += spread * torch.randn(parameter.shape, generator=generator)
    return loaded


def measured(loaded: LoadedModel) -> Measurements:
    """Measure a model on the population."""
    dataset = sample(load("movie-reviews"), POPULATION, 0)
    labels = label_indices(dataset, loaded.adapter.capabilities.classes)
    needs = sorted({need for check in CHECKS for need in check.needs()})
    return measure(loaded.adapter, dataset, needs, model="model", seed=0, labels=labels)[0]


def drawn(measurements: Measurements, rows: Integers) -> Measurements:
    """Return the measurements of drawn rows, each of which is a source of its own."""
    return replace(
        measurements,
        instances=[replace(measurements.instances[row], id=f"{i}") for i, row in enumerate(rows.tolist())],
        sources=[f"{i}" for i in range(len(rows))],
        tokens=[measurements.tokens[row] for row in rows],
        labels=measurements.labels[rows],
        predicted=measurements.predicted[rows],
        scalars={name: column[rows] for name, column in measurements.scalars.items()},
        vectors={name: [column[row] for row in rows] for name, column in measurements.vectors.items()},
    )


def estimates(
    check: Check, candidate: Measurements, baseline: Measurements
) -> Iterator[tuple[float, IntervalEstimate]]:
    """Yield the difference in each sample, and its interval."""
    draws, generator = np.random.default_rng(1), np.random.default_rng(0)
    for _ in range(TRIALS):
        rows = draws.integers(0, len(candidate), ROWS)
        numbers = [check.linearised_values(drawn(one, rows)) for one in (candidate, baseline)]
        names = [f"{i:03d}" for i in range(ROWS)]
        found = paired_difference(
            numbers[0],
            numbers[1],
            Groups.of(names, names, np.ones(ROWS, dtype=np.bool_)),
            confidence=CONFIDENCE,
            generator=generator,
            bounds=check.bounds,
        )
        if found.value is not None and found.interval is not None:
            yield found.value, found.interval


def outcome(check: Check, candidate: Measurements, baseline: Measurements) -> Outcome:
    """Judge the samples of a pair with two margins: one that equals the true difference, and a narrower one."""
    first, second = (check.linearised_values(one) for one in (candidate, baseline))
    difference = float(np.nanmean(first) - np.nanmean(second))
    level = fail_confidence(CONFIDENCE, GATES)
    found = list(estimates(check, candidate, baseline))
    ends = np.array([interval.at(level).high for _, interval in found])
    detectable = float(np.median([_detectable(value, interval, check) for value, interval in found]))
    paired = float(np.nanvar(first - second))
    return Outcome(
        difference=difference,
        blocked=int((ends < difference).sum()),
        detected=int((ends < difference + detectable).sum()),
        detectable=detectable,
        saving=(np.nanvar(first) + np.nanvar(second)) / paired if paired else np.inf,
    )


def _detectable(value: float, interval: IntervalEstimate, check: Check) -> float:
    """Return the change for the worse that a sample reports as detectable if its value is at the margin."""
    low, high = check.bounds
    change = detectable_change(
        value=value,
        estimate=interval,
        requirement=Requirement(direction="at_least", value=value),
        confidence=CONFIDENCE,
        fail_confidence=fail_confidence(CONFIDENCE, GATES),
        bounds=(low - high, high - low),
    )
    return np.inf if change.to_fail is None else change.to_fail


def share(count: int) -> str:
    """Return a share of the samples with its 95% interval."""
    interval = binomtest(count, TRIALS).proportion_ci(0.95, method="wilson")
    return f"{count / TRIALS:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    bootstrap_samples.RESAMPLES = RESAMPLES
    model, other_seed, unregularised = arguments
    baseline = measured(load_model(model))
    pairs = {
        "the same model": baseline,
        f"weights with noise ({NOISE:.0%})": measured(with_noise(load_model(model))),
        "another seed": measured(load_model(other_seed)),
        "without regularisation": measured(load_model(unregularised)),
    }
    print("# Paired gates: false blocks, detection and rows saved\n")
    print(
        f"Written by `benchmarks/paired_gates.py`. For each line, {TRIALS} samples of {ROWS} rows were drawn from "
        f"{POPULATION} rows. *False blocks* is the share of samples in which the gate fails although the true change "
        "is exactly the margin. *Detected* is the share of samples in which the gate fails if the true change exceeds "
        f"the margin by the detectable change (for {POWER:.0%} power and {GATES} gates). *Rows saved* is the ratio "
        "of two numbers of rows with the same standard error: those that two independent samples need, and those that "
        "the paired gate needs.\n"
    )
    print("| pair | check | true change | detectable change | false blocks | detected | rows saved |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name, candidate in pairs.items():
        for check in CHECKS:
            found = outcome(check, candidate, baseline)
            same = candidate is baseline
            print(
                f"| {name} | `{check.id}` | {found.difference:.4f} | {'—' if same else f'{found.detectable:.4f}'} | "
                f"{share(found.blocked)} | {'—' if same else share(found.detected)} | "
                f"{'—' if same else f'{found.saving:.1f} ×'} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
