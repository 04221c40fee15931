"""`attnaudit evidence` on runs of pytest: it states their result, and neither it nor `verify` accepts an edited run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from attnaudit import cli
from attnaudit.report.run_files import read_run
from attnaudit.run.verification.integrity import seal
from tests.conftest import newest_run
from tests.units.release_evidence.intoto_schemas import STATEMENT

GREEN = """
from attnaudit import audit
from attnaudit.registry import checks as known

@audit(known.get("attention_peak")(at_most=0.99))
def test_faithful(check):
    check.enforce()
"""


def evidence(root: Path) -> int:
    """Write the evidence about the newest run."""
    (root / "weights.pt").write_bytes(b"weights")
    return cli.main(["evidence", str(root / "reports"), "--subject", str(root / "weights.pt")])


def statement(root: Path) -> dict[str, Any]:
    """Read the statement about the newest run, and require that it is valid."""
    text = (newest_run(root) / "evidence" / "statement.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    Draft202012Validator(STATEMENT).validate(content)
    return content


def test_a_run_that_passed_and_one_that_failed(project: pytest.Pytester) -> None:
    project.runpytest("--model", "tiny")
    assert evidence(project.path) == 1
    predicate = statement(project.path)["predicate"]
    assert predicate["result"] == "FAILED"
    assert predicate["failedTests"] == ["token_count for tiny on rows"]
    assert predicate["passedTests"] == ["attention_peak for tiny on rows"]
    project.makepyfile(test_audit=GREEN)
    project.runpytest("--model", "tiny")
    assert evidence(project.path) == 0
    assert statement(project.path)["predicate"]["result"] == "PASSED"
    assert cli.main(["verify", str(project.path / "reports"), "--model", "tiny"]) == 0  # the new files change nothing


def test_partial_runs_have_no_evidence(project: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    project.runpytest("--model", "tiny", "-k", "attention_peak")
    assert evidence(project.path) == 1
    assert "the run is partial, because it left out 1 gate" in capsys.readouterr().err
    assert not (newest_run(project.path) / "evidence").exists()


def test_an_edited_run_is_refused_by_evidence_and_by_verify(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failed gate becomes a pass in every place but its value, and the digest is computed again."""
    project.runpytest("--model", "tiny")
    path = newest_run(project.path) / "audit.json"
    original = path.read_text(encoding="utf-8")
    content = json.loads(original)
    content |= {"status": "passed", "exit_status": 0}
    for gate in content["gates"]:
        gate |= {"state": "passed", "reason": ""}
    for check in content["checks"]:
        check |= {"blocks": False} | ({"verdict": "pass"} if check["verdict"] == "fail" else {})
    resealed = json.loads(original.replace('"seed": 0', '"seed": 1', 1))
    for edited in (content, resealed):
        path.write_text(json.dumps(edited), encoding="utf-8")
        sealed = seal(read_run(path.parent))
        path.write_text(json.dumps({**edited, "digest": sealed.digest}), encoding="utf-8")
        assert evidence(project.path) == 1
        assert "edited or damaged after the run" in capsys.readouterr().err
        assert cli.main(["verify", str(project.path / "reports"), "--model", "tiny"]) == 1
        assert "was edited or damaged after the run" in capsys.readouterr().out
        assert not (path.parent / "evidence").exists()
