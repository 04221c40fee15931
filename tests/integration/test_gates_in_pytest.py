"""A run of pytest is green exactly if every gate passed, whatever the project does to its cases.

Generated projects remove, skip, break, repeat and interrupt the cases of three gates. What has to come out is computed
from what the project does, and every output is compared with it.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from attnaudit import cli
from tests.conftest import PROJECT_CONFTEST, newest_audit, newest_run
from tests.forking_interpreter import run_pytest

NAMES = ("first", "second", "third")
#: What the project does to a case. The hooks of the conftest do the first five, the test function does the others.
DEEDS = (
    "deselect",
    "remove",
    "skip",
    "xfail",
    "xfail without running",
    "break in setup",
    "break in teardown",
    "interrupt in teardown",
    "exit in teardown with 0",
    "enforce",
    "raise",
    "raise once",
    "swallow",
    "forget",
    "clear",
    "forge",
    "interrupt",
    "exit with 0",
    "exit with 1",
    "die once",
)
CONFTEST = (
    PROJECT_CONFTEST
    + """

import json
from pathlib import Path

import pytest

PROJECT = json.loads(Path(__file__).with_name("project.json").read_text(encoding="utf-8"))


@attnaudit.checks.check(title="First", question="How many tokens are there?")
def first(measurements):
    return measurements.lengths


@attnaudit.checks.check(title="Second", question="How many tokens are there?")
def second(measurements):
    return measurements.lengths + 1


@attnaudit.checks.check(title="Third", question="How many tokens are there?")
def third(measurements):
    return measurements.lengths + 2


def deed(item):
    return next(words for name, words in PROJECT["deeds"].items() if f"rows-{name}]" in item.nodeid)


def pytest_collection_modifyitems(config, items):
    deselected = [item for item in items if deed(item) == "deselect"]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if deed(item) not in ("deselect", "remove")]
    for item in items:
        if deed(item) == "skip":
            item.add_marker(pytest.mark.skip(reason="on holiday"))
        elif deed(item).startswith("xfail"):
            item.add_marker(pytest.mark.xfail(reason="known", run=deed(item) == "xfail", strict=False))


def pytest_runtest_setup(item):
    if deed(item) == "break in setup":
        raise RuntimeError("no database")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    if deed(item) == "break in teardown":
        raise RuntimeError("no database")
    if deed(item) == "interrupt in teardown":
        raise KeyboardInterrupt
    if deed(item) == "exit in teardown with 0":
        pytest.exit("enough", returncode=0)
"""
)
TEST = """
import json
import os
from pathlib import Path

import msgspec
import pytest
from attnaudit import audit
from attnaudit.checks import CheckFailed
from attnaudit.registry import checks as known

PROJECT = json.loads(Path(__file__).with_name("project.json").read_text(encoding="utf-8"))


def is_first_try(check):
    file = Path(__file__).with_name(f"tried-{check.check.id}")
    tried = file.exists()
    file.touch()
    return not tried


@audit(
    *(known.get(name)(at_least=3.5 if passes else 50) for name, passes in PROJECT["passes"].items()),
    exceptions=PROJECT["exceptions"],
)
def test_faithful(check):
    deed = PROJECT["deeds"][check.check.id]
    if deed == "raise" or (deed == "raise once" and is_first_try(check)):
        raise RuntimeError("out of memory")
    elif deed == "die once" and is_first_try(check):
        os._exit(1)
    elif deed == "swallow":
        try:
            check.enforce()
        except CheckFailed:
            pass
    elif deed == "forget":
        pass
    elif deed == "clear":
        check.judge()
        check.record = None
    elif deed == "forge":
        check.record = msgspec.structs.replace(check.judge(), verdict="pass", blocks=False)
    elif deed == "interrupt":
        raise KeyboardInterrupt
    elif deed.startswith("exit with"):
        pytest.exit("enough", returncode=int(deed[-1]))
    else:
        check.enforce()
"""


@dataclass(frozen=True)
class Project:
    """What a project does to its three gates, and how pytest is called.

    Attributes:
        deeds: What the project does to each case.
        passes: Whether the verdict of each gate passes.
        excepted: The gates that the policy excepts.
        left_out: The gate that the user leaves out with -k; "" for none.
        exitfirst: Whether -x is given.
        reruns: Whether --reruns 1 is given.
        ci: Whether the environment variable CI is set.
        allow_partial: Whether --audit-allow-partial is given.
    """

    deeds: Sequence[str] = ("enforce", "enforce", "enforce")
    passes: Sequence[bool] = (True, True, True)
    excepted: Sequence[str] = ()
    left_out: str = ""
    exitfirst: bool = False
    reruns: bool = False
    ci: bool = False
    allow_partial: bool = False

    def options(self) -> list[str]:
        """The arguments of pytest."""
        return [
            *(["-k", f"not {self.left_out}"] if self.left_out else []),
            *(["-x"] if self.exitfirst else []),
            *(["--reruns=1"] if self.reruns else []),
            *(["--audit-allow-partial"] if self.allow_partial else []),
        ]

    def write(self, folder: Path) -> None:
        """Write what the conftest and the test read."""
        for tried in folder.glob("tried-*"):
            tried.unlink()
        content = {
            "deeds": dict(zip(NAMES, self.deeds, strict=True)),
            "passes": dict(zip(NAMES, self.passes, strict=True)),
            "exceptions": dict.fromkeys(self.excepted, "see the model card"),
        }
        (folder / "project.json").write_text(json.dumps(content), encoding="utf-8")


@dataclass
class Truth:
    """What has to come out of a project.

    Attributes:
        kept: The gates that pass or are excepted.
        left_out: The gates that did not run because of an option, and do not count against the run.
        failures: The number of tests that fail.
        ended: The exit status with which the session ends early; None if it does not.
        ran: The number of tests that pytest selects.
    """

    kept: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    failures: int = 0
    ended: int | None = None
    ran: int = 0

    def base(self) -> int:
        """The exit status of pytest without the audit."""
        if self.ended is not None:
            return self.ended
        return int(self.failures > 0) if self.ran else 5

    def status(self) -> str:
        """The status of the run."""
        if self.base() or set(NAMES) - self.kept - self.left_out:
            return "failed"
        return "partial" if self.left_out else "passed"


def truth_of(project: Project) -> Truth:
    """Play through what the project does, case by case."""
    truth = Truth()
    for name, deed, passes in zip(NAMES, project.deeds, project.passes, strict=True):
        removed = deed in ("deselect", "remove")
        # The conftest.py removes or deselects a case before pytest applies -k, so -k does not leave this case out.
        if name == project.left_out and not removed:
            truth.left_out.add(name)
        if name == project.left_out or removed:
            continue
        truth.ran += 1
        if project.exitfirst and truth.failures:  # even if the teardown of the case that failed ends the session
            truth.left_out.add(name)
            continue
        if truth.ended is not None:
            continue
        judged = not (
            deed in ("skip", "xfail without running", "break in setup", "raise", "forget", "interrupt")
            or deed.startswith("exit with")
            or (deed == "raise once" and not project.reruns)
            or (project.reruns and deed.startswith(("interrupt in", "exit in")))  # it reports a test after its teardown
        )
        skipped = deed in ("skip", "xfail without running") or (deed == "xfail" and not passes)
        if (judged and passes) or (skipped and name in project.excepted):
            truth.kept.add(name)
        enforced = judged and deed not in ("swallow", "clear", "forge", "xfail")
        broken = deed in ("break in setup", "break in teardown", "raise") or (deed == "raise once" and not judged)
        truth.failures += broken or (enforced and not passes)
        if deed.startswith("interrupt"):
            truth.ended = 2
        elif deed.startswith("exit"):
            truth.ended = int(deed[-1])
    return truth


projects = st.builds(
    Project,
    deeds=st.tuples(*[st.just("enforce") | st.sampled_from(DEEDS[:-1])] * 3),
    passes=st.tuples(*[st.sampled_from([True, True, True, False])] * 3),
    excepted=st.sampled_from([(), (), ("first",), ("second", "third")]),
    left_out=st.sampled_from(["", "", "", *NAMES]),
    exitfirst=st.booleans(),
    reruns=st.booleans(),
    ci=st.booleans(),
    allow_partial=st.booleans(),
)


@pytest.fixture
def folder(project: pytest.Pytester) -> pytest.Pytester:
    project.makeconftest(CONFTEST)
    project.makepyfile(test_audit=TEST)
    return project


def run_project(
    folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, project: Project, *, workers: bool = False
) -> pytest.RunResult:
    """Run pytest on a project, in a process of its own if it has workers."""
    project.write(folder.path)
    monkeypatch.delenv("CI", raising=False)
    if project.ci:
        monkeypatch.setenv("CI", "true")
    arguments = ("--model", "tiny", "--junitxml=junit.xml", "-p", "no:cacheprovider", *project.options())
    if workers:
        return run_pytest(folder, *arguments, "-n2")
    return folder.runpytest_inprocess(*arguments, no_reraise_ctrlc=True)


def require_agreement(root: Path, result: pytest.RunResult, project: Project, truth: Truth) -> None:
    """Require that every output of a run says what has to come out."""
    audit = newest_audit(root)
    assert audit["status"] == truth.status()
    assert audit["exit_status"] == result.ret
    partial = truth.status() == "partial"
    green = truth.status() == "passed"
    tolerated = partial and (project.allow_partial or not project.ci)
    assert (result.ret == 0) == (green or tolerated)
    kept = {gate["check"] for gate in audit["gates"] if gate["state"] in ("passed", "excepted")}
    assert kept == truth.kept
    assert [gate["check"] for gate in audit["gates"]] == list(NAMES)
    assert {gate["check"] for gate in audit["gates"] if gate["state"] == "not selected"} == truth.left_out - truth.kept
    unkept = [gate["check"] for gate in audit["gates"] if gate["state"] in ("failed", "open")]
    require_junit(root / "junit.xml", unkept, failed=result.ret != 0)
    require_same_text(root, result, audit)
    require_verification(root, audit, green=green and any(gate["state"] == "passed" for gate in audit["gates"]))


def require_junit(path: Path, unkept: Sequence[str], *, failed: bool) -> None:
    """JUnit has a failure or an error exactly if the run failed, and its text names every gate that did not pass."""
    wrong = [
        case
        for case in ElementTree.parse(path).iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    assert bool(wrong) == failed
    text = "\n".join(f"{case.get('name')}\n{''.join(case.itertext())}" for case in wrong)
    for name in unkept:
        assert f"[tiny-rows-{name}]" in text or f"{name} (tiny on rows)" in text, text


def require_same_text(root: Path, result: pytest.RunResult, audit: dict[str, Any]) -> None:
    """The terminal, summary.md and report.html count the gates and describe the run in the same words."""
    states = [gate["state"] for gate in audit["gates"]]
    words = {"open": "without a verdict", "excepted": "excepted by the policy"}
    counts = [
        f"{states.count(state)} {words.get(state, state)}"
        for state in ("passed", "failed", "open", "excepted", "not selected")
        if state in states
    ]
    although_passed = audit["status"] == "failed" and set(states) <= {"passed", "excepted"}
    line = f"gates: {', '.join(counts)}{', but the run failed' if although_passed else ''}"
    summary = (newest_run(root) / "summary.md").read_text(encoding="utf-8")
    page = (newest_run(root) / "report.html").read_text(encoding="utf-8")
    assert line in result.outlines
    assert f"* {line}" in summary.splitlines()
    assert (
        ("This release is blocked." in summary) == ("This release is blocked." in page) == (audit["status"] == "failed")
    )
    for text in (result.stdout.str(), summary):
        assert ("This run is partial: " in text) == (audit["status"] == "partial")
    assert ("Partial run" in page) == (audit["status"] == "partial")
    if audit["problem"]:
        assert f"attnaudit: {audit['problem']}" in result.outlines


def require_verification(root: Path, audit: dict[str, Any], *, green: bool) -> None:
    """`attnaudit verify` accepts the run exactly if it is green, and finds no edited file."""
    sha256 = audit["models"][0]["sha256"] if audit["models"] else "0" * 64
    assert (cli.main(["verify", str(root / "reports"), "--model", f"tiny={sha256}"]) == 0) == green


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(project=projects)
@example(project=Project())
@example(project=Project(deeds=("enforce", "enforce", "interrupt in teardown")))
@example(project=Project(deeds=("enforce", "enforce", "exit in teardown with 0")))
@example(project=Project(deeds=("enforce", "exit with 0", "enforce")))
@example(project=Project(deeds=("remove", "remove", "remove")))
@example(project=Project(left_out="second", ci=True))
@example(project=Project(left_out="second", ci=True, allow_partial=True))
@example(project=Project(deeds=("raise once", "clear", "forge"), reruns=True))
@example(project=Project(deeds=("enforce", "raise once", "raise once"), allow_partial=True))
@example(project=Project(deeds=("xfail", "enforce", "enforce"), passes=(False, True, True), excepted=("first",)))
def test_a_run_is_green_exactly_if_every_gate_passed(
    folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, project: Project
) -> None:
    result = run_project(folder, monkeypatch, project)
    require_agreement(folder.path, result, project, truth_of(project))


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(project=projects)
@example(
    project=Project(deeds=("enforce", "interrupt in teardown", "enforce"), passes=(True, False, True), exitfirst=True)
)
def test_many_runs_are_green_exactly_if_every_gate_passed(
    folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, project: Project
) -> None:
    result = run_project(folder, monkeypatch, project)
    require_agreement(folder.path, result, project, truth_of(project))


@pytest.mark.slow
@pytest.mark.parametrize("reruns", [False, True], ids=["once", "reruns"])
def test_a_worker_that_dies_leaves_its_gate_open_unless_it_is_judged_by_another(
    folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, reruns: bool
) -> None:
    project = Project(deeds=("enforce", "die once", "enforce"), reruns=reruns)
    result = run_project(folder, monkeypatch, project, workers=True)
    audit = newest_audit(folder.path)
    states = {gate["check"]: gate["state"] for gate in audit["gates"]}
    assert states == {"first": "passed", "second": "passed" if reruns else "open", "third": "passed"}
    assert (audit["status"] == "passed") == (result.ret == 0)
    assert audit["status"] == ("passed" if reruns and result.ret == 0 else "failed")
    reasons = [failure["reason"] for failure in audit["earlier_failures"]]
    assert len(reasons) == reruns
    assert all("crashed" in reason for reason in reasons)
    require_junit(folder.path / "junit.xml", [] if reruns else ["second"], failed=result.ret != 0)
    require_verification(folder.path, audit, green=result.ret == 0)


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(project=projects.filter(lambda project: not project.exitfirst))
def test_a_run_with_workers_is_green_exactly_if_every_gate_passed(
    folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, project: Project
) -> None:
    result = run_project(folder, monkeypatch, project, workers=True)
    audit = newest_audit(folder.path)
    kept = {gate["check"] for gate in audit["gates"] if gate["state"] in ("passed", "excepted")}
    assert (result.ret == 0 and audit["status"] == "passed") == (kept == set(NAMES) and audit["status"] == "passed")
    if not any(deed.startswith(("interrupt", "exit")) for deed in project.deeds):
        require_agreement(folder.path, result, project, truth_of(project))
