"""The outcome of every case follows from the reports of its test, and a verdict that blocks is final."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from attnaudit.records import CheckRecord, EarlierFailure
from attnaudit.run.outcomes import WITHOUT_VERDICT, Outcomes, Result
from attnaudit.run.plan import SelectedCase
from tests.units.report.example_checks import check_record

SELECTED = [SelectedCase(test=f"t[{name}]", model="m", data="d", check=name) for name in ("one", "two", "three")]


def reasons(outcomes: Outcomes) -> dict[str, str]:
    return {case.check: case.reason for case in outcomes.missing(SELECTED)}


def verdict(word: str, *, check: str = "one", **changes: Any) -> dict[str, Any]:
    """Return the record of a case as a report carries it. "fail" blocks, "pass" does not."""
    record = check_record(model="m", data="d", check=check, verdict=word, blocks=word == "fail", **changes)
    content: dict[str, Any] = msgspec.to_builtins(record)
    return content


def only_record(outcomes: Outcomes) -> CheckRecord:
    (record,) = outcomes.records.values()
    return record


def test_a_case_without_a_report_was_not_run() -> None:
    assert reasons(Outcomes()) == {"one": "not run", "two": "not run", "three": "not run"}


def test_each_way_to_end_without_a_verdict_has_its_reason() -> None:
    outcomes = Outcomes()
    outcomes.add("t[one]", when="setup", outcome="skipped", reason="skipped: no data", record=None)
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
    outcomes.add("t[one]", when="setup", outcome="passed", reason="", record=None)
    assert not outcomes.results
    outcomes.add("t[one]", when="call", outcome="passed", reason="", record=None)
    assert reasons(outcomes)["one"] == WITHOUT_VERDICT
    assert outcomes.ran == {"t[one]"}


def test_a_test_without_a_check_misses_no_verdict() -> None:
    assert Outcomes().missing([SelectedCase(test="t", model="m", data="d", check="")]) == []


@pytest.mark.parametrize("words", list(itertools.product(("pass", "fail"), repeat=3)))
def test_a_verdict_that_blocks_is_never_replaced(words: tuple[str, ...]) -> None:
    outcomes = Outcomes()
    for attempt, word in enumerate(words):
        record = verdict(word, value=attempt / 10)
        outcomes.add("t[one]", when="call", outcome="rerun", reason="", record=record)
    first = words.index("fail") if "fail" in words else 0
    assert (only_record(outcomes).verdict, only_record(outcomes).value) == (words[first], first / 10)


def test_the_verdict_of_another_test_of_the_same_gate_counts() -> None:
    outcomes = Outcomes()
    outcomes.add("first[one]", when="call", outcome="passed", reason="", record=verdict("pass"))
    outcomes.add("second[one]", when="call", outcome="failed", reason="too low", record=verdict("fail"))
    assert only_record(outcomes).blocks


def test_a_skip_after_the_verdict_keeps_the_verdict() -> None:
    outcomes = Outcomes()
    outcomes.add("t[one]", when="call", outcome="skipped", reason="expected to fail: known", record=verdict("fail"))
    assert outcomes.ran == {"t[one]"}
    assert only_record(outcomes).blocks
    assert outcomes.results["t[one]"] == Result("skipped", "expected to fail: known")


def test_a_skip_before_the_verdict_does_not_count_as_run() -> None:
    outcomes = Outcomes()
    outcomes.add("t[one]", when="call", outcome="skipped", reason="skipped: no data", record=None)
    assert not outcomes.ran


def test_an_error_in_teardown_replaces_the_outcome_of_the_call() -> None:
    outcomes = Outcomes()
    outcomes.add("t[one]", when="call", outcome="passed", reason="", record=verdict("pass"))
    outcomes.add("t[one]", when="teardown", outcome="failed", reason="boom", record=verdict("pass"))
    assert outcomes.results["t[one]"] == Result("failed", "error in teardown: boom")


def test_a_skip_in_teardown_does_not_hide_a_failure() -> None:
    outcomes = Outcomes()
    outcomes.add("t[one]", when="call", outcome="failed", reason="boom", record=None)
    outcomes.add("t[one]", when="teardown", outcome="skipped", reason="skipped: late", record=None)
    assert outcomes.results["t[one]"] == Result("failed", "boom")


@pytest.mark.parametrize("when", ["call", "setup", "teardown"])
def test_a_rerun_stays_in_the_record_as_an_earlier_failure(when: str) -> None:
    outcomes = Outcomes()
    outcomes.add("t[one]", when=when, outcome="rerun", reason="flaky", record=None)
    assert not outcomes.results
    assert not outcomes.ran
    outcomes.add("t[one]", when="call", outcome="passed", reason="", record=verdict("pass"))
    reason = "flaky" if when == "call" else f"error in {when}: flaky"
    assert outcomes.earlier_failures == [EarlierFailure(test="t[one]", reason=reason)]
    assert reasons(outcomes) == {"two": "not run", "three": "not run"}


def test_a_crash_and_what_is_run_again_after_it_both_stay_in_the_record() -> None:
    outcomes = Outcomes()
    outcomes.add("t[one]", when="???", outcome="failed", reason="worker 'gw0' crashed", record=None)
    assert outcomes.earlier_failures == []
    outcomes.add("t[one]", when="setup", outcome="passed", reason="", record=None)
    outcomes.add("t[one]", when="call", outcome="passed", reason="", record=verdict("pass"))
    assert outcomes.earlier_failures == [EarlierFailure(test="t[one]", reason="worker 'gw0' crashed")]
    assert outcomes.results["t[one]"].outcome == "passed"


def test_the_common_cause_of_all_failures_is_known() -> None:
    def after(*causes: str, other: bool = False, record: dict[str, Any] | None = None) -> str:
        outcomes = Outcomes(other_failures={"test_plain": "assert False"} if other else {})
        for number, cause in enumerate(causes):
            outcomes.add(f"t[{number}]", when="call", outcome="failed", reason="", record=None, cause=cause)
        if record is not None:
            outcomes.add("t[judged]", when="call", outcome="passed", reason="", record=record)
        return outcomes.only_cause()

    assert after("model") == after("model", "model") == "model"
    assert after("data") == "data"
    assert after() == after("") == after("model", "data") == after("model", "") == ""
    assert after("model", other=True) == ""
    assert after("model", record=verdict("pass")) == ""


def test_records_are_sorted_by_collection_and_those_of_no_selected_case_come_last() -> None:
    outcomes = Outcomes()
    for name in ("unknown", "three", "one"):
        outcomes.add(f"t[{name}]", when="call", outcome="passed", reason="", record=verdict("pass", check=name))
    assert [record.check for record in outcomes.sorted_records(SELECTED)] == ["one", "three", "unknown"]
