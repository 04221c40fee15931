"""How many rows the gates of a policy need: effects, thresholds and where the spread comes from."""

from __future__ import annotations

import math
from typing import Any

import pytest

from attnaudit import checks
from attnaudit.checks.paired_gate import paired_gate
from attnaudit.errors import CheckError
from attnaudit.records import CheckRecord, Requirement, SamplingError
from attnaudit.run.gate_planning import DEMO, RUN, WORST_CASE, plan_gates, planning_values
from attnaudit.statistics.row_planning import RowSpread, rows_needed
from tests.units.report.example_checks import check_record

AGREEMENT = checks.Agreement(at_least=0.3)
USED = checks.TotalEffect(on="standardised", at_least=0.09)


def measured(**changes: Any) -> CheckRecord:
    fields: dict[str, Any] = {
        "value": 0.3,
        "n": 400,
        "n_defined": 400,
        "sampling_error": SamplingError(standard_error=0.02),
        "requirement": Requirement(direction="at_least", value=0.3),
    }
    return check_record(check=AGREEMENT.id, **{**fields, **changes})


def test_without_a_run_the_spread_is_that_of_the_demo_or_the_largest_possible() -> None:
    paired = paired_gate(AGREEMENT, margin=0.2, baseline_name="last", folder=None)
    relative = checks.Agreement(importance="leave_one_out", at_least="floor + 0.2")
    plans = plan_gates([USED, paired, relative], effects={})
    assert [plan.basis for plan in plans] == [DEMO, WORST_CASE, WORST_CASE]
    assert [plan.effect for plan in plans] == [0.05, 0.2, 0.05]
    largest = RowSpread(ends=(-2.0, 2.0))
    assert plans[1].to_pass == rows_needed(largest, threshold=-0.2, effect=0.2, confidence=0.95)
    assert plans[1].to_fail == rows_needed(largest, threshold=-0.2, effect=-0.2, confidence=1 - 0.05 / 3)


def test_the_measured_spread_of_a_run_counts_and_the_model_with_the_largest_one_decides() -> None:
    spread = RowSpread(ends=(-1.0, 1.0), deviation=0.4, value=0.3)
    expected = rows_needed(spread, threshold=0.3, effect=0.05, confidence=0.95)
    smaller = measured(model="other", sampling_error=SamplingError(standard_error=0.01))
    (plan,) = plan_gates([AGREEMENT], effects={}, records=[smaller, measured()])
    assert (plan.to_pass, plan.to_fail, plan.basis) == (expected, expected, RUN)
    (partly_defined,) = plan_gates([AGREEMENT], effects={}, records=[measured(n=500)])
    assert partly_defined.to_pass == math.ceil((expected or 0) * 1.25)


def test_the_rows_of_a_run_detect_what_its_rows_were_planned_for() -> None:
    (plan,) = plan_gates([AGREEMENT], effects={AGREEMENT.id: 0.07}, records=[measured()])
    assert plan.rows is not None
    (again,) = plan_gates([AGREEMENT], effects={}, records=[measured()], rows=plan.rows)
    assert again.smallest == (pytest.approx(0.07, rel=0.01), pytest.approx(0.07, rel=0.01))


def test_a_share_needs_rows_for_its_unequal_weights() -> None:
    gate = checks.Pointing(on="logits", measure="share", at_least=0.63)
    record = measured(sampling_error=SamplingError(standard_error=0.01, share_rows=100.0))
    (plan,) = plan_gates([gate], effects={}, records=[check_record_of(gate.id, record)])
    spread = RowSpread(ends=(0.0, 1.0), rows_per_row=4.0)
    assert plan.to_pass == rows_needed(spread, threshold=0.63, effect=0.05, confidence=0.95)


def check_record_of(check: str, record: CheckRecord) -> CheckRecord:
    import msgspec

    return msgspec.structs.replace(record, check=check)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"sampling_error": None},
            "the run recorded no standard error, or a standard error of 0, for the value of this check for demo",
        ),
        (
            {"sampling_error": SamplingError(standard_error=0.0)},
            "the run recorded no standard error, or a standard error of 0",
        ),
        (
            {"sampling_error": SamplingError(standard_error=0.1, narrows_with_rows=False)},
            "its interval does not shrink to zero width, however many rows are audited",
        ),
        (
            {"requirement": Requirement(direction="at_least", value=0.3, expression="floor + 0.2")},
            "the threshold in the policy is a number, but the threshold in the run contains",
        ),
    ],
)
def test_a_run_without_the_spread_of_a_gate_is_refused(changes: dict[str, Any], problem: str) -> None:
    (plan,) = plan_gates([AGREEMENT], effects={}, records=[measured(**changes)])
    assert plan.problem.startswith(problem)
    assert plan.rows is None


def test_a_relative_threshold_needs_a_run_with_the_same_one() -> None:
    gate = checks.Agreement(at_least="floor + 0.2")
    relative = Requirement(direction="at_least", value=0.25, expression="floor + 0.2")
    (plan,) = plan_gates([gate], effects={}, records=[measured(requirement=relative)])
    assert plan.basis == RUN
    (other,) = plan_gates([gate], effects={}, records=[measured()])
    assert other.problem == "this threshold contains reference values, and the run applied a different threshold"


def test_a_ratio_that_was_never_measured_has_no_figure() -> None:
    gate = checks.TotalEffect(on="probabilities", where="everywhere", at_least=0.1)
    (plan,) = plan_gates([gate], effects={})
    assert plan.problem == "the spread of its values is known only from a run: name an earlier run with --from"


def test_an_effect_for_an_unknown_gate_names_the_nearest() -> None:
    with pytest.raises(CheckError, match=r"--effect: no gate of the policy is 'agreement'.*agreement\.gradient"):
        plan_gates([AGREEMENT], effects={"agreement": 0.1})


def test_the_gates_of_the_default_policies_have_planning_values() -> None:
    known = planning_values()
    gates = [
        "total_effect.standardised",
        "total_effect.standardised.smallest",
        "pointing.logits.share",
        "pointing.logits",
        "pointing.logits.plain",
    ]
    assert set(gates) <= set(known)
    assert all(value.deviation > 0 for value in known.values())
