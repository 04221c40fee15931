"""The record of every check is consistent, whatever its numbers are, and what contradicts itself is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.checks.evidence import NO_REASON, complete_counts
from attnaudit.checks.policies.effective_policy import effective_policy
from attnaudit.records import CheckRecord, DetectableChange, EffectivePolicy, GateRecord, Rounding, RunRecord
from attnaudit.run.verification.consistency import contradictions
from attnaudit.run.verification.declared_checks import same_arguments, same_limit, tables_by_id
from tests.units.checks import test_records, test_retraining_checks
from tests.units.checks.synthetic_measurements import measured
from tests.units.checks.test_readings import measured as measured_under_reading
from tests.units.report.example_checks import check_record
from tests.units.report.example_runs import run_record


def run_of(declared: Sequence[checks.Check], records: Sequence[CheckRecord], **changes: Any) -> RunRecord:
    """Return a run whose gates and status follow from the records."""
    gates = [
        GateRecord(
            model=record.model,
            data=record.data,
            check=record.check,
            state="failed" if record.blocks else "passed",
            reason="a reason" if record.blocks else "",
        )
        for record in records
        if record.severity == "gate"
    ]
    failed = any(record.blocks for record in records)
    fields: dict[str, Any] = {
        "gates": gates,
        "effective_policy": effective_policy(declared),
        "status": "failed" if failed else "passed" if gates else "informational",
        "exit_status": int(failed),
        "measurements_sha256": "c3" * 32,
    }
    return run_record(records, **{**fields, **changes})


@settings(max_examples=15)
@given(n=st.integers(1, 70), sources=st.none() | st.integers(1, 40), labelled=st.booleans(), data=st.data())
def test_the_record_of_every_check_is_consistent(
    n: int, sources: int | None, labelled: bool, data: st.DataObject
) -> None:
    declared = [check for check in test_records.EVERY if check.severity == "gate"]
    declared = list({check.id: check for check in declared}.values())
    measurements = measured(n, sources=sources, labelled=labelled)
    undefined = data.draw(st.integers(0, n))
    for column in measurements.scalars.values():
        if column.dtype == np.float64:
            column[:undefined] = np.nan
    records = [check.judge(measurements, gated=len(declared)) for check in declared]
    assert contradictions(run_of(declared, records)) == []


def test_the_records_of_retrained_models_are_consistent() -> None:
    for check in test_retraining_checks.EVERY:
        record = check.judge(test_retraining_checks.with_copies(check))
        assert contradictions(run_of([check], [record])) == []


def test_the_records_of_sweeps_are_consistent() -> None:
    sweeps = (
        checks.UniformFragility(severity="report", reading="cls@layer=*,heads=*"),
        checks.UniformFragility(severity="report", measure="f1_drop", reading="cls@heads=*"),
        checks.Comprehensiveness(severity="report", against="signed_loo", reading="cls@heads=*"),
    )
    measurements = measured_under_reading(*sweeps)
    records = [check.judge(measurements) for check in sweeps]
    assert contradictions(run_of(sweeps, records)) == []


def test_instances_without_a_reason_are_counted() -> None:
    assert complete_counts({}, 0) == {}
    assert complete_counts({"a single token": 2}, 2) == {"a single token": 2}
    assert complete_counts({"a single token": 2}, 5) == {"a single token": 2, NO_REASON: 3}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"seed": 3}, "its seed is 3, but the seed of the run is 0"),
        ({"model": "another"}, "its model or data set is not among those of the run"),
        ({"n_defined": 1980}, "1980 defined and 45 undefined values do not add up to 2026"),
        ({"value": 0.5}, "its value 0.5 is not in its interval"),
        ({"value": None}, "it has an interval but no value"),
        (
            {"fail_interval": None, "detectable_change": DetectableChange(to_pass=0.1, to_fail=0.1, power=0.8)},
            "it has a detectable change, but lacks the threshold or the interval",
        ),
        ({"verdict": "pass"}, "its verdict is 'pass', but value, interval and threshold give 'fail'"),
        ({"blocks": False}, "it is recorded as not blocking, but its verdict is 'fail'"),
        ({"inconclusive": "warn", "parameters": {"inconclusive": "fail"}}, "inconclusive is 'warn'"),
        ({"parameters": {"at_least": 0.4}}, "its threshold is at_least 0.3, but its arguments are {'at_least': 0.4}"),
        ({"parameters": {"at_most": 0.3}}, "its threshold is at_least 0.3, but its arguments are {'at_most': 0.3}"),
        ({"parameters": {"at_least": 0.3}, "requirement": None}, "its threshold is missing"),
        ({"parameters": {"confidence": 0.9}}, "the confidence of its interval is 0.95, not 0.9"),
        ({"gated": 2}, "the confidence of the interval that decides a failure is 0.95, which is wrong for 2 gates"),
        ({"fail_interval": None}, "it has only one of the two intervals"),
        ({"n": 3000, "undefined": {"a": 1019}}, "it has 3000 instances, but only 2026 were audited"),
        ({"unseen_mixers": ["mixer (Mixer)"]}, "the modules that it leaves out (unseen_mixers) are not those"),
        (
            {"rounding": Rounding(precision="float16", rows=64, change=0.0)},
            "the model was audited in float32, but the effect of rounding is recorded for float16",
        ),
    ],
)
def test_what_contradicts_itself_in_a_check_is_named(changes: dict[str, Any], what: str) -> None:
    record = check_record()
    record = msgspec.structs.replace(record, parameters={}, fail_interval=record.interval)
    run = run_of([], [record], effective_policy=None)
    gates = {"effective policy has no such gate"}
    assert {one.rpartition("the ")[2] for one in contradictions(run)} == gates
    changed = msgspec.structs.replace(run, checks=[msgspec.structs.replace(record, **changes)])
    assert any(what in one for one in contradictions(changed)), contradictions(changed)


def test_a_gate_of_a_model_in_half_precision_needs_its_effect_of_rounding() -> None:
    run = run_of([], [check_record()], effective_policy=None)
    half = [msgspec.structs.replace(model, precision="bfloat16") for model in run.models]
    assert any(
        "the model was audited in bfloat16, but the effect of rounding is not recorded" in one
        for one in contradictions(msgspec.structs.replace(run, models=half))
    )


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (0.3, 0.3, True),
        (0.3, 0.2, False),
        (0.3, "0.3 * floor", False),
        ("floor + 0.2", "0.2+floor", True),
        ("floor + 0.5 * (high - floor)", "0.5 * floor + 0.5 * high", True),
        ("floor + 0.2", "floor + 0.1", False),
        ("floor + 0.2", "high + 0.2", False),
        ("floor +", "floor + 0", False),
    ],
)
def test_thresholds_are_compared_by_their_meaning(first: Any, second: Any, same: bool) -> None:
    assert same_limit(first, second) is same
    assert same_arguments({"name": "a", "at_least": first}, {"at_least": second, "at_most": None}) is same
    assert same_arguments({"name": "a", "at_least": first, "where": "x"}, {"at_least": second}) is False


def test_the_id_of_a_check_of_another_package_is_that_of_its_record() -> None:
    policy = EffectivePolicy(
        sha256="",
        checks=[
            {"name": "peak", "at_most": 0.9},
            {"name": "Peak", "at_most": 0.8, "where": "top"},
            {"name": "Other", "id": "other.top", "at_most": 0.7},
            {"name": "Unseen", "reading": "cls@layer=0,heads=1", "at_most": 0.7},
            {"name": "Conicity", "at_most": 0.9, "severity": "gate"},
        ],
    )
    records = [
        check_record(check="peak", family="custom", parameters={"at_most": 0.9}),
        check_record(check="peak.top", parameters={"at_most": 0.8, "where": "top", "reading": None}),
    ]
    known = ["peak", "peak.top", "other.top", "Unseen/cls@layer=0,heads=1", "conicity"]
    assert list(tables_by_id(policy, records)) == known
    assert tables_by_id(None, records) == {}
