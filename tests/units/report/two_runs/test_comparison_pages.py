"""The page and the Markdown of a comparison say what the records hold, and escape every text."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnaudit.errors import ReportError
from attnaudit.records import BaselineComparison, CheckRecord, Requirement
from attnaudit.records.comparison_records import PairedValue
from attnaudit.report import build
from attnaudit.report.gate_lines import asked
from attnaudit.report.run_files import MeasuredInstance, MeasurementsFile
from attnaudit.report.two_runs.baseline_tables import baseline_tables
from attnaudit.report.two_runs.comparison_pages import write_comparison
from attnaudit.report.two_runs.comparison_view import assemble_comparison
from attnaudit.report.two_runs.difference_strip import difference_strip
from attnaudit.report.two_runs.paired_heatmaps import paired_map
from tests.units.report.drawn_shapes import rects
from tests.units.report.example_checks import check_record, interval
from tests.units.report.example_comparisons import (
    example_comparison,
    hostile_comparison,
    paired_value,
    realistic_comparison,
)
from tests.units.report.example_runs import realistic, run_record, write_run
from tests.units.report.explorer_runs import manifest_of, page_parts


def words_of(page: str) -> str:
    """Return the text of a page without its styles and tags."""
    body = page.partition("<body>")[2]
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def test_the_page_and_the_markdown_agree(tmp_path: Path) -> None:
    page = realistic_comparison(tmp_path)
    shown = words_of(page.read_text(encoding="utf-8"))
    summary = page.with_suffix(".md").read_text(encoding="utf-8").replace("\\", "")
    for text in (
        "No verdict changed. Accuracy is clearly worse (0.810 → 0.790). The candidate is clearly worse on 2 of 6 "
        "compared checks and clearly better on 2.",
        "Accuracy: 0.810 in the base run, 0.790 in the candidate run; difference −0.020 (−0.030 to −0.010, 95%",
        "2,026 instances from 812 sources were paired by id.",
        "4 instances that only one of the runs audited were left out.",
        "The predicted class differs on 61 instances (3%).",
        "mean total variation distance of 0.310. 0 means that both models give each token the same weight, and 1 that "
        "they attend to different tokens.",
        "Not comparable",
        "the runs audited different readings of attention",
        "there are only 8 independent sources",
        "Checks judged only in the base run: negative.",
        "The model negative was not compared.",
        "1 of 1 difference may let the candidate's policy pass a model that",
    ):
        assert text in shown, text
        assert text in summary, text


@pytest.mark.parametrize(
    ("count", "interval", "found"),
    [
        (1, (-0.01, 0.02), "not clearly better or worse on the only compared check."),
        (3, (-0.01, 0.02), "not clearly better or worse on any of the 3 compared checks."),
        (1, (0.01, 0.02), "clearly better on the only compared check."),
        (1, (-0.02, -0.01), "clearly worse on the only compared check."),
        (3, (0.01, 0.02), "clearly better on all 3 compared checks."),
    ],
)
def test_the_headline_says_how_many_differences_are_clear(
    tmp_path: Path, count: int, interval: tuple[float, float], found: str
) -> None:
    runs = realistic(tmp_path / "base"), realistic(tmp_path / "candidate")
    comparison = example_comparison(*runs, text="negative")
    (subject,) = comparison.subjects
    paired = paired_value("mean", *interval)
    checks = [msgspec.structs.replace(check, paired=paired) for check in subject.checks[:count]]
    subject = msgspec.structs.replace(subject, checks=checks)
    write_comparison(msgspec.structs.replace(comparison, subjects=[subject]), runs, tmp_path / "comparison.html")
    summary = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    assert f"The candidate is {found}" in summary


def test_the_headline_names_accuracy_and_the_gates_that_changed(tmp_path: Path) -> None:
    runs = realistic(tmp_path / "base"), realistic(tmp_path / "candidate")
    comparison = example_comparison(*runs, text="negative")
    (subject,) = comparison.subjects
    gate = next(check for check in subject.checks if check.base.blocks)
    passed = msgspec.structs.replace(gate.base, verdict="pass", blocks=False)
    for base, candidate, changed in (
        (gate.base, passed, "1 gate that blocked the base run no longer blocks"),
        (passed, gate.base, "1 gate that passed in the base run no longer passes"),
    ):
        one = msgspec.structs.replace(gate, base=base, candidate=candidate)
        changes = msgspec.structs.replace(subject, checks=[one], task=[paired_value("accuracy", -0.03, -0.01)])
        files = [MeasurementsFile(run / "measurements.parquet") for run in runs]
        view = assemble_comparison(msgspec.structs.replace(comparison, subjects=[changes]), *files)
        question = asked(gate.candidate.check, comparison.candidate) or gate.candidate.title
        assert view.headline.startswith(f"{changed}: “{question}”.")
        assert " Accuracy is clearly worse (0.810 → 0.790). The candidate is " in view.headline


def test_the_headline_names_the_gates_that_lost_their_verdict(tmp_path: Path) -> None:
    runs = realistic(tmp_path / "base"), realistic(tmp_path / "candidate")
    comparison = example_comparison(*runs, text="negative")
    (subject,) = comparison.subjects
    passed = next(check.base for check in subject.checks if check.is_gate and not check.base.blocks)
    others = [check for check in subject.checks if check.base.check != passed.check]
    subject = msgspec.structs.replace(subject, checks=others, only_base=[passed.check])
    candidate = msgspec.structs.replace(comparison.candidate, status="failed")
    files = [MeasurementsFile(run / "measurements.parquet") for run in runs]
    view = assemble_comparison(msgspec.structs.replace(comparison, subjects=[subject], candidate=candidate), *files)
    assert view.state == "fail"
    assert view.headline.startswith(
        f"1 gate that passed in the base run has no verdict in the candidate run: “{passed.title}”. No other "
        "verdict changed."
    )
    assert "The status of the candidate run is “failed”: 3 gates did not pass." in view.notes
    assert any(note.startswith("The status of the base run is “") for note in view.notes)


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    page = hostile_comparison(tmp_path)
    source = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in source
    scripts = [tag for tag in re.findall("<script[^>]*>", source) if 'type="text/plain"' not in tag]
    assert scripts == ["<script>"]  # that of the explorer
    assert "<img" not in source
    assert "<iframe" not in source
    assert source.count("<style>") == 1
    assert "\u202e" not in source
    assert "\x1b" not in source
    summary = page.with_suffix(".md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<", summary)
    assert "\n# heading" not in summary
    assert "https://" not in summary


def test_the_explorer_has_the_instances_under_both_models(tmp_path: Path) -> None:
    parts = page_parts(realistic_comparison(tmp_path).read_text(encoding="utf-8"))
    candidate, base = manifest_of(parts)["cases"]
    assert (candidate["model"], base["model"]) == ("demo (candidate)", "demo (base)")
    assert candidate["data"] == base["data"]
    assert candidate["n"] == base["n"] > 0
    assert candidate["checks"] == base["checks"] != []


@pytest.mark.parametrize(
    ("low", "high", "direction", "changed", "meaning"),
    [
        (0.1, 0.2, "at_least", 3, "better"),
        (0.1, 0.2, "at_most", 3, "worse"),
        (-0.2, -0.1, "at_most", 3, "better"),
        (-0.2, -0.1, "at_least", 3, "worse"),
        (0.1, 0.2, None, 3, "higher"),
        (-0.2, -0.1, None, 3, "lower"),
        (-0.1, 0.0, "at_least", 3, "unclear"),
        (0.0, 0.1, "at_least", 3, "unclear"),
        (-0.1, 0.1, "at_least", 0, "same"),
    ],
)
def test_a_difference_is_clear_only_if_its_whole_interval_is_on_one_side(
    low: float, high: float, direction: str | None, changed: int, meaning: str
) -> None:
    fields = {name: getattr(paired_value("x", low, high), name) for name in PairedValue.__struct_fields__}
    assert PairedValue(**fields | {"direction": direction, "changed": changed}).meaning == meaning


def test_the_better_side_of_a_strip_is_shaded() -> None:
    drawing = difference_strip(paired_value(), "fail")
    assert drawing is not None
    ((width, _),) = rects(drawing, "required")
    assert width == pytest.approx(96.0)
    (shaded,) = (shape for shape in drawing.shapes if shape.css == "required")
    (zero,) = (shape for shape in drawing.shapes if shape.css == "mark threshold")
    assert shaded.x == pytest.approx(zero.x)
    assert "interval −0.030 to −0.010" in drawing.label


def instance(tokens: str, weights: list[float]) -> MeasuredInstance:
    return MeasuredInstance(
        label="positive", predicted="positive", tokens=tokens.split(), columns={"attention": list(weights)}
    )


def test_both_rows_share_one_colour_scale() -> None:
    both = [instance("a good film", [0.1, 0.8, 0.1]), instance("a good film", [0.4, 0.4, 0.2])]
    view = paired_map("r1", "0.1 → 0.2", both, ["attention"])
    heats = {role: [cell.heat for cell in row.cells] for role, row in view.rows}
    assert heats == {"base": [0.1, 0.8, 0.1], "candidate": [0.4, 0.4, 0.2]}
    assert view.same_tokens


def test_a_text_from_right_to_left_is_shown_so() -> None:
    both = [instance("סרט טוב", [0.5, 0.5])] * 2
    assert paired_map("r1", "", both, ["attention"]).direction == "rtl"


def test_other_tokens_and_missing_instances_are_shown_separately() -> None:
    both = [instance("un likely", [0.5, 0.5]), instance("unlikely", [1.0])]
    view = paired_map("r1", "", both, ["attention"])
    assert not view.same_tokens
    assert [[cell.text for cell in row.cells] for _, row in view.rows] == [["un", "likely"], ["unlikely"]]
    missing = paired_map("r1", "", [None, both[1]], ["attention"])
    assert [row.note != "" for _, row in missing.rows] == [True, False]


def test_a_page_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    page = realistic_comparison(tmp_path)
    comparison = example_comparison(tmp_path / "base", tmp_path / "candidate", text="x")
    with pytest.raises(ReportError, match=r"comparison\.html.*--out"):
        write_comparison(comparison, (tmp_path / "base", tmp_path / "candidate"), page / "comparison.html")


def paired_gate_record(**changes: Any) -> CheckRecord:
    """Return the record of a gate that compares a model with the last release."""
    fields: dict[str, Any] = {
        "check": "pointing.logits.vs_last",
        "title": "Not worse than the last release: attention points",
        "value": -0.12,
        "interval": interval(-0.15, -0.09),
        "requirement": Requirement(direction="at_least", value=-0.05),
        "comparison": BaselineComparison(
            baseline_name="last",
            base="pointing.logits",
            candidate=0.7,
            reading="",
            measures_sha256="4b" * 32,
            baseline=0.82,
            baseline_sha256="5c" * 32,
            baseline_run="run-of-may",
            baseline_model="demo",
        ),
    }
    return check_record(**fields | changes)


def test_the_report_of_a_run_with_a_baseline_compares_the_two(tmp_path: Path) -> None:
    first = paired_gate_record()
    assert first.comparison is not None
    reason = "The model cannot be compared with the last release: the policy differs"
    absent = msgspec.structs.replace(first.comparison, baseline=None, not_comparable=reason)
    second = paired_gate_record(
        check="conicity.vs_last", value=None, interval=None, verdict="undefined", reason=reason, comparison=absent
    )
    (table,) = baseline_tables(run_record([first, second, check_record()]), MeasurementsFile(tmp_path), ())
    assert (table.name, table.subject) == ("last release", "demo on movie-reviews, compared with run run-of-may")
    worse, unknown = table.rows
    assert (worse.base, worse.candidate, worse.difference, worse.interval) == (
        "0.820",
        "0.700",
        "−0.120",
        "−0.150 to −0.090",
    )
    assert (worse.meaning.name, worse.role, [one.name for one in worse.verdicts]) == ("Worse", "margin 0.050", ["Fail"])
    assert (unknown.meaning.name, unknown.difference, unknown.reason) == ("Not comparable", "—", reason)
    assert baseline_tables(run_record([check_record()]), MeasurementsFile(tmp_path), ()) == ()


def test_the_section_is_in_the_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", run_record([paired_gate_record()]), [])
    build(folder)
    shown = words_of((folder / "report.html").read_text(encoding="utf-8"))
    assert "Compared with the last release demo on movie-reviews, compared with run run-of-may" in shown
    assert "95%: −0.150 to −0.090" in shown
