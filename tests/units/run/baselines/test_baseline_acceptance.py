"""Which runs may be accepted as a baseline, what the baseline then contains, and edits of what a run compared."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from attnaudit.checks.base import Check
from attnaudit.checks.paired_gate import BaselineNumbers, paired_gate
from attnaudit.errors import ReportError
from attnaudit.records import BASELINE_FORMAT, BaselineComparison, RunRecord
from attnaudit.report.two_runs.baseline_text import baseline_notes
from attnaudit.run.baselines.baseline_acceptance import baseline_of, description, not_passed, refusals
from attnaudit.run.baselines.baseline_file import baseline_path, read_baseline, write_baseline
from attnaudit.run.judge_models import code_fingerprint
from attnaudit.run.verification.integrity import MEASUREMENTS, mismatches, read_unedited
from tests.consistent_runs import FAILING, NAME, PASSING, consistent_run, write_record

GATE = paired_gate(PASSING, margin=0.05, baseline_name="last", folder="kept")


def gate(baseline: float | None = None, *, code: str = "") -> Check:
    """Return the paired gate, compared with a baseline of the same numbers everywhere, or with none."""
    comparison = BaselineComparison(
        baseline_name="last",
        base=PASSING.id,
        candidate=None,
        reading="",
        measures_sha256=code or code_fingerprint(),
        baseline=baseline,
        baseline_sha256="" if baseline is None else "9" * 64,
        not_comparable="There is no baseline" if baseline is None else "",
    )
    numbers = None if baseline is None else np.full(60, baseline)
    return dataclasses.replace(GATE, baseline=BaselineNumbers(comparison=comparison, numbers=numbers, accept="`it`"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / NAME


def test_a_run_that_only_lacks_its_baseline_is_accepted(folder: Path) -> None:
    run = consistent_run(folder, (PASSING, gate()))
    assert run.status == "failed"
    assert (not_passed(run), refusals(run, version="1")) == ([], [])
    read_unedited(folder)
    accepted = baseline_of(run, folder, "last")
    (subject,) = accepted.subjects
    (check,) = subject.checks
    base, paired = run.checks
    assert (subject.model, subject.model_sha256, subject.data) == ("release", "3f" * 32, "reviews")
    assert check.check == PASSING.id
    assert check.value == pytest.approx(base.value)
    assert base.interval is not None
    assert (check.low, check.high) == (base.interval.low, base.interval.high)
    assert paired.comparison is not None
    assert check.value == pytest.approx(paired.comparison.candidate, rel=1e-12)
    assert list(subject.values) == sorted(subject.values)
    assert sum(numbers == [None] for numbers in subject.values.values()) == 2  # the instances with a single token
    assert baseline_notes(run) == [f"{GATE.id} (release on reviews): There is no baseline."]


def test_a_value_of_too_few_instances_is_not_accepted(folder: Path) -> None:
    """A gate on it would not pass, but an informational check does not block its run."""
    run = consistent_run(folder, (PASSING, gate()))
    base = msgspec.structs.replace(run.checks[0], verdict="undefined", severity="report", blocks=False)
    run = msgspec.structs.replace(run, checks=[base, *run.checks[1:]])
    with pytest.raises(ReportError, match="has too few instances with a value"):
        baseline_of(run, folder, "last")


def test_the_file_is_text_with_a_line_per_instance_and_is_read_back(folder: Path, tmp_path: Path) -> None:
    accepted = baseline_of(consistent_run(folder, (PASSING, gate())), folder, "pinned")
    path = write_baseline(tmp_path / "kept", accepted)
    assert path == baseline_path(tmp_path / "kept", "pinned")
    assert read_baseline(tmp_path / "kept", "pinned") == accepted
    text = path.read_text(encoding="ascii")
    assert json.loads(text)["subjects"][0]["values"]["r000"] == [None]
    assert sum(line.strip().startswith('"r0') for line in text.splitlines()) == 60
    path.write_bytes(text.replace("\n", "\r\n").encode())
    assert read_baseline(tmp_path / "kept", "pinned") == accepted
    assert read_baseline(tmp_path / "kept", "last") is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f'"format": {BASELINE_FORMAT}', '"format": 1', f"the format is 1, expected {BASELINE_FORMAT}"),
        ('"seed": 0', '"seed": 1', "edited or damaged"),
        ('"baseline_name": "last"', '"baseline_name": "pinned"', "contains the baseline 'pinned', expected 'last'"),
        ('"r000": [null]', '"r000": []', "edited or damaged"),
        ('"seed": 0', '"seeds": 0', "not a valid baseline"),
        ("{", "<<<<<<< HEAD\n{", "not a valid baseline"),
    ],
)
def test_a_file_that_was_edited_is_refused(folder: Path, old: str, new: str, message: str) -> None:
    path = write_baseline(folder, baseline_of(consistent_run(folder, (PASSING, gate())), folder, "last"))
    text = path.read_text(encoding="ascii")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="ascii")
    with pytest.raises(ReportError, match=r"last\.json: ") as refused:
        read_baseline(folder, "last")
    assert message in str(refused.value)
    assert "attnaudit baseline accept RUN --out" in str(refused.value)


def test_a_file_is_written_whole_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    accepted = baseline_of(consistent_run(folder, (PASSING, gate())), folder, "last")
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(ReportError, match="Choose another folder with --out"):
        write_baseline(tmp_path / "kept", accepted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"without": {PASSING.id: "not selected"}}, "The run is partial."),
        ({"files_left_out": {"test_other.py": "not collected"}}, "The run is partial."),
        ({"problem": "pytest ended early."}, "The run had a problem: pytest ended early."),
        ({"code": "0" * 64}, "The measuring code has changed since the run"),
        ({"baseline": 0.5, "status": "failed", "exit_status": 1}, "All gates passed, but the run failed."),
    ],
)
def test_other_runs_are_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    paired = gate(options.pop("baseline", None), code=options.pop("code", ""))
    run = consistent_run(folder, (PASSING, paired), **options)
    assert any(message in reason for reason in refusals(run, version="1"))


def test_a_run_without_paired_gates_is_refused(folder: Path) -> None:
    assert "compares nothing with a baseline" in refusals(consistent_run(folder), version="1")[0]


def test_gates_that_did_not_pass_are_listed_and_recorded(folder: Path) -> None:
    run = consistent_run(folder, (PASSING, FAILING, gate(0.4)))
    assert [one.split(":")[0] for one in not_passed(run)] == [
        f"{FAILING.id} for release on reviews",
        f"{GATE.id} for release on reviews",
    ]
    assert baseline_of(run, folder, "last").not_passed == not_passed(run)


def test_what_changes_is_shown(folder: Path) -> None:
    first = baseline_of(consistent_run(folder, (PASSING, gate())), folder, "last")
    renamed = {"model": "other"}
    other = msgspec.structs.replace(first, subjects=[msgspec.structs.replace(first.subjects[0], **renamed)], seed=3)
    (changed,) = first.subjects
    changed = msgspec.structs.replace(changed, model_sha256="0" * 64, data_sha256="1" * 64, values={"r000": [0.5]})
    third = msgspec.structs.replace(first, subjects=[changed])
    assert not any("was" in line or "changes" in line for line in description(first, None))
    assert any(line.endswith("was 0.500") or ", was " in line for line in description(first, first))
    lines = list(description(first, other))
    assert "other on reviews: removed" in lines
    assert "seed changes: 3 → 0" in lines
    lines = list(description(first, third))
    assert any("the model changes: sha256 000000000000 → 3f3f3f3f3f3f" in line for line in lines)
    assert any("the data change: 59 instances are added, 0 are removed" in line for line in lines)


COMPARED = 0.5


def edited(run: RunRecord, **changes: Any) -> RunRecord:
    records = [
        msgspec.structs.replace(one, comparison=one.comparison and msgspec.structs.replace(one.comparison, **changes))
        for one in run.checks
    ]
    return msgspec.structs.replace(run, checks=records)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": 0.2}, "its value is not the difference between the two values that it compared"),
        ({"candidate": 0.9}, "its value is not the difference between the two values that it compared"),
        ({"baseline_name": "pinned"}, "the baseline that it was compared with is not the one"),
        (
            {"not_comparable": "x"},
            "the value of the baseline, its hash and the reason why there is no value contradict each other",
        ),
        (
            {"baseline_sha256": ""},
            "the value of the baseline, its hash and the reason why there is no value contradict each other",
        ),
    ],
)
def test_an_edited_comparison_is_found_without_the_baseline(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    run = consistent_run(folder, (PASSING, gate(COMPARED)))
    assert mismatches(run, folder) == []
    again = write_record(folder, edited(run, **changes))
    assert any(message in one for one in mismatches(again, folder))


def test_both_values_cannot_be_shifted_together(folder: Path) -> None:
    run = consistent_run(folder, (PASSING, gate(COMPARED)))
    candidate = run.checks[1].comparison.candidate  # type: ignore[union-attr]
    again = write_record(folder, edited(run, baseline=COMPARED + 0.1, candidate=candidate + 0.1))  # type: ignore[operator]
    assert any(f"but {MEASUREMENTS} gives" in one for one in mismatches(again, folder))
