"""What a run must have audited before a release, and the sentences that say what it lacks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from attnaudit.records import BaselineComparison, GateRecord, GateState, Interval, PolicyRecord, VerdictName
from attnaudit.records.check_records import CONFIDENCE_SEQUENCE
from attnaudit.run.verification.expectations import Expectations, Expected, objections
from tests.consistent_runs import FAILING, PASSING, consistent_run
from tests.units.report.example_runs import run_record

RELEASE = Expected(given="release", name="release", sha256=None)


def test_a_run_whose_model_could_not_be_loaded_is_refused_with_the_reason() -> None:
    reason = "model 'demo': the factory raised RuntimeError: the weights file is gone."
    gate = GateRecord(model="demo", data="reviews", check="conicity", state="open", reason=reason)
    run = run_record([], gates=[gate], models=[], data=[], exit_status=6)
    found = objections(run, Expectations(models=[Expected(given="demo", name="demo", sha256=None)]))
    assert found == [
        f"conicity for demo on reviews: no verdict: {reason} Fix the reason. Run the audit again.",
        "The status of the run is 'failed', expected 'passed'. Run the audit again.",
        "pytest ended with exit status 6, expected 0. See the output of pytest, and run the audit again.",
        "--model demo: the run has no such model, and audited none. Audit the expected model, or correct --model.",
    ]


def test_another_policy_is_named_by_its_file(tmp_path: Path) -> None:
    run = consistent_run(tmp_path, (PASSING,))
    assert run.effective_policy is not None
    run = msgspec.structs.replace(run, declared_policy=PolicyRecord(file="transformer.toml", sha256="0"))
    (reason,) = objections(run, Expectations(models=[RELEASE], policy_sha256="f" * 64))
    sha256 = run.effective_policy.sha256
    assert reason.startswith(f"The run applied a policy with another hash ({sha256}, transformer.toml) than --policy (")


@pytest.mark.parametrize(
    ("verdict", "remedy"),
    [
        ("fail", "Improve the model, or do not present its attention as a reason."),
        ("inconclusive", "Audit more rows, or improve the model."),
        ("undefined", "The report says what is missing."),
    ],
)
def test_the_remedy_suits_the_verdict_and_the_same_audit_is_not_advised(
    tmp_path: Path, verdict: VerdictName, remedy: str
) -> None:
    run = consistent_run(tmp_path, (FAILING,), exit_status=1)
    run = msgspec.structs.replace(run, checks=[msgspec.structs.replace(run.checks[0], verdict=verdict)])
    assert objections(run, Expectations(models=[RELEASE])) == [
        f"{FAILING.id} for release on reviews: failed: it is failed. {remedy}",
        "The status of the run is 'failed', expected 'passed'.",
        "pytest ended with exit status 1, expected 0. See the output of pytest.",
    ]
    judged = [msgspec.structs.replace(gate, reason=f"fail: {gate.reason}") for gate in run.gates]
    with_verdict = msgspec.structs.replace(run, gates=judged)
    assert objections(with_verdict, Expectations(models=[RELEASE])) == objections(run, Expectations(models=[RELEASE]))
    broken = msgspec.structs.replace(run, problem="a hook failed.", exit_status=3)
    assert objections(broken, Expectations(models=[RELEASE]))[1:] == [
        "The status of the run is 'failed', expected 'passed': a hook failed. Run the audit again.",
        "pytest ended with exit status 3, expected 0. See the output of pytest, and run the audit again.",
    ]


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (
            ("excepted", "excepted"),
            "its gates are all excepted or informational, so nothing was decided about the model",
        ),
        (("excepted", "informational"), "its gates are all excepted or informational"),
        (("informational", "informational"), "all gates are informational for this family of models"),
        (("excepted", "passed"), ""),
        (("informational", "passed"), ""),
    ],
)
def test_at_least_one_gate_of_each_model_must_have_been_judged(
    tmp_path: Path, states: tuple[GateState, ...], message: str
) -> None:
    run = consistent_run(tmp_path, models={"release": "3f" * 32, "other": "4f" * 32})
    mine = iter(states)
    gates = [
        msgspec.structs.replace(gate, state=next(mine), reason="why") if gate.model == "other" else gate
        for gate in run.gates
    ]
    assert len(gates) == 4
    models = [RELEASE, Expected(given="other", name="other", sha256=None)]
    found = objections(msgspec.structs.replace(run, gates=gates), Expectations(models=models))
    assert len(found) == bool(message)
    assert not message or found[0].startswith(f"other: {message}")


def test_a_shortened_hash_is_refused_as_such(tmp_path: Path) -> None:
    run = consistent_run(tmp_path)
    for option, short in (("--model", "release=3f3f3f3f3f3f"), ("--data", "reviews=a1a1")):
        given = Expected(given=short, name=short, sha256=None)
        models, data = ([given], ()) if option == "--model" else ([RELEASE], [given])
        assert objections(run, Expectations(models=models, data=data)) == [
            f"{option} {short}: expected a SHA-256 hash of 64 hexadecimal digits after '='. audit.json contains the "
            "whole hash."
        ]
    unknown = Expected(given="other=3f3f", name="other=3f3f", sha256=None)
    assert "the run has no such model, only release" in objections(run, Expectations(models=[unknown]))[0]


@pytest.mark.parametrize(("verdict", "settled"), [("pass", True), ("inconclusive", False)])
def test_a_sample_is_refused_if_a_confidence_sequence_did_not_decide(
    tmp_path: Path, verdict: VerdictName, settled: bool
) -> None:
    run = consistent_run(tmp_path, (FAILING,), exit_status=0)
    (record,), (table,), (data,) = run.checks, run.effective_policy.checks, run.data
    interval = Interval(low=0.1, high=0.2, confidence=0.95, method=CONFIDENCE_SEQUENCE)
    run = msgspec.structs.replace(
        run,
        checks=[msgspec.structs.replace(record, verdict=verdict, interval=interval)],
        effective_policy=msgspec.structs.replace(run.effective_policy, checks=[table | {"sampling": "sequential"}]),
        data=[msgspec.structs.replace(data, rows=10 * data.audited)],
    )
    found = [line for line in objections(run, Expectations(models=[RELEASE])) if line.startswith("Only")]
    assert (found == []) is settled


def test_another_seed_is_refused_unless_it_is_expected(tmp_path: Path) -> None:
    run = msgspec.structs.replace(consistent_run(tmp_path), seed=3)
    models = [Expected(given="release", name="release", sha256=None)]
    (reason,) = objections(run, Expectations(models=models))
    assert reason.startswith("The run used the seed 3, expected 0.")
    assert objections(run, Expectations(models=models, seed=3)) == []


def test_every_expected_baseline_must_have_been_compared(tmp_path: Path) -> None:
    run = consistent_run(tmp_path)
    comparison = BaselineComparison(
        baseline_name="last", base="conicity", candidate=0.5, reading="", measures_sha256="", baseline_sha256="a" * 64
    )
    run = msgspec.structs.replace(run, checks=[msgspec.structs.replace(run.checks[0], comparison=comparison)])
    models = [Expected(given="release", name="release", sha256=None)]
    hashes = {"last": "a" * 64}
    assert objections(run, Expectations(models=models, baselines=hashes)) == []
    (reason,) = objections(run, Expectations(models=models, baselines={**hashes, "pinned": "b" * 64}))
    assert reason.startswith("The run was not compared with the baseline 'pinned', although the folder of")
