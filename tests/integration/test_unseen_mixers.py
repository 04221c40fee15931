"""A gate on a model that decides through modules without attention weights, in every output of a run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnaudit import cli
from tests.architectures import SENTENCES
from tests.conftest import newest_audit, newest_run
from tests.forking_interpreter import run_module
from tests.hybrids import MIXERS, save_planted_hybrid

#: The gate passes if it is judged on the visible attention alone.
POLICY = """
[[check]]
name = "UniformFragility"
at_least = 1e-4
{rule}
"""
TEST = """
from pathlib import Path

from attnaudit import audit, checks

@audit(checks.load_policy(Path("policy.toml")))
def test_faithful(check):
    check.enforce()
"""
CLAUSE = f"2 modules of the model carry information between tokens without visible weights ({', '.join(MIXERS)})"


def audit(folder: Path, rule: str = "") -> subprocess.CompletedProcess[str]:
    """Audit the hybrid in a process of its own, with a policy of one gate that has the given lines."""
    save_planted_hybrid(folder / "hybrid")
    labels = ("negative", "positive")
    texts = [f"{SENTENCES[n % 10]} {SENTENCES[n // 10]}" for n in range(40)]  # all of them with different tokens
    rows = [{"id": f"r{n}", "text": text, "label": labels[n % 2]} for n, text in enumerate(texts)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "policy.toml").write_text(POLICY.format(rule=rule), encoding="utf-8")
    (folder / "test_audit.py").write_text(TEST, encoding="utf-8")
    words = ("--model", "hybrid", "--data", "rows.jsonl", "--junitxml=junit.xml", "-p", "no:cacheprovider")
    return run_module("pytest", *words, cwd=folder)


@pytest.mark.slow
def test_a_gate_is_red_because_its_reading_leaves_out_what_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = audit(tmp_path)
    assert done.returncode == 1, done.stdout
    content = newest_audit(tmp_path)
    assert (content["status"], content["exit_status"]) == ("failed", 1)
    assert content["models"][0]["unseen_mixers"] == list(MIXERS)
    (record,) = content["checks"]
    assert (record["verdict"], record["blocks"], record["unseen_mixers"]) == ("undefined", True, list(MIXERS))
    assert record["interval"]["low"] >= 1e-4, "without this rule, the gate would pass"
    assert [gate["state"] for gate in content["gates"]] == ["failed"]
    cases = ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase")
    (failure,) = [str(problem.text) for case in cases for problem in case if problem.tag == "failure"]
    run = newest_run(tmp_path)
    pages = [(run / name).read_text(encoding="utf-8").replace("\\", "") for name in ("summary.md", "report.html")]
    for output in (failure, done.stdout, *pages):
        assert CLAUSE in output
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("undefined  ")]
    assert line.endswith(f", n=40; {record['reason']}")
    assert cli.main(["verify", str(tmp_path / "reports"), "--model", str(tmp_path / "hybrid")]) == 1
    assert f"for hybrid on rows: failed: undefined: {CLAUSE}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_policy_accepts_what_no_reading_shows(tmp_path: Path) -> None:
    done = audit(tmp_path, 'unseen_mixers = "accept"')
    assert done.returncode == 0, done.stdout
    (record,) = newest_audit(tmp_path)["checks"]
    assert (record["verdict"], record["unseen_mixers"]) == ("pass", [])
    assert "no reading shows these modules, and the policy accepts them" in record["note"]
    assert CLAUSE in (newest_run(tmp_path) / "summary.md").read_text(encoding="utf-8").replace("\\", "")


@pytest.mark.slow
def test_rollout_is_refused(tmp_path: Path) -> None:
    done = audit(tmp_path, 'reading = "rollout@query=last"\nunseen_mixers = "accept"')
    assert done.returncode == 6, done.stdout
    assert "rollout needs the attention of every layer" in done.stdout
    assert newest_audit(tmp_path)["gates"][0]["state"] == "open"
