"""Plan how many rows the gates of a policy need, before anything is labelled or measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import msgspec

from attnaudit.checks.base import Check
from attnaudit.checks.paired_gate import PairedGate
from attnaudit.errors import CheckError, nearest
from attnaudit.records import CheckRecord, Direction
from attnaudit.statistics.row_planning import RowSpread, detectable_effect, rows_needed
from attnaudit.statistics.threshold import Expression
from attnaudit.statistics.verdict import fail_confidence

#: The effect of gates for which none is given, in the unit of the value.
DEFAULT_EFFECT = 0.05
#: The statistics whose spread is largest if every value lies at an end of its range.
OF_BOUNDED_VALUES = ("mean", "proportion")
WORST_CASE, DEMO, RUN = "worst case", "demo model", "the run"
UNBOUNDED = (-math.inf, math.inf)


class PlanningValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The spread of a check's value as measured on the demo model and the packaged reviews.

    Attributes:
        value: The value.
        deviation: The standard error of the value times the square root of the number of rows.
        slope: How much the variance changes, relative to its size, if the value changes by one unit.
        rows_per_row: For a share, the number of rows that carry as much information as one independent row of equal
            weight; None for other statistics.
    """

    value: float
    deviation: float
    slope: float
    rows_per_row: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePlan:
    """How many rows one gate needs.

    Attributes:
        check: The id of the gate.
        direction: The direction of its threshold.
        limit: The threshold, as it is written in the policy.
        effect: The distance of the true value from the threshold.
        to_pass: The number of rows with which the gate passes in 80% of samples, if the true value is `effect` away
            from the threshold, on the required side. None if this value is impossible, or if `problem` is set.
        to_fail: The number of rows with which the gate fails in 80% of samples, if the true value is on the other side,
            at the same distance. None in the same cases as `to_pass`.
        smallest: Two effects for a given number of rows. The first is the smallest effect with which the gate passes in
            80% of samples. The second is the smallest effect with which it fails in 80% of samples. Each is None if no
            value can be that far from the threshold, or if no number of rows was given.
        basis: Where the spread of the values comes from; "" if `problem` is set.
        problem: Why the numbers of rows are unknown, as a clause; "" if they are known.
    """

    check: str
    direction: Direction
    limit: str
    effect: float
    to_pass: int | None = None
    to_fail: int | None = None
    smallest: tuple[float | None, float | None] = (None, None)
    basis: str = ""
    problem: str = ""

    @property
    def rows(self) -> int | None:
        """The rows that the gate needs to pass and to fail; None if one of the two is impossible or unknown."""
        return None if self.to_pass is None or self.to_fail is None else max(self.to_pass, self.to_fail)


def plan_gates(
    checks: Sequence[Check],
    *,
    effects: Mapping[str, float],
    default_effect: float | None = None,
    records: Sequence[CheckRecord] = (),
    rows: int | None = None,
) -> list[GatePlan]:
    """Plan the rows of every gate of a policy.

    The effect of a gate is its entry in `effects`. Without an entry, it is `default_effect`. Without a default, it is
    the margin of a paired gate, and 0.05 for any other gate.

    The spread of the values comes from the records of an earlier run. If several records apply, the one that needs the
    most rows counts. Without a record, the spread is that of the same check on the demo model. If this was not measured
    either, it is the largest spread that values between two bounds can have.

    Args:
        checks: The checks of the policy.
        effects: The id of a gate -> its effect, above 0 and in the unit of the value.
        default_effect: The effect of gates that are not in `effects`; None for the default described above.
        records: The records of an earlier run; empty without one.
        rows: The number of rows for which the smallest effect is computed; None for no such computation.

    Raises:
        CheckError: An effect is given for a check that is not a gate of the policy.
    """
    gates = [check for check in checks if check.severity == "gate"]
    ids = [gate.id for gate in gates]
    for name in effects:
        if name not in ids:
            raise CheckError(f"--effect: no gate of the policy is '{name}'. {nearest(name, ids)}")
    return [
        _plan(
            gate,
            effect=effects.get(gate.id, default_effect or _default_effect(gate)),
            records=[record for record in records if record.check == gate.id],
            gates=len(gates),
            rows=rows,
        )
        for gate in gates
    ]


def planning_values() -> dict[str, PlanningValue]:
    """Return the spread of each check's value on the demo model: id of the check without its reading -> spread."""
    stored = files("attnaudit.run").joinpath("planning_values.json").read_bytes()
    return msgspec.json.decode(stored, type=dict[str, PlanningValue])


def _default_effect(gate: Check) -> float:
    if isinstance(gate, PairedGate) and gate.threshold is not None and not isinstance(gate.threshold[1], Expression):
        return abs(gate.threshold[1])
    return DEFAULT_EFFECT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Basis:
    """A spread of values, and what to compute from it.

    Attributes:
        spread: How much the value varies.
        threshold: The threshold, in the same unit.
        source: Where the spread comes from.
        rows_per_value: The number of rows divided by the number of rows that have a value.
    """

    spread: RowSpread
    threshold: float
    source: str
    rows_per_value: float = 1.0

    def needed(self, effect: float, confidence: float) -> float:
        """Return how many rows are needed to detect an effect; infinite if no value is that far from the threshold."""
        rows = rows_needed(self.spread, threshold=self.threshold, effect=effect, confidence=confidence)
        return math.inf if rows is None else math.ceil(rows * self.rows_per_value)

    def smallest(self, rows: int, confidence: float, *, upwards: bool) -> float:
        """Return the smallest effect that is detected with this many rows; infinite if there is none."""
        defined = math.floor(rows / self.rows_per_value)
        effect = detectable_effect(
            self.spread, threshold=self.threshold, upwards=upwards, confidence=confidence, rows=defined
        )
        return math.inf if effect is None else effect


def _plan(gate: Check, *, effect: float, records: Sequence[CheckRecord], gates: int, rows: int | None) -> GatePlan:
    if gate.threshold is None:
        raise ValueError(f"{gate.id} has no threshold, so it is not a gate")
    direction, limit = gate.threshold
    plan = GatePlan(
        check=gate.id,
        direction=direction,
        limit=limit.text if isinstance(limit, Expression) else f"{limit:g}",
        effect=effect,
    )
    try:
        bases = [_from_record(record, gate, limit) for record in records] or [_without_run(gate, limit)]
    except CheckError as error:
        return replace(plan, problem=str(error))
    upwards = direction == "at_least"
    corrected = fail_confidence(gate.confidence, gates)
    sides = ((effect if upwards else -effect, gate.confidence), (-effect if upwards else effect, corrected))
    to_pass, to_fail = (max(basis.needed(*side) for basis in bases) for side in sides)
    smallest: tuple[float | None, float | None] = (None, None)
    if rows is not None:
        passing, failing = (
            max(basis.smallest(rows, confidence, upwards=signed > 0) for basis in bases) for signed, confidence in sides
        )
        smallest = (_finite(passing), _finite(failing))
    return replace(
        plan,
        to_pass=None if math.isinf(to_pass) else int(to_pass),
        to_fail=None if math.isinf(to_fail) else int(to_fail),
        smallest=smallest,
        basis=bases[0].source,
    )


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _from_record(record: CheckRecord, gate: Check, limit: float | Expression) -> _Basis:
    """Return the spread that an earlier run measured.

    Raises:
        CheckError: The record has no spread, or its spread does not apply to the threshold. The message is a clause.
    """
    measured, value, required = record.sampling_error, record.value, record.requirement
    if measured is None or value is None or not measured.standard_error:
        raise CheckError(
            "the run recorded no standard error, or a standard error of 0, for the value of this check for "
            f"{record.model} on {record.data}"
        )
    if not measured.narrows_with_rows:
        raise CheckError("its interval does not shrink to zero width, however many rows are audited")
    expression = required.expression if required is not None else None
    threshold = limit
    if isinstance(limit, Expression):
        if required is None or expression != limit.text:
            raise CheckError("this threshold contains reference values, and the run applied a different threshold")
        threshold = required.value
    elif expression is not None:
        raise CheckError(
            "the threshold in the policy is a number, but the threshold in the run contains reference values"
        )
    assert not isinstance(threshold, Expression)
    ends = gate.bounds if expression is None else UNBOUNDED
    if measured.share_rows is not None:
        spread = RowSpread(ends=ends, rows_per_row=record.n_defined / measured.share_rows)
    else:
        deviation = measured.standard_error * math.sqrt(record.n_defined)
        spread = RowSpread(ends=ends, deviation=deviation, value=value, slope=measured.slope)
    return _Basis(spread=spread, threshold=threshold, source=RUN, rows_per_value=record.n / max(1, record.n_defined))


def _without_run(gate: Check, limit: float | Expression) -> _Basis:
    """Return the spread that was measured on the demo model, or the largest possible one.

    Raises:
        CheckError: Neither is known. The message is a clause.
    """
    low, high = gate.bounds
    if isinstance(limit, Expression):  # the difference between the value and the threshold is compared with 0
        least, most = limit.range(low, high, gate.reference_bounds)
        return _of_bounded_values(gate, (low - most, high - least), 0.0)
    known = planning_values().get(gate.subject)
    if known is None:
        return _of_bounded_values(gate, (low, high), limit)
    if known.rows_per_row is not None:
        spread = RowSpread(ends=(low, high), rows_per_row=known.rows_per_row)
    else:
        spread = RowSpread(ends=(low, high), deviation=known.deviation, value=known.value, slope=known.slope)
    return _Basis(spread=spread, threshold=limit, source=DEMO)


def _of_bounded_values(gate: Check, ends: tuple[float, float], threshold: float) -> _Basis:
    """Return the largest spread that the mean of values between two ends can have.

    Raises:
        CheckError: The ends are infinite, or the statistic is not a mean. The message is a clause.
    """
    statistic = gate.base.statistic if isinstance(gate, PairedGate) else gate.statistic
    if statistic not in OF_BOUNDED_VALUES or not all(map(math.isfinite, ends)):
        raise CheckError("the spread of its values is known only from a run: name an earlier run with --from")
    return _Basis(spread=RowSpread(ends=ends), threshold=threshold, source=WORST_CASE)
