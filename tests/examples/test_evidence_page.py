"""docs/evidence.md: its tables match the command, and the commands of its workflow run unchanged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from attnaudit import cli
from attnaudit.commands import evidence_command
from attnaudit.release_evidence.gate_results import Result
from attnaudit.release_evidence.intoto_statement import PREDICATE_TYPE
from tests.consistent_runs import FAILING, NAME, PASSING, consistent_run
from tests.examples.release_repository import release_repository

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
(WORKFLOW,) = re.findall(r"<!-- example: release.yml -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
(DEPLOY,) = re.findall(r"<!-- example: deploy.sh -->\n```bash\n(.*?)```", PAGE, re.DOTALL)


def test_the_tables_have_every_file_option_and_result(capsys: pytest.CaptureFixture[str]) -> None:
    files = re.findall(r"^\| `(\w[\w.-]+)` \|", PAGE.split("## What is stated")[0], re.MULTILINE)
    names = ("STATEMENT", "PREDICATE", "CHECKSUMS", "MODEL_CARD", "TEST_REPORT")
    assert files == [getattr(evidence_command, name) for name in names]
    with pytest.raises(SystemExit):
        cli.main(["evidence", "--help"])
    options = set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    assert set(re.findall(r"^\| `(--[\w-]+)", PAGE, re.MULTILINE)) == options
    assert tuple(re.findall(r"^\| `([A-Z]+)` \|", PAGE, re.MULTILINE)) == get_args(Result)


def test_the_page_promises_nothing_about_the_law() -> None:
    assert "compliant" not in PAGE.lower()


def test_actions_are_pinned_and_the_token_can_do_little() -> None:
    for page in (PAGE, (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")):
        uses = re.findall(r"uses: (.*)", page)
        assert uses
        for action in uses:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}    # v\d+\.\d+\.\d+", action), action
        for workflow in re.findall(r"```yaml\n(name:.*?)```", page, re.DOTALL):
            content = yaml.safe_load(workflow)
            assert content["permissions"] == {}
            for job in content["jobs"].values():
                writes = [name for name, level in job["permissions"].items() if level == "write"]
                commands = " ".join(step.get("run", "") for step in job["steps"])
                assert not (writes and ("pytest" in commands or "attnaudit" in commands))


def test_what_is_signed_is_the_statement() -> None:
    (attest,) = [step["with"] for step in yaml.safe_load(WORKFLOW)["jobs"]["sign"]["steps"] if "attest" in step["uses"]]
    assert attest == {
        "subject-checksums": f"evidence/{evidence_command.CHECKSUMS}",
        "predicate-type": PREDICATE_TYPE,
        "predicate-path": f"evidence/{evidence_command.PREDICATE}",
    }
    assert f"--predicate-type {PREDICATE_TYPE} " in DEPLOY


@pytest.mark.skipif(not (shutil.which("bash") and shutil.which("jq")), reason="the commands need bash and jq")
@pytest.mark.parametrize("failing", [False, True])
def test_the_deployment_accepts_only_what_was_agreed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    """`gh`, which needs the network, is replaced by a script that prints what it prints for a valid signature."""
    run = consistent_run(tmp_path / "reports" / NAME, (PASSING, FAILING) if failing else (PASSING,))
    release = tmp_path / "checkpoints" / "release"
    release.mkdir(parents=True)
    (release / "weights.pt").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["evidence", "reports", "--subject", str(release), "--out", "evidence"]) == int(failing)
    statement: dict[str, Any] = json.loads((tmp_path / "evidence" / "statement.json").read_text(encoding="utf-8"))
    (model,) = [one for one in statement["predicate"]["configuration"] if one["name"] == "model/release"]
    assert run.effective_policy is not None
    agreed = {"POLICY_SHA256": run.effective_policy.sha256, "DATA_SHA256": run.data[0].sha256}

    def deploy(*, found: bool = True, **hashes: str) -> bool:
        model["annotations"]["foundInSubjects"] = found
        (tmp_path / "answer.json").write_text(json.dumps([{"verificationResult": {"statement": statement}}]))
        (tmp_path / "gh").write_text(f"#!/bin/sh\ncat '{tmp_path}/answer.json'\n", encoding="utf-8")
        (tmp_path / "gh").chmod(0o755)
        path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "REPOSITORY": "owner/repository", **agreed, **hashes}
        return subprocess.run(["bash", "-c", DEPLOY], env=environment, capture_output=True, check=False).returncode == 0

    assert deploy() == (not failing)
    assert not deploy(found=False)
    assert not deploy(POLICY_SHA256="0" * 64)
    assert not deploy(DATA_SHA256="0" * 64)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="the commands of a workflow are for bash")
def test_the_commands_of_the_workflow_run_unchanged(tmp_path: Path) -> None:
    """The demo fails a gate, so that its evidence says FAILED."""
    steps = yaml.safe_load(WORKFLOW)["jobs"]["audit"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands[0] == 'pip install "attnaudit[evidence]"'
    environment = {**release_repository(tmp_path), "RUN_URL": "https://ci.example.org/runs/7"}
    for command in commands[1:]:
        done = subprocess.run(
            ["bash", "-e", "-c", command], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 1, done.stdout + done.stderr
    predicate = json.loads((tmp_path / "evidence" / "predicate.json").read_text(encoding="utf-8"))
    assert (predicate["result"], predicate["url"]) == ("FAILED", "https://ci.example.org/runs/7")
    (model,) = [one for one in predicate["configuration"] if one["name"] == "model/release"]
    assert model["annotations"]["foundInSubjects"] is True
