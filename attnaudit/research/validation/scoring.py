"""From the record of a check to a margin, and from margins to what a policy says of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnaudit.records import CheckRecord, Direction, Requirement, VerdictName
from attnaudit.research.validation.validation_records import Entry, Margin, ModelResult, ModelScore, Question
from attnaudit.statistics import verdict as verdicts

SMALLEST_ERROR = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A check with the threshold it is held against, and the question it answers. A threshold in words ("floor + 0.2")
    is relative to the references of the case: the record then holds the number that it came to."""

    check: str
    question: Question
    direction: Direction
    threshold: float | str

    @property
    def words(self) -> str:
        at = self.threshold if isinstance(self.threshold, str) else f"{self.threshold:g}"
        return f"{self.check} {'≥' if self.direction == 'at_least' else '≤'} {at}"

    def at(self, record: CheckRecord) -> float | None:
        """The number that the threshold comes to; None where a reference it names is undefined."""
        if not isinstance(self.threshold, str):
            return self.threshold
        return None if record.requirement is None else record.requirement.value


@dataclass(frozen=True, slots=True)
class Judged:
    """A model of the population and its records by check id."""

    entry: Entry
    records: Mapping[str, CheckRecord]

    @classmethod
    def of(cls, entry: Entry, result: ModelResult) -> Judged:
        return cls(entry, {one.check: one for one in result.checks})

    @property
    def faithful(self) -> bool:
        return self.entry.truth == "faithful"


def oriented(record: CheckRecord | None, direction: Direction) -> float:
    """The value, turned so that higher is the faithful side; -inf where the check is undefined, which raises an alarm
    as a value far on the wrong side would."""
    if record is None or record.value is None or _undefined(record):
        return -math.inf
    return record.value if direction == "at_least" else -record.value


def bound(record: CheckRecord | None, direction: Direction) -> float:
    """The end of the interval that must clear the threshold for a pass, turned as `oriented`; -inf where none is."""
    if record is None or record.interval is None or oriented(record, direction) == -math.inf:
        return -math.inf
    if record.n_defined < verdicts.MINIMUM_DEFINED:
        return -math.inf
    return record.interval.low if direction == "at_least" else -record.interval.high


def margin(record: CheckRecord | None, gate: Gate) -> Margin:
    """The signed distance to the threshold in standard errors, -inf where the check is undefined.

    The standard error is half of the interval on the side of the threshold, over the normal quantile of its confidence:
    so a margin of at least that quantile (1.96 at 95%) is exactly a pass.
    """
    from scipy.special import ndtri

    if record is None or record.value is None or oriented(record, gate.direction) == -math.inf:
        return Margin(margin=-math.inf, verdict="undefined")
    at = gate.at(record)
    if at is None:
        return Margin(margin=-math.inf, verdict="undefined")
    verdict, _ = verdicts.decide(
        value=record.value,
        interval=record.interval,
        requirement=Requirement(direction=gate.direction, value=at),
        n=record.n,
        n_defined=record.n_defined,
    )
    if record.interval is None:
        return Margin(margin=-math.inf, verdict=verdict)
    at_least = gate.direction == "at_least"
    gap = (record.value - at) * (1 if at_least else -1)
    reach = record.value - record.interval.low if (gap >= 0) == at_least else record.interval.high - record.value
    error = max(reach / float(ndtri((1 + record.interval.confidence) / 2)), SMALLEST_ERROR)
    return Margin(margin=gap / error, verdict=verdict)


def score(model: Judged, gates: Sequence[Gate]) -> ModelScore:
    """What the gates say together. Alarm: one of them is not a pass, whatever a failure is corrected for. questions:
    those that a gate which did not pass answers."""
    entry = model.entry
    found = {gate.check: margin(model.records.get(gate.check), gate) for gate in gates}
    smallest = min((one.margin for one in found.values()), default=math.inf)
    failed: dict[str, VerdictName] = {name: one.verdict for name, one in found.items() if one.verdict != "pass"}
    return ModelScore(
        folder=entry.folder,
        kind=entry.kind,
        truth=entry.truth,
        half=entry.half,
        encoder=entry.encoder,
        score=smallest if math.isfinite(smallest) else None,
        alarm=bool(failed),
        failed=failed,
        questions=sorted({gate.question for gate in gates if gate.check in failed}),
        values={name: record.value for name, record in model.records.items()},
    )


def _undefined(record: CheckRecord) -> bool:
    return record.n_defined == 0 or record.n_defined < verdicts.MINIMUM_SHARE * record.n
