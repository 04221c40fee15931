"""The words of the report: headlines, names of columns, and text that Markdown does not interpret."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from attnaudit.formatting import visible, without_commands
from attnaudit.records import GateRecord, Interval, MissingCase, Planning
from attnaudit.records.check_records import CONFIDENCE_SEQUENCE
from attnaudit.report import build, wording
from attnaudit.report.gate_text import gate_notes
from attnaudit.report.markdown import FOLD, UNFOLD, escape, summary
from tests.units.report.example_checks import check_record, seven_checks
from tests.units.report.example_runs import HOSTILE, run_record, write_run


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("attention", "Attention"),
        ("gradient.jain_wallace.hidden", "Gradient × input, attention held fixed, at the hidden states"),
        ("leave_one_out.inputs", "Leave-one-out, at the inputs"),
        ("leave_one_out.inputs.change", "Leave-one-out, at the inputs, change of output (TVD)"),
        ("adversarial.0.05.attention", "Adversarial attention (TVD ≤ 0.05)"),
        ("attended_tokens.kept", "Kept: 80% of the attention"),
        ("my.own", "my.own"),
    ],
)
def test_columns_are_named_in_words(name: str, words: str) -> None:
    assert wording.column_name(name) == words


MISSING = [MissingCase(test="t", model="demo", data="d", check="c", reason="crashed")]
PASSED = check_record(verdict="pass", blocks=False)
INFORMATIONAL = check_record(verdict="informational", severity="report", requirement=None, blocks=False)


@pytest.mark.parametrize(
    ("checks", "missing", "headline"),
    [
        ([check_record(), PASSED], [], "1 of 2 gates failed. This release is blocked."),
        (
            seven_checks(),
            [],
            "3 of 6 gates did not pass: 1 failed, 1 is inconclusive and 1 is undefined. This release is blocked.",
        ),
        ([PASSED], [], "The only gate passed. This audit does not block the release."),
        ([PASSED, PASSED], [], "Both gates passed. This audit does not block the release."),
        ([PASSED, PASSED, PASSED], [], "All 3 gates passed. This audit does not block the release."),
        ([check_record()], [], "The only gate failed. This release is blocked."),
        (
            [PASSED, check_record(verdict="undefined")],
            [],
            "1 of 2 gates is undefined. This release is blocked.",
        ),
        ([PASSED], MISSING, "1 gate has no verdict. This release is blocked."),
        ([check_record()], MISSING, "1 of 2 gates failed. 1 gate has no verdict. This release is blocked."),
        ([], [], "No gate was declared, so nothing was decided. No check ran."),
        ([], MISSING * 2, "2 gates have no verdict. This release is blocked."),
        ([INFORMATIONAL], [], "No gate was declared, so nothing was decided. 1 informational check ran."),
        (
            [PASSED, check_record(verdict="inconclusive", inconclusive="warn", blocks=False)],
            [],
            "No gate blocks this release: 1 passed and 1 is inconclusive, which the settings of this gate allow.",
        ),
    ],
)
def test_the_headline_says_what_the_run_decided(checks: list, missing: list, headline: str) -> None:  # type: ignore[type-arg]
    assert wording.outcome(run_record(checks, missing=missing)).headline == headline


def test_a_sample_that_passed_is_called_one() -> None:
    """Also if the code that reads the data left rows out, and not for gates that confidence sequences judged."""
    run = run_record([PASSED, INFORMATIONAL], exit_status=0)
    for changes in ({"audited": 300, "sample_seed": 7}, {"audited": 300}):
        (data,) = run.data
        sampled = msgspec.structs.replace(run, data=[msgspec.structs.replace(data, **changes)])
        outcome = wording.outcome(sampled)
        assert outcome.headline == (
            "The only gate passed. Only a sample was audited: 300 of 2,026 rows of movie-reviews."
        )
        assert "Audit all rows before the release." in outcome.notes[0]
        interval = Interval(low=0.4, high=0.5, confidence=0.95, method=CONFIDENCE_SEQUENCE)
        sequential = msgspec.structs.replace(sampled, checks=[msgspec.structs.replace(PASSED, interval=interval)])
        assert wording.outcome(sequential).headline == "The only gate passed. This audit does not block the release."


def test_only_gates_are_counted_by_verdict() -> None:
    undefined = check_record(verdict="undefined", severity="report", requirement=None, blocks=False)
    inconclusive = check_record(verdict="inconclusive")
    counts = wording.outcome(run_record([inconclusive, undefined, INFORMATIONAL])).counts
    assert counts == (("inconclusive", "inconclusive", 1), ("informational", "informational", 2))
    gate = GateRecord(model="demo", data="movie-reviews", check=inconclusive.check, state="failed", reason="r")
    assert gate_notes(run_record([inconclusive], gates=[gate]))[0] == "gates: 1 inconclusive"


@pytest.mark.parametrize(
    ("exit_status", "why"), [(6, "A model could not be loaded or audited"), (7, "The data could not be read")]
)
def test_the_headline_says_that_nothing_could_be_audited(exit_status: int, why: str) -> None:
    run = run_record([], missing=MISSING, exit_status=exit_status)
    assert wording.outcome(run).headline == f"{why}, so no gate was judged. This release is blocked."


def test_a_partial_run_does_not_pass() -> None:
    of_three = [check_record(verdict="pass", blocks=False, gated=3, check=name) for name in ("one", "other")]
    gates = [GateRecord(model="demo", data="d", check=name, state="passed") for name in ("one", "other")]
    left_out = GateRecord(model="demo", data="d", check="c", state="not selected", reason="left out by -k x")
    outcome = wording.outcome(run_record(of_three, gates=[*gates, left_out]))
    assert outcome.state == "inconclusive"
    assert outcome.headline == (
        "Partial run: 2 of 3 gates ran. Both gates that ran passed. The other gate was not selected. "
        "This run therefore cannot show that the model passes."
    )


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (["test_a.py"], "1 test file was left out, so its gates are unknown."),
        (["test_a.py", "test_b.py"], "2 test files were left out, so their gates are unknown."),
    ],
)
def test_a_run_without_all_test_files_does_not_pass(files: list[str], sentence: str) -> None:
    passed = check_record(verdict="pass", blocks=False)
    run = run_record([passed], status="partial", files_left_out=dict.fromkeys(files, "not collected"))
    assert wording.outcome(run).headline == (
        f"Partial run. The only gate that ran passed. {sentence} This run therefore cannot show that the model passes."
    )
    assert f"test file left out, so its gates are unknown: {files[-1]}: not collected" in gate_notes(run)


def test_an_exception_does_not_block_the_release() -> None:
    failed = check_record(verdict="fail", blocks=True)
    excepted = GateRecord(model=failed.model, data=failed.data, check=failed.check, state="excepted", reason="known")
    outcome = wording.outcome(run_record([failed], gates=[excepted]))
    assert outcome.state == "pass"
    assert outcome.headline == "No gate blocks this release: 1 is excepted by the policy."


def test_a_run_that_failed_for_another_reason_than_a_gate_says_so() -> None:
    outcome = wording.outcome(run_record([PASSED], exit_status=1))
    assert outcome.state == "fail"
    assert outcome.headline == "The run failed for a reason other than a gate. This release is blocked."


def test_the_summary_shows_why_an_audit_did_not_start() -> None:
    run = run_record([], exit_status=4, problem="--data nope.csv: there is no such file.")
    shown, _, _ = summary(run, report="report.html").partition(FOLD[0])
    assert "\\-\\-data nope.csv: there is no such file." in shown or "--data nope.csv: there is no such file." in shown


def test_a_run_whose_process_ended_decided_nothing() -> None:
    assert wording.outcome(run_record([PASSED], status="running")).headline == (
        "The process of this run did not end. Nothing was decided."
    )


def rendered(markdown: str) -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)  # type: ignore[return-value]


@given(st.text(max_size=60) | st.text(alphabet="|`*_~[]()<>&\\#!$\n -:@1.", max_size=40))
def test_markdown_does_not_interpret_the_text_of_a_cell(text: str) -> None:
    tokens = rendered(f"| a | b |\n|---|---|\n| x{escape(text)}x | end |\n")
    inline = [t for t in tokens if t.type == "inline"]  # type: ignore[attr-defined]
    assert len(inline) == 4
    cell, end = inline[2:]
    assert {child.type for child in cell.children} <= {"text", "text_special"}
    content = "".join(child.content for child in cell.children)
    assert content.replace("\u200b", "") == f"x{plain(text)}x"
    assert end.content == "end"


@given(st.text(min_size=1, max_size=60) | st.text(alphabet="-+=>#*_`:~|<! 1.)[]\n", max_size=12))
def test_a_line_of_escaped_text_is_one_paragraph_without_commands(text: str) -> None:
    escaped = escape(text)
    assert "\n" not in escaped
    assert without_commands(escaped) == escaped
    tokens = rendered(f"above\n\n{escaped}\n\nbelow\n")
    kinds = [token.type for token in tokens]  # type: ignore[attr-defined]
    assert set(kinds) == {"paragraph_open", "inline", "paragraph_close"}
    assert kinds.count("inline") == 2 + bool(escaped)


@pytest.mark.parametrize("text", ["@someone", "a@b.com", "#12", "GH-12", "https://x.y", ":bomb:", ":+1:"])
def test_github_finds_nothing_to_link_in_the_rendered_text(text: str) -> None:
    """GitHub looks for names, issues and emoji in the text after rendering, so only a character in between helps."""
    (paragraph,) = [token for token in rendered(escape(text)) if token.type == "inline"]  # type: ignore[attr-defined]
    shown = "".join(child.content for child in paragraph.children)
    assert shown.replace("\u200b", "") == text
    assert text not in shown


def plain(text: str) -> str:
    return " ".join(visible(" ".join(text.split())).split())


def test_the_summary_of_a_hostile_run_is_one_table_and_no_markup() -> None:
    check = check_record(check=HOSTILE, model=HOSTILE, data=HOSTILE)
    missing = [MissingCase(test=HOSTILE, model=HOSTILE, data=HOSTILE, check=HOSTILE, reason=HOSTILE)]
    tokens = rendered(summary(run_record([check], missing=missing), report="reports/a|b/report.html"))
    kinds = {t.type for t in tokens} | {c.type for t in tokens for c in t.children or ()}  # type: ignore[attr-defined]
    assert not kinds & {"html_inline", "link_open", "image", "code_inline", "fence"}
    html = "".join(t.content for t in tokens if t.type == "html_block")  # type: ignore[attr-defined]
    assert html.splitlines() == [*FOLD, UNFOLD]
    assert sum(t.type == "heading_open" for t in tokens) == 1  # type: ignore[attr-defined]
    assert sum(t.type == "tr_open" for t in tokens) == 2  # type: ignore[attr-defined]


def test_the_summary_names_models_only_where_there_are_several() -> None:
    one = summary(run_record(seven_checks()), report="reports/x/report.html")
    two = summary(run_record(seven_checks() + seven_checks("other")), report="reports/x/report.html")
    assert "| Model |" not in one
    assert "| Model | Data |" in two
    assert "Report: reports/x/report.html" in one
    assert (
        "✗ Fail | Attention agrees with the gradient (agreement.gradient.meister.inputs) | 0.213 | 0.199 to 0.226 | "
        "≥ 0.30 | floor 0.001, gradient vs. leave-one-out 0.610 | 2,026 | 45 | gate, blocks the release" in one
    )


PLANNING = Planning(instances=790, low=280, high=None, power=0.8)
AMONG_TWENTY = {
    "verdict": "inconclusive",
    "gated": 20,
    "fail_interval": Interval(low=0.19, high=0.31, confidence=0.9975, method="m"),
    "planning": PLANNING,
    "n": 120,
    "n_defined": 120,
}


def test_the_summary_says_what_would_decide_an_inconclusive_case() -> None:
    assert "About 790 instances would probably decide it" in summary(
        run_record([check_record(**AMONG_TWENTY)]), report="r"
    )


def test_the_summary_calls_a_check_without_a_threshold_informational() -> None:
    assert "• Informational" in summary(run_record([INFORMATIONAL]), report="r")


def test_the_page_shows_the_interval_for_a_failure_and_the_plan(tmp_path: Path) -> None:
    folder = write_run(tmp_path, run_record([check_record(**AMONG_TWENTY)]), [])
    build(folder)
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "About 790 instances would probably decide it" in html
    assert "0.190 to 0.310 (99.75%, because the policy has 20 gates)" in html


def test_no_address_in_a_markdown_cell_becomes_a_link() -> None:
    assert "www." not in escape("see www.example.org and WWW.example.org").lower()
