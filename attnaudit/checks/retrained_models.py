"""What the checks share that train other copies of the model (Wiegreffe & Pinter 2019, "Attention is not not
Explanation"): their arguments, the measures behind them, and what is said where a model cannot be trained anew.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import Check
from attnaudit.checks.evidence import Detail, Evidence, reasons
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Chart, Series, Severity
from attnaudit.retraining import LONGER, Retraining
from attnaudit.statistics.f1_drop import F1Drop
from attnaudit.statistics.groups import Groups

MOST_SEEDS = 100
F1_READING = (
    "The value is a difference between mean F1 scores of models that were trained for this check, or of the audited "
    "model. Near 0, the other models do as well. The interval is over instances, not over training runs, so compare it "
    "with the scores of the single seeds."
)
JSD_READING = (
    "Jensen–Shannon divergence runs from 0, where the copy attends as the model does, to ln 2 ≈ 0.693 nats. The copies "
    "were trained for this check. The interval is over instances, not over training runs, so compare it with the "
    "values of the single seeds."
)


@dataclass(frozen=True, kw_only=True)
class RetrainingCheck(Check):
    """Base of the checks that train. They report unless severity="gate" is asked for.

    seeds: how many copies of each kind are trained, from seeds other than each other's; the value is their mean. train,
    dev: data to train on and to choose the epoch on, by registered name or file, where the model's own is not to be
    had. Copies that several checks need are trained once; every process that audits the model trains its own.
    """

    severity: Severity = "report"
    seeds: int = 3
    train: str | None = None
    dev: str | None = None

    def validate(self) -> None:
        self.whole("seeds", 1)
        for part in ("train", "dev"):
            given = getattr(self, part)
            if given is not None and (not isinstance(given, str) or not given):
                raise CheckError(f"{self._name}: {part} is {given!r}, expected a data set's name or a file.")

    def whole(self, argument: str, low: int) -> None:
        """Raises CheckError unless the argument is a whole number of at least `low`, and not absurdly many."""
        given = getattr(self, argument)
        if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= MOST_SEEDS:
            raise CheckError(
                f"{self._name}: {argument} is {given!r}, expected a whole number from {low} to {MOST_SEEDS}."
            )

    def retrainings(self) -> Sequence[Retraining]:
        """The copies that are trained."""
        raise NotImplementedError

    def needs(self) -> tuple[str, ...]:
        return tuple(column(one) for one in self.retrainings())

    def on_data(self, retraining: Retraining) -> Retraining:
        """The same on the data that the check names."""
        return dataclasses.replace(retraining, train=self.train or "", dev=self.dev or "")

    def cost(self) -> str:
        """What is trained, in a sentence for those who wait for it."""
        long = sum(one.attention == "adversary" and one.encoder == "own" for one in self.retrainings())
        kinds = ((long, f"up to {LONGER} times"), (len(self.retrainings()) - long, "about"))
        said = [
            f"{'1 model,' if number == 1 else f'{number} models, each'} at {times} the cost of training the audited one"
            for number, times in kinds
            if number
        ]
        return f"Trains {'; '.join(said)}, unless another check has trained it."

    def refuse_untrained(self, measurements: Measurements) -> None:
        """Raises CheckError where a copy could not be trained."""
        for need in self.needs():
            why = measurements.facts.get(f"{need}.refused")
            if why is not None:
                raise CheckError(f"{self._name} on {measurements.model}: {why}")


def column(retraining: Retraining) -> str:
    """The measure of a copy, with which the names of its columns begin."""
    return f"retrained.{retraining.text}"


def together(measurements: Measurements, copies: Sequence[Retraining], what: str) -> Floats:
    """(n, R) numbers of R copies."""
    return np.column_stack([measurements.scalar(f"{column(one)}.{what}") for one in copies])


def f1_difference(
    check: RetrainingCheck,
    measurements: Measurements,
    *,
    ours: str,
    others: str,
    predicted: Mapping[str, Floats],
) -> Evidence:
    """Evidence for the mean F1 of some predictions minus that of others. predicted: what is shown, (n, R) class indices
    by name, a column per copy, and among them `ours` and `others`."""
    labels, labelled = measurements.labels, measurements.labels >= 0
    groups = Groups.of(measurements.instances, labelled)
    by_f1 = F1Drop.of(measurements.labels, predicted[ours], predicted[others], classes=len(measurements.classes))
    details: dict[str, Detail] = {}
    series, means = [], {}
    for name, answers in predicted.items():
        scores = _scores(measurements, answers, groups)
        means[name] = _known(float(scores.mean()))
        details[f"F1, {name}"] = means[name]
        if len(scores) > 1:
            details[f"F1, {name}, lowest to highest"] = f"{scores.min():.3f} to {scores.max():.3f}"
        details[f"accuracy, {name}"] = float((answers == labels[:, None])[labelled].mean()) if labelled.any() else None
        repeated = scores if len(scores) > 1 else np.repeat(scores, check.seeds)
        seeds = [float(seed) for seed in range(check.seeds)]
        series.append(Series(name=name, x=seeds, y=[_known(float(one)) for one in repeated]))
    details["instances labelled"] = int(labelled.sum())
    right = {name: (predicted[name] == labels[:, None]).mean(1) for name in (ours, others)}
    f1 = ", ".join(f"{name} {'undefined' if means[name] is None else f'{means[name]:.3f}'}" for name in right)
    return Evidence(
        value=_known(by_f1.value(groups)[2]) if len(groups) else None,
        interval=by_f1.interval(groups, confidence=check.confidence) if len(groups) else None,
        defined=labelled,
        undefined=reasons(("no label", ~labelled)),
        values=np.where(labelled, right[ours] - right[others], np.nan),
        values_label=f"share of right answers, {ours} less {others}",
        values_range=(-1.0, 1.0),
        details=details,
        charts=(
            Chart(
                title="F1 by seed",
                x_label="seed of the copy, counted from the model's own",
                y_label="F1",
                kind="line",
                series=series,
            ),
        ),
        note=f"F1: {f1}" if labelled.any() else "F1 needs labels: add a label column",
    )


def f1_of(measurements: Measurements, predicted: Floats) -> float | None:
    """Mean F1 of R sets of predictions (n, R) on the labelled instances; None where it is undefined."""
    groups = Groups.of(measurements.instances, measurements.labels >= 0)
    return _known(float(_scores(measurements, predicted, groups).mean())) if len(groups) else None


def _scores(measurements: Measurements, predicted: Floats, groups: Groups) -> Floats:
    """(R,) F1 of R sets of predictions (n, R) over the groups' instances; NaN where there is none."""
    by_f1 = F1Drop.of(measurements.labels, predicted[:, :0], predicted, classes=len(measurements.classes))
    found: Floats = by_f1.scores(groups.sums(by_f1.columns).sum(0)[None])[0]
    return found


def _known(x: float) -> float | None:
    return None if math.isnan(x) else x
