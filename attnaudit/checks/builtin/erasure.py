"""The base class of comprehensiveness and sufficiency, which erase tokens in the order of attention.

Both checks follow DeYoung et al. 2020. They compare the order of attention with two other orders: random orders, and
the order by signed leave-one-out, which ranks each token by the effect of removing it.

Tokens can be erased in two ways, by deletion or by mask substitution. The two ways may lead to different verdicts:
deletion changes the positions of later tokens, and substitution shows the model a token that it may never have seen in
training. Therefore, both ways are measured, and the record has a note if their verdicts differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import Check
from attnaudit.checks.evidence import (
    Detail,
    Evidence,
    Mask,
    ReferenceValues,
    mean_of,
    no_real_attention,
    single_token,
    with_note,
)
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.checks.sequential import NO_SEQUENCE, RowSequence
from attnaudit.disk_arrays.filed_arrays import filled, written
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import percentage
from attnaudit.records import Chart, CheckRecord, Direction, Reference, Series
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import ratio_interval

#: The percentages of the tokens at which erasure is measured.
PERCENTAGES = (1, 5, 10, 20, 50)
#: The number of rows whose curves are in memory at once.
ROWS_AT_ONCE = 256
ORDERS = {"attention": "attention", "random": "random order", "loo": "signed leave-one-out"}
OPERATORS = {"deletion": "deletion", "mask": "mask substitution"}
UNSUPPORTED = {
    "deletion": "the model's adapter cannot delete tokens",
    "mask": "the model's adapter names no mask token",
}
HOW_TO_READ_GAIN = (
    "Tokens are erased in the order of attention, the most attended first. At 0, this order does no better than a "
    "random one. Compare a positive value with that of the order by signed leave-one-out, which ranks each token by "
    "its measured effect on the prediction."
)
HOW_TO_READ_SHARE = (
    "Tokens are erased in the order of attention, the most attended first. At 0, this order does no better than a "
    "random one; at 1, it does as well as the order by signed leave-one-out. A better order may exceed 1."
)


@dataclass(frozen=True, kw_only=True)
class Erasure(PerInstanceCheck):
    """The base class of `Comprehensiveness` and `Sufficiency`.

    The change of the output is measured for 1, 5, 10, 20 and 50% of the tokens, rounded up to whole tokens. The mean of
    these five changes is the AOPC of DeYoung et al. 2020.

    Args:
        operator: How tokens are erased. "deletion" removes their ids before the text is encoded. "mask" replaces their
            ids with the id of the mask token or, in models without one, of the unknown token.
        against: What the order of attention is compared with. "random": the value is the mean gain of attention over
            random orders. "signed_loo": the value is this mean gain divided by the mean gain of the order by signed
            leave-one-out. It is a ratio of means.
        measure: Which change of the output is measured. "probability": the change of the probability of the predicted
            class. "decision": whether another class is predicted.
    """

    operator: Literal["deletion", "mask"] = "deletion"
    against: Literal["random", "signed_loo"] = "random"
    measure: Literal["probability", "decision"] = "probability"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)
    #: "comprehensiveness" or "sufficiency". The id and the names of the measures begin with it.
    metric: ClassVar[str]
    #: The title, without the operator.
    claim: ClassVar[str]
    #: What happens to the most attended tokens, as the beginning of a sentence.
    erasing: ClassVar[str]
    #: 1 if a larger change of the output is better, -1 if a smaller one is.
    sign: ClassVar[float]

    family = "erasure"
    values_label = "gain over random order per instance"
    values_range = (-1.0, 1.0)

    def validate(self) -> None:
        self.require_choice("operator", OPERATORS)
        self.require_choice("against", ("random", "signed_loo"))
        self.require_choice("measure", ("probability", "decision"))

    @property
    def subject(self) -> str:
        return f"{self.metric}.{self.operator}.{self.against}" + (".decision" if self.measure == "decision" else "")

    @property
    def title(self) -> str:
        return f"{self.claim} ({OPERATORS[self.operator]})"

    @property
    def how_to_read(self) -> str:
        return HOW_TO_READ_GAIN if self.against == "random" else HOW_TO_READ_SHARE

    @property
    def statistic(self) -> str:
        return "mean" if self.against == "random" else "ratio of means"

    @property
    def unit(self) -> str:
        unit = "gain in AOPC" if self.against == "random" else "share of the signed leave-one-out gain"
        return unit + (", decisions" if self.measure == "decision" else "")

    @property
    def value_name(self) -> str:
        return (
            "mean gain over random order" if self.against == "random" else "share of the gain of signed leave-one-out"
        )

    @property
    def bounds(self) -> tuple[float, float]:
        return (-1.0, 1.0) if self.against == "random" else (-math.inf, math.inf)

    @property
    def threshold_references(self) -> tuple[str, ...]:
        return ("floor", "signed_loo") if self.against == "random" else ()

    @property
    def other_operator(self) -> Literal["deletion", "mask"]:
        """The operator that the check does not use for its value: the other way of erasing tokens."""
        return "mask" if self.operator == "deletion" else "deletion"

    def needs(self) -> tuple[str, ...]:
        return tuple(f"{self.metric}.{operator}" for operator in OPERATORS)

    def column(self, operator: str, order: str) -> str:
        """Return the name of the measured column for an operator and an order in which tokens are erased."""
        return f"{self.metric}.{operator}{'.decision' if self.measure == 'decision' else ''}.{order}"

    def values(self, measurements: Measurements) -> Floats:
        return self._gain(measurements, "attention")

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        if self.against == "random":
            return super().value(measurements, values, groups)
        gain, _, signed_loo = self._total_gains(measurements, groups)
        return gain / signed_loo if signed_loo > 0 else None

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        if self.against == "random":
            return super().interval(measurements, values, groups)
        if not self._total_gains(measurements, groups)[2] > 0:  # also if it is NaN
            return None
        return ratio_interval(
            values,
            self._gain(measurements, "loo"),
            groups,
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            extremes=(-1.0, 1.0),
        )

    def row_sequence(self, measurements: Measurements) -> RowSequence | str:
        return self.sequence_of_mean(measurements) if self.against == "random" else NO_SEQUENCE

    def no_interval(self, measurements: Measurements, value: float | None, groups: Groups) -> str:
        if value is None or len(groups) < 2:
            return ""
        return (
            "the gain of the signed leave-one-out order is not clearly above 0, so a share of this gain has no interval"
        )

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        if self.against == "random":
            shuffled, signed_loo = self._gain(measurements, "shuffled"), self._gain(measurements, "loo")
            return (
                ReferenceValues("floor", shuffled, "mean gain of one random order over the mean of several"),
                ReferenceValues("signed_loo", signed_loo, "mean gain of the order by signed leave-one-out"),
            )
        groups = measurements.groups(~np.isnan(values))
        _, total_shuffled, total_signed_loo = self._total_gains(measurements, groups)
        return (
            Reference(
                name="floor",
                value=total_shuffled / total_signed_loo if total_signed_loo > 0 else None,
                meaning="the share that one random order reaches",
                n=len(groups.rows),
            ),
            Reference(
                name="signed_loo",
                value=1.0,
                meaning="the order by signed leave-one-out itself; a better order may exceed it",
                n=len(groups.rows),
            ),
        )

    def in_words(self, evidence: Evidence) -> str:
        if evidence.value is None:
            return ""
        if self.against == "signed_loo":
            return (
                f"The gain from {self.erasing.lower()} the most attended tokens instead of random ones is "
                f"{percentage(evidence.value)} of the gain from {self.erasing.lower()} the tokens with the largest "
                "measured effects."
            )
        larger = (evidence.value >= 0) == (self.sign > 0)
        points = f"{100 * abs(evidence.value):.1f} percentage points"
        if self.measure == "decision":
            effect = f"changes the decision {points} {'more' if larger else 'less'} often than"
        else:
            probability = "probability of the target" if evidence.no_decision else "predicted probability"
            effect = f"lowers the {probability} by {points} {'more' if larger else 'less'} than"
        erasing = self.erasing.lower()
        return f"On average, {erasing} the most attended tokens {effect} {erasing} random tokens."

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        def mean_aopc(order: str) -> float | None:
            return mean_of(measurements.scalar(self.column(self.operator, order)))

        return {
            "mean AOPC, order of attention": mean_aopc("attention"),
            "mean AOPC, random order": mean_aopc("random"),
            "mean AOPC, order of signed leave-one-out": mean_aopc("loo"),
            "mean gain over random order": mean_of(values),
            f"mean gain with {OPERATORS[self.other_operator]}": mean_of(
                self._gain(measurements, "attention", operator=self.other_operator)
            ),
        }

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        unsupported = filled(len(undefined), f"erasure.{self.operator}" in measurements.facts, np.bool_)
        no_decision = measurements.no_decision if self.measure == "decision" else ""
        return (
            (no_decision, filled(len(undefined), bool(no_decision), np.bool_)),
            (UNSUPPORTED[self.operator], unsupported),
            single_token(measurements),
            no_real_attention(measurements),
            ("all attention weights are equal", undefined),
        )

    def charts(self, measurements: Measurements, values: Floats) -> Sequence[Chart]:
        probability = "probability of the target" if measurements.no_decision else "predicted probability"
        return (
            Chart(
                title=f"{self.metric.capitalize()} by share of tokens",
                x_label="tokens erased, %",
                y_label="decisions changed" if self.measure == "decision" else f"drop in the {probability}",
                kind="line",
                series=[
                    Series(
                        name=name,
                        x=[float(percentage) for percentage in PERCENTAGES],
                        y=_mean_curve(measurements, self.column(self.operator, order)),
                    )
                    for order, name in ORDERS.items()
                ],
            ),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        evidence = super().evidence(measurements)
        if evidence.value is None and evidence.defined.any():
            note = (
                "the order by signed leave-one-out gains nothing over a random order, so the share of its gain is "
                "undefined"
            )
            return replace(evidence, note=note)
        return evidence

    def judge(self, measurements: Measurements, *, gated: int = 1) -> CheckRecord:
        """Judge the check like `Check.judge`, and add a note about the other way of erasing tokens.

        The note is added only if the model does not support the other way, or if the other way leads to another
        verdict.
        """
        record = super().judge(measurements, gated=gated)
        readings = measurements.readings_of(self.reading or "")
        if any(f"erasure.{self.other_operator}" in measurements.under(reading).facts for reading in readings):
            return with_note(record, f"{UNSUPPORTED[self.other_operator]}, so only {OPERATORS[self.operator]} was used")
        other = Check.judge(replace(self, operator=self.other_operator), measurements, gated=gated)
        if record.requirement is None or other.verdict == record.verdict:
            return record
        return with_note(
            record,
            f"the verdict depends on the erasure operator: {record.verdict} with {OPERATORS[self.operator]}, "
            f"{other.verdict} with {OPERATORS[self.other_operator]}",
        )

    def _gain(self, measurements: Measurements, order: str, *, operator: str = "") -> Floats:
        """Return the (n,) gains of an order over the mean of several random orders. Larger gains are better."""
        operator = operator or self.operator
        random = measurements.scalar(self.column(operator, "random"))
        gain: Floats = self.sign * (measurements.scalar(self.column(operator, order)) - random)
        return gain

    def _total_gains(self, measurements: Measurements, groups: Groups) -> tuple[float, float, float]:
        """Return the sums over instances of the gains of attention, one random order, and signed leave-one-out."""
        gains = np.column_stack([self._gain(measurements, order) for order in ("attention", "shuffled", "loo")])
        attention, shuffled, signed_loo = groups.sums(gains).sum(0)
        return float(attention), float(shuffled), float(signed_loo)


def _mean_curve(measurements: Measurements, column: str) -> list[float | None]:
    """Return the mean curve of the instances whose curves contain no NaN; a list of None if there are none."""
    vectors = measurements.vector(f"{column}.curve")

    def complete(first: int) -> Floats:
        some = [curve for curve in vectors[first : first + ROWS_AT_ONCE] if len(curve) and not np.isnan(curve).any()]
        return np.reshape(some, (len(some), len(PERCENTAGES)))

    curves: Floats = written(complete(first) for first in range(0, max(1, len(vectors)), ROWS_AT_ONCE))
    return [float(mean) for mean in curves.mean(0)] if len(curves) else [None] * len(PERCENTAGES)
