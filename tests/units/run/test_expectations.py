"""What a run must have audited before a release, and the sentences that say what it lacks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from attnaudit.records import BaselineComparison, GateRecord
from attnaudit.run.expectations import Expectations, Expected, objections
from tests.consistent_runs import consistent_run
from tests.units.report.example_runs import run_record


def test_a_run_whose_model_could_not_be_loaded_is_refused_with_the_reason() -> None:
    reason = "model 'demo': the factory raised RuntimeError: the weights file is gone."
    gate = GateRecord(model="demo", data="reviews", check="conicity", state="open", reason=reason)
    run = run_record([], gates=[gate], models=[], data=[], exit_status=6)
    found = objections(run, Expectations(models=[Expected(given="demo", name="demo", sha256=None)]))
    assert found == [
        f"conicity for demo on reviews: open: {reason} Fix the reason. Run the audit again.",
        "The status of the run is 'failed', expected 'passed'. Run the audit again.",
        "pytest ended with exit status 6, expected 0. See the output of pytest, and run the audit again.",
        "--model demo: the run has no such model, and audited none. Audit the expected model, or correct --model.",
    ]


def test_another_seed_is_refused_unless_it_is_expected(tmp_path: Path) -> None:
    run = msgspec.structs.replace(consistent_run(tmp_path), seed=3)
    models = [Expected(given="release", name="release", sha256=None)]
    (reason,) = objections(run, Expectations(models=models))
    assert reason.startswith("The run used the seed 3, expected 0.")
    assert objections(run, Expectations(models=models, seed=3)) == []


def test_every_expected_baseline_must_have_been_compared(tmp_path: Path) -> None:
    run = consistent_run(tmp_path)
    comparison = BaselineComparison(
        anchor="last", base="conicity", candidate=0.5, reading="", measures_sha256="", baseline_sha256="a" * 64
    )
    run = msgspec.structs.replace(run, checks=[msgspec.structs.replace(run.checks[0], comparison=comparison)])
    models = [Expected(given="release", name="release", sha256=None)]
    hashes = {"last": "a" * 64}
    assert objections(run, Expectations(models=models, baselines=hashes)) == []
    (reason,) = objections(run, Expectations(models=models, baselines={**hashes, "pinned": "b" * 64}))
    assert reason.startswith("The run was not compared with the baseline 'pinned', although the folder of")
