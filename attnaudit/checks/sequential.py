"""Sequential gates: rows (instances) in random order, and confidence sequences that replace the usual intervals."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Protocol

from attnaudit.arrays import Integers
from attnaudit.checks.evidence import Evidence, Mask, join_remarks
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import plural
from attnaudit.records import CheckRecord, Direction, Interval, Requirement
from attnaudit.records.check_records import CONFIDENCE_SEQUENCE
from attnaudit.statistics.confidence_sequence import SettlingSequence
from attnaudit.statistics.independent_units import keyed_order
from attnaudit.statistics.interval_estimate import IntervalEstimate, normal_quantile
from attnaudit.statistics.threshold import Expression
from attnaudit.statistics.verdict import MINIMUM_DEFINED, fail_confidence

NO_SEQUENCE = "its statistic is not a mean, or ratio of means, of independent values with known bounds"
#: The names of two details.
ROWS = "rows needed for the verdict, in random order"
SPENT_ERROR = "upper bound on the probability of a wrong verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSequence:
    """The confidence sequence of a check, and the rows that it was computed from.

    Attributes:
        sequence: The sequence. It is computed from T pairs of numbers (see `SettlingSequence`).
        rows: (T, ...) positions of the rows that each pair was computed from.
        negated: Whether the sequence estimates 1 minus the value of the check.
    """

    sequence: SettlingSequence
    rows: Integers
    negated: bool = False


class SequentialCheck(Protocol):
    """The type of the checks that this module accepts: the properties and methods that its functions use."""

    @property
    def sampling(self) -> str: ...
    @property
    def reading(self) -> str | None: ...
    @property
    def several_readings(self) -> bool: ...
    @property
    def confidence(self) -> float: ...
    @property
    def threshold(self) -> tuple[Direction, float | Expression] | None: ...
    def row_sequence(self, measurements: Measurements) -> RowSequence | str: ...


def random_order(measurements: Measurements) -> list[int]:
    """Return the positions of the instances in the random order in which they were drawn."""
    drawn = [instance.drawn for instance in measurements.instances if instance.drawn is not None]
    if len(drawn) < len(measurements):
        return keyed_order(measurements.ids, measurements.seed)
    return sorted(range(len(drawn)), key=drawn.__getitem__)


def rows_in_order(measurements: Measurements, defined: Mask) -> list[int]:
    """Return the rows that a sequence may use, in the random order of the seed.

    A row with the same tokens as an earlier row adds no information and is left out.

    Args:
        measurements: The measurements of n instances.
        defined: (n,) True at the instances that have a value.
    """
    first: dict[str, int] = {}
    for row in random_order(measurements):
        first.setdefault(measurements.sources[row], row)
    return [row for row in first.values() if defined[row]]


class NotYet(str):
    """A reason why a check has no confidence sequence yet. More rows may change this."""

    __slots__ = ()


def why_fixed(check: SequentialCheck, measurements: Measurements) -> str:
    """Return why a check needs a fixed number of rows, as a clause.

    Return "" if the check has a confidence sequence, or if it may have one once more rows are measured.

    Args:
        check: The check.
        measurements: The measurements of some of the rows.

    Raises:
        CheckError: The measurements lack a measure that the check uses.
    """
    if check.sampling != "sequential":
        return 'its sampling is "all"'
    (reading, *_) = measurements.readings_of(check.reading or "")
    found = _sequence(check, measurements.under(reading))
    return found if isinstance(found, str) and not isinstance(found, NotYet) else ""


def _sequence(check: SequentialCheck, measurements: Measurements) -> RowSequence | str:
    """Return the confidence sequence of a check under one reading; or, as a clause, the reason why there is none."""
    if check.threshold is None:
        return "it has no threshold"
    if check.several_readings or isinstance(check.threshold[1], Expression):
        return "its threshold is relative to references, or it has several readings"
    if any(instance.source for instance in measurements.instances):
        return "rows may share a source, but a confidence sequence needs independent rows"
    return check.row_sequence(measurements)


def sequential_evidence(
    check: SequentialCheck, evidence: Evidence, measurements: Measurements, requirement: Requirement | None, gated: int
) -> Evidence:
    """Replace the interval of a check by the interval of its confidence sequence, which is valid after every row.

    Args:
        check: The check.
        evidence: The evidence of the check on the measured rows.
        measurements: The measurements, under the reading of the check.
        requirement: The threshold as a number.
        gated: The number of gates.

    Returns:
        The evidence. Without a sequence, it keeps its interval, which is valid only for a fixed number of rows, and
        gets a remark that explains this.
    """
    found = _sequence(check, measurements)
    confidence = check.confidence
    if isinstance(found, str) or requirement is None or evidence.value is None:
        reason = found if isinstance(found, str) else "its value is undefined"
        remark = (
            f"the interval is valid only for a fixed number of rows: there is no confidence sequence, because {reason}"
        )
        return dataclasses.replace(evidence, note=join_remarks([evidence.note, remark]))
    if found.rows.size < MINIMUM_DEFINED:
        return dataclasses.replace(
            evidence,
            interval=None,
            no_interval=f"the confidence sequence needs at least {MINIMUM_DEFINED} rows with different tokens, but "
            f"there {'is' if found.rows.size == 1 else 'are'} only {plural(found.rows.size, 'row')}",
        )
    estimate = _estimate(found, evidence.value, confidence)
    if found.negated:
        direction: Direction = "at_most" if requirement.direction == "at_least" else "at_least"
        requirement = Requirement(direction=direction, value=1 - requirement.value)
    per_pair = math.prod(found.rows.shape[1:])
    settled = found.sequence.settle(
        requirement, fail_confidence=fail_confidence(confidence, gated), least=math.ceil(MINIMUM_DEFINED / per_pair)
    )
    rank = {row: number for number, row in enumerate(random_order(measurements), start=1)}
    used = [rank[row] for row in found.rows[: settled.count].ravel().tolist()]
    decided = settled.verdict != "inconclusive"
    details = {ROWS: max(used) if decided else None, SPENT_ERROR: settled.spent_error if decided else None}
    return dataclasses.replace(evidence, interval=estimate, details={**evidence.details, **details})


def is_settled(record: CheckRecord) -> bool:
    """Return whether a gate has passed or failed by its confidence sequence, so that it needs no more rows."""
    return judged_by_sequence(record) and record.verdict in ("pass", "fail")


def judged_by_sequence(record: CheckRecord) -> bool:
    """Return whether the interval of a record comes from a confidence sequence."""
    return record.interval is not None and record.interval.is_sequence


def _estimate(found: RowSequence, value: float, confidence: float) -> IntervalEstimate | None:
    """Return the interval estimate of a sequence; None if an end is still infinite. The interval contains the value."""

    def interval_at(level: float) -> Interval:
        interval = found.sequence.interval(confidence=level)
        low, high = (1 - interval.high, 1 - interval.low) if found.negated else (interval.low, interval.high)
        return Interval(low=min(low, value), high=max(high, value), confidence=level, method=CONFIDENCE_SEQUENCE)

    nominal = interval_at(confidence)
    if not math.isfinite(nominal.high - nominal.low):
        return None
    return IntervalEstimate(
        error=(nominal.high - nominal.low) / (2 * normal_quantile(confidence)),
        confidence=confidence,
        interval_at=interval_at,
        narrows_with_n=False,
    )
