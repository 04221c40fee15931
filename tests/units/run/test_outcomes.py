"""What became of every case, from test reports alone."""

from __future__ import annotations

from typing import Any

import msgspec

from attnaudit import checks
from attnaudit.run.outcomes import Ledger
from attnaudit.run.run_folder import PlannedCase
from tests.units.checks.made import measured

PLANNED = [PlannedCase(test=f"t[{name}]", model="m", data="d", check=name) for name in ("one", "two", "three")]


def reasons(ledger: Ledger) -> dict[str, str]:
    return {case.check: case.reason for case in ledger.missing(PLANNED)}


def test_a_case_without_a_report_was_not_run() -> None:
    assert reasons(Ledger()) == {"one": "not run", "two": "not run", "three": "not run"}


def test_each_way_of_ending_without_a_verdict_has_its_reason() -> None:
    ledger = Ledger()
    ledger.add("t[one]", when="setup", outcome="skipped", reason="no data", record=None)
    ledger.add("t[two]", when="setup", outcome="failed", reason="boom", record=None)
    ledger.add("t[three]", when="???", outcome="failed", reason="worker 'gw0' crashed", record=None)
    assert reasons(ledger) == {
        "one": "skipped: no data",
        "two": "error in setup: boom",
        "three": "worker 'gw0' crashed",
    }
    assert not ledger.ran


def test_a_case_that_passed_without_judging_is_told_apart() -> None:
    ledger = Ledger()
    ledger.add("t[one]", when="call", outcome="passed", reason="", record=None)
    assert reasons(ledger)["one"].startswith("ended without a verdict")
    assert ledger.ran == {"t[one]"}


def record(verdict: str, *, severity: str = "gate") -> dict[str, Any]:
    made = checks.UniformFragility(**{"severity": severity, "at_least": 0.99 if verdict == "fail" else 0.0})  # type: ignore[arg-type]
    found = made.judge(measured())
    assert found.verdict == verdict
    return {**msgspec.to_builtins(found), "model": "m", "data": "d", "check": "one"}


def test_verdicts_that_nothing_came_of_are_told() -> None:
    heeded, passed_over, silent, expected = Ledger(), Ledger(), Ledger(), Ledger()
    heeded.add("t[one]", when="call", outcome="failed", reason="", record=record("fail"))
    passed_over.add("t[one]", when="call", outcome="passed", reason="", record=record("fail"))
    silent.add("t[one]", when="call", outcome="passed", reason="", record=None)
    expected.add("t[one]", when="call", outcome="skipped", reason="known", record=record("fail"))  # pytest's xfail
    found = [ledger.unenforced(PLANNED) for ledger in (heeded, passed_over, silent, expected)]
    assert found == [[], ["t[one]"], ["t[one]"], []]
    assert expected.ran == {"t[one]"}
    reported = Ledger()
    reported.add("t[one]", when="call", outcome="passed", reason="", record=record("fail", severity="report"))
    assert reported.unenforced(PLANNED) == []


def test_imperative_cases_have_no_verdict_to_miss() -> None:
    assert Ledger().missing([PlannedCase(test="t", model="m", data="d", check="")]) == []
