"""Test files that were not collected make a run partial, because their gates are unknown."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from attnaudit import cli
from tests.conftest import PROJECT_CONFTEST, newest_audit, newest_run
from tests.forking_interpreter import run_pytest

LAX = """
from attnaudit import audit
from attnaudit.registry import checks as known

@audit(known.get("attention_peak")(at_most=0.99))
def test_lax(check):
    check.enforce()
"""
STRICT = """
from attnaudit import audit
from attnaudit.registry import checks as known

@audit(known.get("token_count")(at_least=50))
def test_strict(check):
    check.enforce()
"""
NOT_COLLECTED_FILE = "not collected, for example because of --ignore or a conftest.py"
NOT_A_TEST_FILE = "not collected, because its name is not that of a test file, such as test_attention.py"


def write_audits(project: pytest.Pytester, *, strict: str = STRICT, conftest: str = "") -> Path:
    """Write audits/test_lax.py, whose gate passes, and audits/strict/test_strict.py, whose gate fails."""
    (project.path / "test_audit.py").unlink()
    project.makeconftest(f"{PROJECT_CONFTEST}\n{conftest}\n")
    folder = project.mkdir("audits")
    (folder / "strict").mkdir()
    (folder / "test_lax.py").write_text(LAX, encoding="utf-8")
    (folder / "strict" / "test_strict.py").write_text(strict, encoding="utf-8")
    return folder


def require_partial(
    project: pytest.Pytester, result: pytest.RunResult, file: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Assert that a run whose gates passed is partial in every output, because a test file was left out."""
    assert result.ret == pytest.ExitCode.OK
    audit = newest_audit(project.path)
    assert (audit["status"], audit["exit_status"]) == ("partial", 0)
    assert audit["files_left_out"] == {file: reason}
    assert [(gate["check"], gate["state"]) for gate in audit["gates"]] == [("attention_peak", "passed")]
    run = newest_run(project.path)
    pages = [(run / name).read_text(encoding="utf-8").replace("\\", "") for name in ("summary.md", "report.html")]
    for text in (result.stdout.str(), *pages):
        assert "partial" in text.lower()
        assert file in text
    capsys.readouterr()
    assert cli.main(["verify", str(project.path / "reports"), "--model", f"tiny={'0' * 64}"]) == 1
    refused = capsys.readouterr().out
    assert f"{file}: this test file was left out" in refused
    assert "The status of the run is 'partial', expected 'passed'" in refused


@pytest.mark.parametrize(
    ("conftest", "options"),
    [
        ("", ["--ignore=audits/strict/test_strict.py"]),
        ("", ["--ignore=audits/strict"]),
        ("", ["--ignore-glob=*strict*"]),
        ("", ["-o", "norecursedirs=strict"]),
        ("", ["-o", "python_files=test_lax.py"]),
        ("collect_ignore = ['audits/strict/test_strict.py']", []),
        ("collect_ignore_glob = ['*/test_strict.py']", []),
        ("def pytest_ignore_collect(collection_path):\n    return collection_path.name == 'strict' or None", []),
    ],
    ids=[
        "ignore",
        "ignore a folder",
        "ignore-glob",
        "norecursedirs",
        "python_files",
        "collect_ignore",
        "collect_ignore_glob",
        "pytest_ignore_collect",
    ],
)
@pytest.mark.parametrize("workers", [[], pytest.param(["-n1"], marks=pytest.mark.slow)], ids=["one process", "xdist"])
def test_a_test_file_that_is_not_collected_makes_the_run_partial(
    project: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
    conftest: str,
    options: list[str],
    workers: list[str],
) -> None:
    write_audits(project, conftest=conftest)
    run = functools.partial(run_pytest, project) if workers else project.runpytest
    result = run("--model", "tiny", "audits", *options, *workers)
    require_partial(project, result, "audits/strict/test_strict.py", NOT_COLLECTED_FILE, capsys)


@pytest.mark.parametrize(
    ("skip", "reason"),
    [
        ("import pytest\npytest.importorskip('no_such_module')", "skipped: could not import 'no_such_module'"),
        ("import pytest\npytest.skip('no GPU', allow_module_level=True)", "skipped: no GPU"),
        ("import unittest\nraise unittest.SkipTest('no GPU')", "skipped: unittest.case.SkipTest: no GPU"),
    ],
    ids=["importorskip", "skip", "unittest"],
)
@pytest.mark.parametrize("workers", [[], pytest.param(["-n1"], marks=pytest.mark.slow)], ids=["one process", "xdist"])
def test_a_test_file_that_skips_itself_makes_the_run_partial(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str], skip: str, reason: str, workers: list[str]
) -> None:
    write_audits(project, strict=skip + STRICT)
    run = functools.partial(run_pytest, project) if workers else project.runpytest
    result = run("--model", "tiny", "audits", *workers)
    (found,) = newest_audit(project.path)["files_left_out"].values()
    assert found.startswith(reason)
    require_partial(project, result, "audits/strict/test_strict.py", found, capsys)


@pytest.mark.parametrize("argument", ["audits/test_lax.py", "audits/test_lax.py::test_lax"])
def test_a_test_file_next_to_the_one_on_the_command_line_makes_the_run_partial(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    folder = write_audits(project)
    assert project.runpytest("--model", "tiny", argument).ret == pytest.ExitCode.OK
    assert newest_audit(project.path)["status"] == "passed"  # other folders are not part of the audit
    (folder / "strict" / "test_strict.py").rename(folder / "test_strict.py")
    result = project.runpytest("--model", "tiny", argument)
    require_partial(project, result, "audits/test_strict.py", "not on the command line", capsys)


@pytest.mark.parametrize("argument", ["audits", "audits/test_lax.py"])
def test_a_file_with_gates_that_is_not_named_like_a_test_file_makes_the_run_partial(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    folder = write_audits(project)
    (folder / "strict" / "test_strict.py").rename(folder / "test-strict.py")
    result = project.runpytest("--model", "tiny", argument)
    require_partial(project, result, "audits/test-strict.py", NOT_A_TEST_FILE, capsys)


def test_a_test_file_that_last_failed_does_not_import_makes_the_run_partial(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_audits(project)
    (folder / "test_lax.py").write_text(LAX.replace("0.99", "0.01"), encoding="utf-8")
    (folder / "strict" / "test_strict.py").write_text(STRICT.replace("50", "1"), encoding="utf-8")
    assert project.runpytest("--model", "tiny", "audits").ret == pytest.ExitCode.TESTS_FAILED
    (folder / "test_lax.py").write_text(LAX, encoding="utf-8")
    result = project.runpytest("--model", "tiny", "audits", "--last-failed")
    require_partial(project, result, "audits/strict/test_strict.py", NOT_COLLECTED_FILE, capsys)


@pytest.mark.parametrize(("option", "status"), [([], 1), (["--audit-allow-partial"], 0)])
def test_a_test_file_that_is_left_out_in_ci_makes_the_run_fail(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: list[str], status: int
) -> None:
    write_audits(project)
    monkeypatch.setenv("CI", "1")
    result = project.runpytest("--model", "tiny", "audits", "--ignore=audits/strict", *option)
    assert result.ret == status
    audit = newest_audit(project.path)
    assert (audit["status"], audit["exit_status"]) == ("partial", status)
    assert ("Run every gate and every test file" in result.stdout.str()) == bool(status)


def test_with_a_policy_file_every_gate_is_known_and_no_test_file_counts(project: pytest.Pytester) -> None:
    write_audits(project)
    policy = project.path / "policy.toml"
    policy.write_text('[[check]]\nname = "attention_peak"\nat_most = 0.99\n', encoding="utf-8")
    result = project.runpytest("--model", "tiny", "audits", "--ignore=audits/strict", "--policy=policy.toml")
    assert result.ret == pytest.ExitCode.OK
    audit = newest_audit(project.path)
    assert (audit["status"], audit["files_left_out"]) == ("passed", {})


def test_a_test_file_that_cannot_contain_a_gate_may_be_left_out(project: pytest.Pytester) -> None:
    folder = write_audits(project, strict="import attnaudit\n\ndef test_shape():\n    pass\n")
    for name in (".tox/test_copy.py", "node_modules/test_copy.py", "environment/test_copy.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(STRICT, encoding="utf-8")
    (folder / "environment" / "pyvenv.cfg").touch()
    trail = STRICT.partition("@audit")[0] + "audit_trail = 'audit.log'\n"
    (folder / "helper.py").write_text(trail, encoding="utf-8")
    (folder / "strict" / "again").symlink_to(folder, target_is_directory=True)
    assert project.runpytest("--model", "tiny", "audits", "--ignore=audits/strict").ret == pytest.ExitCode.OK
    audit = newest_audit(project.path)
    assert (audit["status"], audit["files_left_out"]) == ("passed", {})
