"""The base class of the checks that train copies of the audited model (Wiegreffe & Pinter 2019)."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import Check
from attnaudit.checks.builtin.fragility import CLASS_OF_F1, class_of_f1
from attnaudit.checks.evidence import Detail, Evidence, count_reasons, number_or_none
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Chart, Series, Severity
from attnaudit.retraining import LONGER, Retraining
from attnaudit.statistics.f1_drop import F1Drop
from attnaudit.statistics.groups import Groups

MOST_SEEDS = 100
HOW_TO_READ_F1 = (
    "The value is the difference between two mean F1 scores. Each is the score of the audited model, or the mean score "
    "of models that were trained for this check. Near 0, both are equally good. The interval covers the choice of "
    "instances, but not the randomness of training, so compare it with the scores of the individual seeds. "
    f"{CLASS_OF_F1}"
)
HOW_TO_READ_JSD = (
    "Jensen–Shannon divergence runs from 0, where a copy has the same attention as the model, to ln 2 ≈ 0.693 nats. "
    "The copies were trained for this check. The interval covers the choice of instances, but not the randomness of "
    "training, so compare it with the values of the individual seeds."
)
#: Why a difference between F1 scores is undefined.
NOTHING_LEARNED = "the models that show whether training works decide no better than a constant class"


@dataclass(frozen=True, kw_only=True)
class RetrainingCheck(Check):
    """The base class of the checks that train copies of the model.

    Unlike other checks, these checks are informational by default, and become gates with severity="gate". If several
    checks need the same copy, it is trained only once per process.

    Args:
        seeds: The number of copies of each kind, from 1 to 100. Each copy has its own seed, and the value is the mean
            over the copies.
        train: The data to train on: the name of a registered data set, or the path of a file. By default, the training
            data of the audited model.
        dev: The data on which the best epoch is chosen, in the same form as `train`. By default, the data that was used
            to choose the best epoch of the audited model.
    """

    severity: Severity = "report"
    seeds: int = 3
    train: str | None = None
    dev: str | None = None

    family = "retraining"

    def validate(self) -> None:
        self.require_count("seeds", 1, MOST_SEEDS)
        for argument in ("train", "dev"):
            value = getattr(self, argument)
            if value is not None and (not isinstance(value, str) or not value):
                raise CheckError(
                    f"{self.name_in_errors}: {argument} is {value!r}; expected the name of a data set or a file."
                )

    @property
    def not_linearised(self) -> str:
        return "its sampling error also depends on the training runs"

    @abstractmethod
    def retrainings(self) -> Sequence[Retraining]:
        """Return the training settings of each copy."""

    def needs(self) -> tuple[str, ...]:
        return tuple(measure_of(retraining) for retraining in self.retrainings())

    def on_data(self, retraining: Retraining) -> Retraining:
        """Return the training settings with the data sets of the arguments `train` and `dev`."""
        return dataclasses.replace(retraining, train=self.train or "", dev=self.dev or "")

    def cost(self) -> str:
        """Return sentences that give the number of models to train and the cost of training them."""
        adversaries = sum(
            retraining.attention == "adversary" and retraining.encoder == "own" for retraining in self.retrainings()
        )
        others = len(self.retrainings()) - adversaries
        parts = [
            f"{'1 model,' if number == 1 else f'{number} models, each'} at {times} the cost of training the audited one"
            for number, times in ((adversaries, f"up to {LONGER} times"), (others, "about"))
            if number
        ]
        return (
            f"The check trains {'; '.join(parts)}. A model that another check has already trained is not trained again."
        )

    def require_trained(self, measurements: Measurements) -> None:
        """Require that every copy was trained, and that other seeds gave other copies.

        Raises:
            CheckError: A copy could not be trained, or two copies of the same kind have the same parameters. The
                message gives the reason.
        """
        for need in self.needs():
            reason = measurements.facts.get(f"{need}.refused")
            if reason is not None:
                raise CheckError(f"{self.name_in_errors} on {measurements.model}: {reason}")
        trained: dict[tuple[Retraining, str], int] = {}
        for retraining in self.retrainings():
            sha256 = measurements.facts.get(f"{measure_of(retraining)}.sha256")
            if sha256 is None:  # the copy has no parameters
                continue
            key = (dataclasses.replace(retraining, seed=0), sha256)
            if key in trained:
                raise CheckError(
                    f"{self.name_in_errors} on {measurements.model}: retrain(): the copies with the seeds "
                    f"+{trained[key]} and +{retraining.seed} have the same parameters. The method must use the seed of "
                    "the audited model plus retraining.seed, for the initial values and for the order of the training "
                    "data. If the result of training does not depend on a seed, use seeds = 1."
                )
            trained[key] = retraining.seed


def measure_of(retraining: Retraining) -> str:
    """Return the name of the measure for a retrained copy of the audited model. Its columns begin with this name."""
    return f"retrained.{retraining.text}"


def columns_of_copies(measurements: Measurements, copies: Sequence[Retraining], name: str) -> Floats:
    """Return a column of R copies as an (n, R) array. `name` is the end of its name, after the name of the measure."""
    return np.column_stack([measurements.scalar(f"{measure_of(copy)}.{name}") for copy in copies])


def f1_difference(
    check: RetrainingCheck,
    measurements: Measurements,
    *,
    minuend: str,
    subtrahend: str,
    predictions: Mapping[str, Floats],
    must_have_learned: Sequence[str],
) -> Evidence:
    """Return the evidence for a difference between two mean F1 scores.

    If no model that shows whether training works has learned anything, the difference says nothing, and is undefined.

    Args:
        check: The check.
        measurements: The measurements.
        minuend: The key in `predictions` for the first mean F1.
        subtrahend: The key in `predictions` for the second mean F1, which is subtracted from the first.
        predictions: Name -> (n, R) class indices, with one column per copy. For all other keys, F1 is only reported.
        must_have_learned: Keys in `predictions`. For at least one of them, the copies must decide better than a
            constant class (see `decides_better_than_a_constant`).
    """
    labels, labelled = measurements.labels, measurements.labels >= 0
    learned = any(
        decides_better_than_a_constant(measurements, predictions[name], confidence=check.confidence)
        for name in must_have_learned
    )
    defined = labelled & learned
    groups = measurements.groups(labelled)
    difference = F1Drop.of(labels, predictions[minuend], predictions[subtrahend], classes=len(measurements.classes))
    details: dict[str, Detail] = class_of_f1(measurements)
    series, means = [], {}
    for name, predicted in predictions.items():
        scores = _f1_scores(measurements, predicted, groups)
        means[name] = number_or_none(float(scores.mean()))
        details[f"F1, {name}"] = means[name]
        if len(scores) > 1:
            details[f"F1, {name}, lowest to highest"] = f"{scores.min():.3f} to {scores.max():.3f}"
        accuracy = float((predicted == labels[:, None])[labelled].mean()) if labelled.any() else None
        details[f"accuracy, {name}"] = accuracy
        by_seed = scores if len(scores) > 1 else np.repeat(scores, check.seeds)
        seeds = [float(seed) for seed in range(check.seeds)]
        series.append(Series(name=name, x=seeds, y=[number_or_none(score) for score in by_seed]))
    details["instances labelled"] = int(labelled.sum())
    correct = {name: (predictions[name] == labels[:, None]).mean(1) for name in (minuend, subtrahend)}
    f1 = ", ".join(f"{name} {'undefined' if means[name] is None else f'{means[name]:.3f}'}" for name in correct)
    if not learned:
        f1 += f". The difference is undefined: {NOTHING_LEARNED} ({', '.join(must_have_learned)})"
    return Evidence(
        value=number_or_none(difference.value(groups)[2]) if defined.any() else None,
        interval=difference.interval(groups, confidence=check.confidence) if defined.any() else None,
        defined=defined,
        undefined=count_reasons(("no label", ~labelled), (NOTHING_LEARNED, ~defined)),
        values=np.where(defined, correct[minuend] - correct[subtrahend], np.nan),
        values_label=f"share of correct predictions, {minuend} minus {subtrahend}",
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
        note=f"F1: {f1}"
        if labelled.any()
        else f"F1 is undefined, because {measurements.no_decision}"
        if measurements.no_decision
        else "F1 needs labels: add a label column",
    )


def decides_better_than_a_constant(measurements: Measurements, predicted: Floats, *, confidence: float) -> bool:
    """Return whether the balanced accuracy of copies is significantly above that of a constant class.

    Balanced accuracy is the mean, over the classes that occur among the labels, of the share of their instances that
    are classified correctly. With K such classes, it is 1/K if the same class is always predicted. Its standard error
    is that of a mean over sources. With a single class, a constant is always correct, so the result is False.

    Args:
        measurements: The measurements.
        predicted: (n, R) class indices, with one column per copy. The balanced accuracy is the mean over the copies.
        confidence: The confidence of the two-sided interval that must be above 1/K.
    """
    labels = measurements.labels
    classes = np.unique(labels[labels >= 0])
    correct = (predicted == labels[:, None]).mean(1)
    recalls, influence = [], np.zeros((len(labels), 1))
    for c in classes:
        of_class = labels == c
        recalls.append(correct[of_class].mean())
        influence[of_class, 0] = (correct[of_class] - recalls[-1]) / (of_class.sum() * len(classes))
    if len(classes) < 2:
        return False
    excess = float(np.mean(recalls)) - 1 / len(classes)
    error = float(np.sqrt((measurements.groups(labels >= 0).sums(influence) ** 2).sum()))
    return excess > NormalDist().inv_cdf((1 + confidence) / 2) * error


def mean_f1(measurements: Measurements, predicted: Floats) -> float | None:
    """Return the mean F1 of (n, R) predictions on the labelled instances; None if it is undefined."""
    groups = measurements.groups(measurements.labels >= 0)
    return number_or_none(float(_f1_scores(measurements, predicted, groups).mean())) if len(groups) else None


def _f1_scores(measurements: Measurements, predicted: Floats, groups: Groups) -> Floats:
    """Return the (R,) F1 scores of (n, R) predictions over the instances in the groups; NaN where undefined."""
    f1 = F1Drop.of(measurements.labels, predicted[:, :0], predicted, classes=len(measurements.classes))
    scores: Floats = f1.scores(groups.totals_of(f1.columns, f1.width)[None])[0]
    return scores
