"""Two runs are compared instance by instance, and only where they measured the same thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score

from attnaudit.checks import Agreement, Conicity, TokenProbability
from attnaudit.checks.base import Check
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import ReportError
from attnaudit.instances import Instance
from attnaudit.records import MeasureRecord, RunRecord
from attnaudit.records.comparison_records import ComparedSubject, Comparison
from attnaudit.run.comparison.compare_runs import compare_runs, joined_sources
from attnaudit.run.comparison.run_pairs import Names, why_not_comparable
from tests.consistent_runs import (
    CLASSES,
    FAILING,
    INCONCLUSIVE,
    INFORMATIONAL,
    PASSING,
    RELATIVE,
    ROWS,
    consistent_run,
    made_up_measurements,
    write_record,
)

Change = Callable[[Measurements], Measurements]
CHECKS = (PASSING, INFORMATIONAL)


def changed(change: Change) -> Callable[[str, str], Measurements]:
    return lambda model, data: change(made_up_measurements(model, data))


def more_conical(measurements: Measurements) -> Measurements:
    noise = 0.05 * np.random.default_rng(1).standard_normal(len(measurements))
    column = np.clip(measurements.scalars["conicity"] + 0.2 + noise, 0, 1)
    measurements.scalars["conicity"] = column
    return measurements


def written(folder: Path, name: str = "candidate", checks: Sequence[Check] = CHECKS, **options: Any) -> Path:
    consistent_run(folder / name, checks, **options)
    return folder / name


def rewritten(folder: Path, change: Callable[[RunRecord], dict[str, Any]], **options: Any) -> Path:
    """Write a run, and then its record with other fields."""
    run = consistent_run(folder / "candidate", CHECKS, **options)
    write_record(folder / "candidate", msgspec.structs.replace(run, **change(run)))
    return folder / "candidate"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("runs"), "base")


def compared(base: Path, folder: Path, change: Change) -> tuple[Comparison, ComparedSubject]:
    comparison = compare_runs(base, written(folder, measure=changed(change)))
    (subject,) = comparison.subjects
    return comparison, subject


def test_a_run_does_not_differ_from_itself(base: Path, tmp_path: Path) -> None:
    comparison, subject = compared(base, tmp_path, lambda same: same)
    assert {check.paired.meaning for check in subject.checks if check.paired} == {"same"}
    assert {one.meaning for one in subject.task} == {"same"}
    assert all(check.paired is not None and check.moved == [] for check in subject.checks)
    assert (subject.predictions_changed, subject.attention_distance, subject.attention_moved) == (0, 0.0, [])
    assert (subject.paired, subject.unpaired, subject.sources) == (ROWS, 0, ROWS)
    assert (comparison.policy_changes, comparison.left_out) == ([], [])
    assert comparison.notes == ["Both runs audited the same model, release (sha256 3f3f3f3f3f3f)."]
    pairs = [*subject.task, *(check.paired for check in subject.checks if check.paired)]
    assert {(one.difference, one.interval, one.detectable) for one in pairs} == {(0.0, None, None)}
    assert {(check.reason, check.warning) for check in subject.checks} == {("", "")}


def test_two_models_with_the_same_numbers_may_differ_on_other_instances(base: Path, tmp_path: Path) -> None:
    def other(run: RunRecord) -> dict[str, Any]:
        return {"models": [msgspec.structs.replace(run.models[0], sha256="4" * 64)]}

    (subject,) = compare_runs(base, rewritten(tmp_path, other)).subjects
    assert {one.meaning for one in subject.task} == {"same"}
    assert subject.task[0].interval is not None


def test_a_run_that_is_given_twice_is_one_run(base: Path) -> None:
    comparison = compare_runs(base, base)
    assert comparison.notes == [
        f"The base run and the candidate run are the same run, {comparison.base.run}, so every difference is 0. Give "
        "the folders of two runs to compare them."
    ]


def test_the_difference_and_its_interval_are_those_of_the_pairs(base: Path, tmp_path: Path) -> None:
    _, subject = compared(base, tmp_path, more_conical)
    check = next(one for one in subject.checks if one.candidate.check == PASSING.id)
    numbers = [one.scalars["conicity"] for one in (made_up_measurements(), more_conical(made_up_measurements()))]
    pairs = (numbers[1] - numbers[0])[~np.isnan(numbers[0])]
    paired = check.paired
    assert paired is not None
    assert paired.interval is not None
    assert (check.base.value, check.candidate.value) == (paired.base, paired.candidate)
    assert paired.difference == pytest.approx(pairs.mean(), abs=1e-12)
    expected = stats.ttest_1samp(pairs, 0).confidence_interval(0.95)
    assert (paired.interval.low, paired.interval.high) == pytest.approx(expected, abs=0.004)
    assert (paired.n, paired.changed, paired.meaning) == (len(pairs), len(pairs), "worse")  # the limit is an upper one
    moved = [one.candidate - one.base for one in check.moved]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] == pytest.approx(pairs.max())
    assert (check.base.verdict, check.candidate.verdict) == ("pass", "pass")


def test_compared_values_are_those_of_the_records(tmp_path: Path) -> None:
    def with_probability(*, shift: float) -> Callable[[str, str], Measurements]:
        def change(measurements: Measurements) -> Measurements:
            if shift:
                measurements = more_conical(measurements)
                measurements.predicted[:20] = 1 - measurements.predicted[:20]
            numbers = np.random.default_rng(2).uniform(0.2, 0.6, len(measurements)) + shift
            numbers[::7] = np.nan
            whole = np.full(len(measurements), 0.9)
            measurements.scalars |= {"token_probability": numbers, "token_probability.whole": whole}
            return measurements

        return changed(change)

    own, every = TokenProbability(at_most=0.9), TokenProbability(among="all", severity="report")
    checks = (PASSING, RELATIVE, FAILING, INCONCLUSIVE, INFORMATIONAL, own, every)
    base = written(tmp_path, "base", checks, measure=with_probability(shift=0.0))
    (subject,) = compare_runs(base, written(tmp_path, "new", checks, measure=with_probability(shift=0.1))).subjects
    assert len(subject.checks) == len(checks)
    for one in subject.checks:
        assert one.paired is not None
        assert (one.paired.base, one.paired.candidate) == (one.base.value, one.candidate.value)
        assert one.paired.n <= min(one.base.n_defined, one.candidate.n_defined)
    by_id = {one.candidate.check: one for one in subject.checks}
    assert by_id[own.id].base.value != by_id[every.id].base.value
    numbers = made_up_measurements()
    right = numbers.labels == numbers.predicted
    right[:20] = False  # the predictions of these rows differ, so only one of the models is right
    right[::7] = False
    paired = by_id[own.id].paired
    assert paired is not None
    assert paired.n == right.sum()
    assert {one.instance for one in by_id[own.id].moved} <= {f"r{i:03}" for i in np.flatnonzero(right)}


def test_rows_of_one_source_are_resampled_together(base: Path, tmp_path: Path) -> None:
    def in_pairs(measurements: Measurements) -> Measurements:
        measurements.sources = [f"source {i // 2}" for i in range(len(measurements))]
        return measurements

    _, subject = compared(base, tmp_path, in_pairs)
    assert subject.sources == ROWS // 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1))
def test_joined_sources_are_the_finest_that_both_groupings_refine(pairs: list[tuple[str, str]]) -> None:
    first, second = zip(*pairs, strict=True)
    joined = joined_sources(first, second)
    for own in (first, second):
        assert len({(a, b) for a, b in zip(own, joined, strict=True)}) == len(set(own))  # no group was split
    together = {frozenset({name}) for name in first}  # brute force: merge whatever shares a group of the second
    for name in set(second):
        touched = {group for group in together if group & {a for a, b in pairs if b == name}}
        together = (together - touched) | {frozenset().union(*touched)}
    assert len(set(joined)) == len(together)


def test_attention_and_predictions_are_compared(base: Path, tmp_path: Path) -> None:
    def turned(measurements: Measurements) -> Measurements:
        measurements.vectors["attention"] = [row[::-1].copy() for row in measurements.vectors["attention"]]
        measurements.predicted = 1 - measurements.predicted
        return measurements

    _, subject = compared(base, tmp_path, turned)
    rows = made_up_measurements().vectors["attention"]
    expected = [0.5 * np.abs(row - row[::-1]).sum() for row in rows]
    assert subject.attention_distance == pytest.approx(np.mean(expected))
    assert subject.attention_moved[0].distance == pytest.approx(max(expected))
    assert subject.predictions_changed == ROWS
    accuracy = next(one for one in subject.task if one.name == "accuracy")
    assert accuracy.base is not None
    assert accuracy.candidate == pytest.approx(1 - accuracy.base)
    f1 = next(one for one in subject.task if one.name == "macro F1")
    numbers = made_up_measurements()
    scores = [f1_score(numbers.labels, one, average="macro") for one in (numbers.predicted, 1 - numbers.predicted)]
    assert (f1.base, f1.candidate) == pytest.approx(tuple(scores))


def test_classes_in_another_order_are_the_same_classes(base: Path, tmp_path: Path) -> None:
    def swapped(measurements: Measurements) -> Measurements:
        measurements.classes = CLASSES[::-1]
        measurements.predicted, measurements.labels = 1 - measurements.predicted, 1 - measurements.labels
        return measurements

    def with_order(run: RunRecord) -> dict[str, Any]:
        return {"models": [msgspec.structs.replace(run.models[0], classes=list(CLASSES[::-1]))]}

    (subject,) = compare_runs(base, rewritten(tmp_path, with_order, measure=changed(swapped))).subjects
    assert subject.predictions_changed == 0
    assert subject.task[0].changed == 0


def test_only_common_instances_are_compared(base: Path, tmp_path: Path) -> None:
    def without_the_first(measurements: Measurements) -> Measurements:
        return measurements.only(np.arange(len(measurements)) >= 10)

    def smaller(run: RunRecord) -> dict[str, Any]:
        return {"data": [msgspec.structs.replace(one, audited=ROWS - 10) for one in run.data]}

    (subject,) = compare_runs(base, rewritten(tmp_path, smaller, measure=changed(without_the_first))).subjects
    assert (subject.paired, subject.unpaired) == (ROWS - 10, 10)
    assert all(check.paired is not None and check.paired.meaning == "same" for check in subject.checks)


def test_samples_without_a_common_instance_are_refused(base: Path, tmp_path: Path) -> None:
    def renamed(measurements: Measurements) -> Measurements:
        measurements.instances = [Instance(id=f"x{i}", text="", label=CLASSES[i % 2]) for i in range(ROWS)]
        return measurements

    with pytest.raises(ReportError, match="no instance in common"):
        compare_runs(base, written(tmp_path, measure=changed(renamed)))


def test_checks_of_only_one_run_and_changes_of_the_policy_are_listed(tmp_path: Path) -> None:
    base = written(tmp_path, "base", checks=(PASSING, FAILING))
    candidate = written(tmp_path, "candidate", checks=(Conicity(at_most=0.8), INFORMATIONAL))
    comparison = compare_runs(base, candidate)
    (subject,) = comparison.subjects
    assert [one.candidate.check for one in subject.checks] == [PASSING.id]
    assert (subject.only_base, subject.only_candidate) == ([FAILING.id], [INFORMATIONAL.id])
    assert comparison.policy_changes is not None
    kinds = {(change.subject, change.kind) for change in comparison.policy_changes}
    assert kinds >= {(PASSING.id, "stricter"), (FAILING.id, "disappeared"), (INFORMATIONAL.id, "appeared")}


def test_several_models_are_matched_by_name_or_as_the_user_says(tmp_path: Path) -> None:
    both = written(tmp_path, "both", models={"old": "1" * 64, "new": "2" * 64})
    one = written(tmp_path, "one", models={"new": "2" * 64})
    comparison = compare_runs(both, one)
    assert [(subject.base_model, subject.candidate_model) for subject in comparison.subjects] == [("new", "new")]
    assert "The model old was not compared" in comparison.left_out[0]
    (subject,) = compare_runs(both, both, Names(base="old", candidate="new")).subjects
    assert (subject.base_model, subject.candidate_model) == ("old", "new")
    with pytest.raises(ReportError, match=r"--base-model odl: the run both audited no such model.*'old'"):
        compare_runs(both, one, Names(base="odl"))


def with_data(run: RunRecord) -> dict[str, Any]:
    return {"data": [msgspec.structs.replace(one, sha256="9" * 64) for one in run.data]}


def with_classes(run: RunRecord) -> dict[str, Any]:
    return {"models": [msgspec.structs.replace(one, classes=[*CLASSES, "neutral"]) for one in run.models]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_data, "its rows changed"),
        (with_classes, "its classes are negative, positive, neutral instead of negative, positive"),
        (lambda run: {"unit": "words"}, "with the same --audit-unit"),
        (
            lambda run: {"models": [], "checks": [], "gates": [], "effective_policy": None, "status": "informational"},
            "measured nothing",
        ),
    ],
)
def test_runs_that_are_not_comparable_are_refused(
    base: Path, tmp_path: Path, change: Callable[[RunRecord], dict[str, Any]], words: str
) -> None:
    candidate = rewritten(tmp_path, change)
    with pytest.raises(ReportError, match=words):
        compare_runs(base, candidate)


@pytest.mark.parametrize("edited_is_base", [True, False])
def test_edited_runs_are_refused(base: Path, tmp_path: Path, edited_is_base: bool) -> None:
    edited = written(tmp_path, "edited")
    path = edited / "audit.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"attnaudit": "0.1.0"', '"attnaudit": "0.1.1"'), encoding="utf-8")
    with pytest.raises(
        ReportError, match=r"edited/audit\.json: this file or measurements\.parquet was edited or damaged after the run"
    ):
        compare_runs(*((edited, base) if edited_is_base else (base, edited)))


def test_other_readings_and_arguments_are_not_comparable(tmp_path: Path) -> None:
    run = consistent_run(tmp_path / "run", checks=(Agreement(at_least=0.1),))
    (record,) = run.checks
    assert why_not_comparable(record, record, (run, run)) == ""
    stricter = msgspec.structs.replace(record, parameters={**record.parameters, "at_least": 0.5, "severity": "report"})
    assert why_not_comparable(record, stricter, (run, run)) == ""
    other = msgspec.structs.replace(record, parameters={**record.parameters, "preset": "jain_wallace"})
    assert "the arguments of the check differ between the runs: preset" in why_not_comparable(record, other, (run, run))
    measured = MeasureRecord(
        model=record.model,
        data=record.data,
        needs=[],
        seconds=0.0,
        instances=ROWS,
        tokens=0,
        passes={},
        batch_size=1,
        device="cpu",
        worker="main",
        own_reading="cls@layer=-1,heads=mean",
    )
    transformer = msgspec.structs.replace(run, measured=[measured])
    reason = why_not_comparable(record, record, (run, transformer))
    assert reason.startswith("the runs audited different readings of attention: the pooled attention in the base run")
