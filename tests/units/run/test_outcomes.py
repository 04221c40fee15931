"""The outcome of every case follows from the reports of its test."""

from __future__ import annotations

from typing import Any

import msgspec

from attnaudit import checks
from attnaudit.run.outcomes import Outcomes
from attnaudit.run.run_folder import SelectedCase
from tests.units.checks.synthetic_measurements import measured

SELECTED = [SelectedCase(test=f"t[{name}]", model="m", data="d", check=name) for name in ("one", "two", "three")]


def reasons(outcomes: Outcomes) -> dict[str, str]:
    return {case.check: case.reason for case in outcomes.missing(SELECTED)}


def test_a_case_without_a_report_was_not_run() -> None:
    assert reasons(Outcomes()) == {"one": "not run", "two": "not run", "three": "not run"}


def test_each_way_to_end_without_a_verdict_has_its_reason() -> None:
    outcomes = Outcomes()
    outcomes.add("t[one]", when="setup", outcome="skipped", reason="no data", record=None)
    outcomes.add("t[two]", when="setup", outcome="failed", reason="boom", record=None)
    outcomes.add("t[three]", when="???", outcome="failed", reason="worker 'gw0' crashed", record=None)
    assert reasons(outcomes) == {
        "one": "skipped: no data",
        "two": "error in setup: boom",
        "three": "worker 'gw0' crashed",
    }
    assert not outcomes.ran


def test_a_case_that_passed_without_a_verdict_has_its_own_reason() -> None:
    outcomes = Outcomes()
    outcomes.add("t[one]", when="call", outcome="passed", reason="", record=None)
    assert reasons(outcomes)["one"].startswith("ended without a verdict")
    assert outcomes.ran == {"t[one]"}


def record(verdict: str, *, severity: str = "gate") -> dict[str, Any]:
    check = checks.UniformFragility(**{"severity": severity, "at_least": 0.99 if verdict == "fail" else 0.0})  # type: ignore[arg-type]
    judged = check.judge(measured())
    assert judged.verdict == verdict
    return {**msgspec.to_builtins(judged), "model": "m", "data": "d", "check": "one"}


def test_tests_that_ran_without_enforcing_a_verdict_are_listed() -> None:
    enforced, ignored, silent, expected = Outcomes(), Outcomes(), Outcomes(), Outcomes()
    enforced.add("t[one]", when="call", outcome="failed", reason="", record=record("fail"))
    ignored.add("t[one]", when="call", outcome="passed", reason="", record=record("fail"))
    silent.add("t[one]", when="call", outcome="passed", reason="", record=None)
    expected.add("t[one]", when="call", outcome="skipped", reason="known", record=record("fail"))  # pytest's xfail
    tests = [outcomes.tests_without_enforcement(SELECTED) for outcomes in (enforced, ignored, silent, expected)]
    assert tests == [[], ["t[one]"], ["t[one]"], []]
    assert expected.ran == {"t[one]"}
    informational = Outcomes()
    informational.add("t[one]", when="call", outcome="passed", reason="", record=record("fail", severity="report"))
    assert informational.tests_without_enforcement(SELECTED) == []


def test_a_test_without_a_check_misses_no_verdict() -> None:
    assert Outcomes().missing([SelectedCase(test="t", model="m", data="d", check="")]) == []
