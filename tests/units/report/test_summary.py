"""summary.md as a comment on a pull request: the decision, the changes, the gates that did not pass, and the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnaudit.records import (
    BaselineComparison,
    CheckRecord,
    GateRecord,
    MissingCase,
    PolicyQuestion,
    PolicyRecord,
    Requirement,
)
from attnaudit.report import build
from attnaudit.report.markdown import FOLD, MOST_CHARACTERS, UNFOLD, summary
from tests.units.report.example_checks import check_record, interval, seven_checks
from tests.units.report.example_runs import HOSTILE, run_record, write_run

TITLE = "Attention agrees with the gradient"
PASSED = {"verdict": "pass", "blocks": False}


def compared(check: str, baseline: float, candidate: float, low: float, high: float, **changes: Any) -> CheckRecord:
    """Return the record of a gate on the difference between two releases, whose margin is 0.05."""
    baseline_name = "last" if check.endswith("last") else "pinned"
    return check_record(
        check=check,
        value=candidate - baseline,
        interval=interval(low, high),
        requirement=Requirement(direction="at_least", value=-0.05),
        comparison=BaselineComparison(
            baseline_name=baseline_name,
            base="b",
            candidate=candidate,
            reading="",
            measures_sha256="",
            baseline=baseline,
        ),
        **changes,
    )


DROP = compared("total_effect.vs_last", 0.101, 0.07, -0.052, -0.01)
GAIN = compared("effect_cosine.vs_pinned", 0.4, 0.42, 0.01, 0.03, **PASSED)


def parts(checks: list[CheckRecord]) -> tuple[str, str]:
    """Return what is shown at first, and what is folded."""
    shown, _, rest = summary(run_record(checks), report="reports/x/report.html").partition("\n".join(FOLD))
    folded, _, end = rest.partition(UNFOLD)
    assert end == "\n\nReport: reports/x/report.html\n"
    return shown, folded


def test_one_line_decides_and_the_gates_that_did_not_pass_follow() -> None:
    shown, folded = parts(seven_checks())
    lines = [line for line in shown.splitlines() if line]
    assert lines[0] == "## Attention audit"
    assert lines[1].startswith("**✗ Blocked. ")
    assert lines[1].endswith("This release is blocked.")
    blocking = [check for check in seven_checks() if check.blocks]
    assert len(lines) == 2 + len(blocking)
    assert lines[2].startswith(
        "* ✗ Attention agrees with the gradient (agreement.gradient.meister.inputs on demo, movie-reviews): mean "
        "Kendall's τ-b 0.213"
    )
    for check in seven_checks():
        assert f" | {check.title} ({check.check.replace('_', chr(92) + '_')}) | " in folded


def test_a_gate_has_the_question_of_the_policy_and_its_answer() -> None:
    check = check_record()
    question = PolicyQuestion(name="used", asks="Is attention used?", checks=[check.check])
    policy = PolicyRecord(file="p.toml", sha256="0", questions=[question])
    text = summary(run_record([check], declared_policy=policy), report="r")
    assert f"\n* ✗ Is attention used? No ({check.check} on demo, movie-reviews): mean Kendall's" in text


def test_gates_come_first_in_the_table_of_verdicts() -> None:
    informational = {"severity": "report", "verdict": "informational", "blocks": False, "requirement": None}
    names = {"b": informational, "z": {}, "a": informational, "y": PASSED}
    _, folded = parts([check_record(check=name, **changes) for name, changes in names.items()])
    rows = [line for line in folded.splitlines() if "(agreement" not in line and " | Attention agrees" in line]
    assert [row.partition("(")[2][0] for row in rows] == ["z", "y", "b", "a"]


def test_the_notes_of_checks_are_folded() -> None:
    shown, folded = parts([check_record(check="wide", note="the interval covers 50% of the possible values")])
    assert "\n* wide: the interval covers 50% of the possible values\n" in folded
    assert "the interval covers" not in shown


def test_a_run_that_passed_shows_one_line() -> None:
    shown, _ = parts([check_record(**PASSED)])
    assert [line for line in shown.splitlines() if line] == [
        "## Attention audit",
        "**✓ The only gate passed. This audit does not block the release.**",
    ]


def test_changes_since_earlier_releases_are_shown_before_the_rest() -> None:
    shown, folded = parts([check_record(**PASSED), DROP, GAIN])
    assert shown.index("This release is blocked.") < shown.index("Changes since earlier releases")
    rows = [line.partition(f" | {TITLE} ") for line in shown.splitlines()]
    assert ("| ✗ Fail", "(total\\_effect.vs\\_last) | 0.101 | 0.070 | −0.031 | −0.052 to −0.010 | ≥ −0.05 |") in [
        row[::2] for row in rows
    ]
    assert ("| ✓ Pass", "(effect\\_cosine.vs\\_pinned) | 0.400 | 0.420 | +0.020 | 0.010 to 0.030 | ≥ −0.05 |") in [
        row[::2] for row in rows
    ]
    assert "vs\\_last)" not in folded
    assert "Changes" not in summary(run_record([check_record()]), report="r")


def test_a_gate_that_is_not_comparable_shows_what_to_do() -> None:
    why = "There is no baseline. Run attnaudit baseline accept."
    nothing = msgspec.structs.replace(DROP.comparison, baseline=None, not_comparable=why)
    check = msgspec.structs.replace(DROP, verdict="undefined", value=None, interval=None, comparison=nothing)
    shown, _ = parts([check])
    assert f"| ∅ Undefined | {TITLE} (total\\_effect.vs\\_last) | — | 0.070 | — | — | ≥ −0.05 |" in shown
    assert f"(total\\_effect.vs\\_last on demo, movie-reviews): {why}" in shown


def test_a_gate_without_a_verdict_is_shown_and_an_excepted_one_is_folded() -> None:
    check = check_record()
    same = {"model": check.model, "data": check.data}
    gates = [
        GateRecord(**same, check=check.check, state="excepted", reason="attention is not shown"),
        GateRecord(**same, check="other", state="open", reason="its test was skipped"),
    ]
    text = summary(run_record([check], gates=gates), report="r")
    shown = text.partition(FOLD[0])[0]
    assert "* no verdict: other on demo, movie-reviews: its test was skipped" in shown
    assert check.check not in shown
    assert "attention is not shown" in text


def test_a_reason_of_several_gates_is_shown_once() -> None:
    same = {"model": "demo", "data": "films", "reason": "films.csv:3: no text"}
    gates = [GateRecord(**same, check=check, state="open") for check in ("one", "two")]
    missing = [MissingCase(**same, check=check, test=check) for check in ("one", "two", "three")]
    text = summary(msgspec.structs.replace(run_record([], gates=gates), missing=missing), report="r")
    assert "* no verdict: one on demo, films; two on demo, films: films.csv:3: no text" in text
    assert "* one, two, three on demo, films: the reason given above" in text
    assert text.count("films.csv:3") == 1


@pytest.mark.parametrize("name", ["check", HOSTILE])
def test_a_long_summary_fits_into_a_comment(name: str) -> None:
    checks = [check_record(check=f"{name}{i}") for i in range(400)]
    checks += [compared(f"{name}{i}.vs_last", 0.1, 0.07, -0.05, -0.01) for i in range(400)]
    text = summary(run_record(checks), report="reports/x/report.html")
    assert len(text) <= MOST_CHARACTERS < 65_536
    assert text.count("lines left out here. The report shows everything.)") == 2
    shown, folded = text.split(FOLD[0])
    assert "This release is blocked." in shown
    assert folded.rstrip().endswith(f"{UNFOLD}\n\nReport: reports/x/report.html")


def test_the_summary_and_the_report_describe_the_device_in_the_same_words(tmp_path: Path) -> None:
    run = run_record([check_record(**PASSED)])
    assert run.environment is not None
    assert "\n* device: cpu, 2 threads\n" in summary(run, report="r")
    on_gpu = msgspec.structs.replace(run.environment, device="cuda:0", threads=1, gpu="NVIDIA H200")
    changed = msgspec.structs.replace(run, environment=on_gpu)
    assert "\n* device: cuda:0 (NVIDIA H200), 1 thread\n" in summary(changed, report="r")
    build(write_run(tmp_path, changed, []))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<td>cuda:0 (NVIDIA H200), 1 thread</td>" in page
