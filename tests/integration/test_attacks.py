"""Ways to get a green result from a model that fails a gate, which once worked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnaudit import cli
from tests.conftest import PROJECT_CONFTEST, newest_audit

ROOT = Path(__file__).resolve().parents[2]
#: `token_count` is 8 at most, so only the first threshold fails.
TWO_THRESHOLDS = """
from attnaudit import audit
from attnaudit.registry import checks as known

@audit(known.get("token_count")(at_least=50))
def test_strict(check):
    check.enforce()

@audit(known.get("token_count")({lax}), known.get("attention_peak")(at_most=0.99))
def test_lax(check):
    check.enforce()
"""
LAXER_IN_THE_TEST = """
from attnaudit import audit
from attnaudit.registry import checks as known

@audit(known.get("token_count")(at_least=50))
def test_faithful(check):
    laxer = known.get("token_count")(at_least=1)
    {trick}
    check.enforce()
"""


@pytest.mark.parametrize("lax", ["at_least=1", "severity='report'"])
def test_a_laxer_declaration_does_not_replace_a_gate_that_k_leaves_out(project: pytest.Pytester, lax: str) -> None:
    project.makepyfile(test_audit=TWO_THRESHOLDS.format(lax=lax))
    result = project.runpytest("--model", "tiny", "-k", "test_lax")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_lax and *test_strict have the same check 'token_count' with other arguments*"])
    assert newest_audit(project.path)["status"] == "failed"


def test_a_laxer_declaration_does_not_replace_a_gate_that_a_conftest_removes(project: pytest.Pytester) -> None:
    project.makepyfile(test_audit=TWO_THRESHOLDS.format(lax="at_least=1"))
    removes = "def pytest_collection_modifyitems(items):\n    items[:] = [i for i in items if 'strict' not in i.nodeid]"
    project.makeconftest(f"{PROJECT_CONFTEST}\n{removes}\n")
    assert project.runpytest("--model", "tiny").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize("trick", ["check.check = laxer", "check.session.judge(laxer, check.model, check.data)"])
def test_a_test_cannot_judge_a_gate_by_another_threshold(project: pytest.Pytester, trick: str) -> None:
    project.makepyfile(test_audit=LAXER_IN_THE_TEST.format(trick=trick))
    result = project.runpytest("--model", "tiny")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*token_count: judged with other arguments than it was declared with*"])
    (gate,) = newest_audit(project.path)["gates"]
    assert gate["state"] == "open"


def test_the_plugin_of_a_run_cannot_be_disabled_in_an_audit(project: pytest.Pytester) -> None:
    project.makeconftest(PROJECT_CONFTEST + FAKE_CHECK)
    result = project.runpytest("--model", "tiny", "-p", "no:attnaudit-run")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*-p no:attnaudit-run*the audit cannot run*"])


FAKE_CHECK = """
import pytest

class AlwaysPasses:
    def enforce(self):
        pass

@pytest.fixture
def check():
    return AlwaysPasses()
"""


@pytest.mark.parametrize("hook", ["", "pytest_configure", "pytest_sessionfinish", "pytest_unconfigure"])
def test_a_conftest_that_exits_with_0_does_not_make_the_audit_pass(project: pytest.Pytester, hook: str) -> None:
    exits = f"import sys\ndef {hook}():\n    sys.exit(0)\n" if hook else "import sys\nsys.exit(0)\n"
    project.makeconftest(PROJECT_CONFTEST + exits)
    result = project.runpytest_subprocess("--model", "tiny")
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*sys.exit(0)*" if hook != "pytest_configure" else "*SystemExit*"])


def test_a_conftest_that_exits_with_0_does_not_make_a_command_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conftest.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    assert cli.main(["verify", "--model", "of_the_conftest"]) == 1
    assert "with sys.exit(0), before the command was done" in capsys.readouterr().err
