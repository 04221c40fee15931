"""Compute the margin of each gate on a model. The margins determine the outcome of the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnaudit.records import CheckRecord, Direction, Requirement, VerdictName
from attnaudit.research.validation.figures_schema import Margin, Question
from attnaudit.research.validation.population_schema import Entry
from attnaudit.research.validation.validation_schema import ModelResult, ModelScore
from attnaudit.statistics import verdict as verdicts

#: A standard error below this value is replaced by it, so that margins stay finite.
SMALLEST_ERROR = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A check with a threshold that the check must meet.

    Attributes:
        check: The check id.
        question: The question that the check answers.
        direction: "at_least" if the value must not be below the threshold, "at_most" if it must not be above it.
        threshold: A number, or an expression over the references of the check, such as "floor + 0.2". The expression
            has a different number for each model. The check record of the model stores this number.
    """

    check: str
    question: Question
    direction: Direction
    threshold: float | str

    @property
    def text(self) -> str:
        """Return the gate as a short text, such as "decision_flip ≥ 0.15"."""
        threshold = self.threshold if isinstance(self.threshold, str) else f"{self.threshold:g}"
        return f"{self.check} {'≥' if self.direction == 'at_least' else '≤'} {threshold}"

    def threshold_for(self, record: CheckRecord) -> float | None:
        """Return the threshold as a number.

        For an expression, this is the number in the check record, or None if the record has none.
        """
        if not isinstance(self.threshold, str):
            return self.threshold
        return None if record.requirement is None else record.requirement.value


@dataclass(frozen=True, slots=True)
class JudgedModel:
    """A model of a population with its check records.

    Attributes:
        entry: The entry of the model in the population.
        records: Check id -> record.
    """

    entry: Entry
    records: Mapping[str, CheckRecord]

    @classmethod
    def from_result(cls, entry: Entry, result: ModelResult) -> JudgedModel:
        return cls(entry, {record.check: record for record in result.checks})

    @property
    def faithful(self) -> bool:
        return self.entry.truth == "faithful"


def oriented(record: CheckRecord | None, direction: Direction) -> float:
    """Return the value of a check, negated for "at_most". A higher number then always means more faithful attention.

    An undefined check gives -inf, because it raises an alarm, like a value on the wrong side of the threshold. A check
    is undefined if it has no record or no value, or if it is defined on too small a share of the instances.
    """
    if record is None or record.value is None or _undefined(record):
        return -math.inf
    return record.value if direction == "at_least" else -record.value


def bound(record: CheckRecord | None, direction: Direction) -> float:
    """Return the limit of a check's interval that must be on the required side of the threshold for a pass.

    This is the lower limit for "at_least", and the negated upper limit for "at_most". It is -inf if the check is
    undefined, has no interval, or is defined on too few instances to pass.
    """
    if record is None or record.interval is None or oriented(record, direction) == -math.inf:
        return -math.inf
    if record.n_defined < verdicts.MINIMUM_DEFINED or record.n_different is not None:
        return -math.inf
    return record.interval.low if direction == "at_least" else -record.interval.high


def margin(record: CheckRecord | None, gate: Gate) -> Margin:
    """Return the margin of a check record at a gate, and the verdict.

    The margin is the signed distance of the value from the threshold, in standard errors. The standard error is
    computed from the limit of the interval on the side of the threshold: it is the distance of this limit from the
    value, divided by the normal quantile of the confidence level (1.96 at 95%). A check that is defined on enough
    instances therefore passes if its margin is at least this quantile. The margin is -inf if the value or the threshold
    is undefined, or if there is no interval.

    Args:
        record: The check record of a model. None if the model has no record of the check.
        gate: The gate.
    """
    from scipy.special import ndtri

    if record is None or record.value is None or oriented(record, gate.direction) == -math.inf:
        return Margin(margin=-math.inf, verdict="undefined")
    threshold = gate.threshold_for(record)
    if threshold is None:
        return Margin(margin=-math.inf, verdict="undefined")
    verdict, _ = verdicts.decide(
        value=record.value,
        interval=record.interval,
        requirement=Requirement(direction=gate.direction, value=threshold),
        n=record.n,
        n_defined=record.n_defined,
        n_different=record.n_different,
    )
    if record.interval is None:
        return Margin(margin=-math.inf, verdict=verdict)
    at_least = gate.direction == "at_least"
    gap = (record.value - threshold) * (1 if at_least else -1)
    half_width = record.value - record.interval.low if (gap >= 0) == at_least else record.interval.high - record.value
    error = max(half_width / float(ndtri((1 + record.interval.confidence) / 2)), SMALLEST_ERROR)
    return Margin(margin=gap / error, verdict=verdict)


def score(model: JudgedModel, gates: Sequence[Gate]) -> ModelScore:
    """Return the outcome of a policy on one model.

    The model raises an alarm if any gate has a verdict other than "pass". Each check is judged at its own confidence
    level. There is no correction for the number of gates.

    The verdict of the policy is "pass" if every gate passes, "fail" if a gate fails, else "undefined" if a gate is
    undefined, and "inconclusive" otherwise.
    """
    entry = model.entry
    margins = {gate.check: margin(model.records.get(gate.check), gate) for gate in gates}
    smallest = min((gate_margin.margin for gate_margin in margins.values()), default=math.inf)
    failed: dict[str, VerdictName] = {
        check: gate_margin.verdict for check, gate_margin in margins.items() if gate_margin.verdict != "pass"
    }
    verdicts_by_severity: tuple[VerdictName, ...] = ("fail", "undefined", "inconclusive")
    return ModelScore(
        name=entry.name,
        kind=entry.kind,
        mechanism=entry.mechanism,
        truth=entry.truth,
        share=entry.share,
        half=entry.half,
        encoder=entry.encoder,
        score=smallest if math.isfinite(smallest) else None,
        alarm=bool(failed),
        verdict=next((verdict for verdict in verdicts_by_severity if verdict in failed.values()), "pass"),
        failed=failed,
        questions=sorted({gate.question for gate in gates if gate.check in failed}),
        values={check: record.value for check, record in model.records.items()},
    )


def policy_score(model: JudgedModel, gates: Sequence[Gate]) -> float:
    """Return the smallest margin of a model over the gates, in standard errors.

    The score is -inf if the margin of any gate is -inf, or if there are no gates.
    """
    smallest = score(model, gates).score
    return -math.inf if smallest is None else smallest


def _undefined(record: CheckRecord) -> bool:
    return record.n_defined == 0 or record.n_defined < verdicts.MINIMUM_SHARE * record.n
