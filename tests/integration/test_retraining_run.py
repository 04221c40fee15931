"""The checks that train, declared in a policy and run by pytest on a trained checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import newest_audit
from tests.small_checkpoints import save_trained

POLICY = """
[[check]]
name = "RetrainedUniform"
seeds = 1
at_least = -0.5
severity = "gate"

[[check]]
name = "SeedVariance"
seeds = 1

[[check]]
name = "GuidedMLP"
seeds = 1

[[check]]
name = "TrainedAdversary"
compare_seeds = 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint, trained before pytester starts.

    pytester unloads modules that were imported during a test, and torch cannot be imported twice.
    """
    path = tmp_path_factory.mktemp("trained")
    save_trained(path)
    return path


@pytest.mark.slow
def test_the_four_checks_are_judged_on_a_checkpoint(folder: Path, project: pytest.Pytester) -> None:
    (project.path / "policy.toml").write_text(POLICY, encoding="utf-8")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    data = str(folder / "dev.jsonl")
    result = project.runpytest("--model", str(folder / "model"), "--data", data, "--policy", "policy.toml")
    result.assert_outcomes(passed=4)
    audit = newest_audit(project.path)
    records = {record["check"]: record for record in audit["checks"]}
    assert set(records) == {"retrained_uniform", "seed_variance", "guided_mlp", "trained_adversary.kl.0.01"}
    assert all(record["value"] is not None for record in records.values())
    assert [record["severity"] for record in audit["checks"]].count("gate") == 1
    assert audit["measured"][0]["passes"]["models_trained"] == 6  # two checks share the copy with the other seed
    (seeds,) = records["trained_adversary.kl.0.01"]["references"]
    assert seeds["value"] == records["seed_variance"]["value"]
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert not [*project.path.rglob("*.safetensors"), *project.path.rglob("*.pt")]
    page = next((project.path / "reports").rglob("report.html")).read_text(encoding="utf-8")
    assert "The check trains 1 model, at about the cost of training the audited one" in page
    assert "Attention of the trained adversary" in page


def test_a_model_that_cannot_be_retrained_is_refused_in_one_sentence(folder: Path, project: pytest.Pytester) -> None:
    (project.path / "policy.toml").write_text(POLICY, encoding="utf-8")
    result = project.runpytest("--model", "tiny", "--policy", "policy.toml")
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        ["*SeedVariance on tiny: This check retrains the model, but the adapter declares retrains=False.*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*.py:*: *Error")
