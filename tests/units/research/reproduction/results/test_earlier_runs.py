"""A row that is measured again with the same settings keeps its earlier numbers, and each seed counts with the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from attnaudit.research.reproduction.papers import paper
from attnaudit.research.reproduction.results.earlier_runs import mean_of_runs, note_on_runs, with_earlier_runs
from attnaudit.research.reproduction.results.results_file import (
    MeasuredQuantity,
    MeasuredRow,
    Results,
    RoleScores,
    read_results,
    results_text,
)
from attnaudit.research.reproduction.table_layout import lay_out
from attnaudit.research.reproduction.verdicts_on_claims.claim_cases import values_by_seed
from tests.units.research.reproduction.results.test_results_file import HEADER, ROW

assert ROW.provenance is not None
MADE = ROW.provenance


def measured(
    values: Sequence[float | None], *, seeds: Sequence[int] = (0, 1, 2), day: int = 1, **changed: object
) -> MeasuredRow:
    """A row whose accuracies are its values."""
    made = msgspec.structs.replace(MADE, seeds=list(seeds), created=f"2026-01-{day:02}T00:00:00Z")
    row = msgspec.structs.replace(
        ROW,
        provenance=made,
        quantities={"mean": MeasuredQuantity(n=3, values=list(values))},
        scores={"model": RoleScores(accuracy=tuple(values))},
    )
    return msgspec.structs.replace(row, **changed)


def test_the_numbers_of_a_seed_are_averaged_over_its_runs() -> None:
    both = with_earlier_runs(measured([0.1, 0.2, None], day=2), measured([0.3, None, 0.5]))
    found = mean_of_runs(both)
    assert found.quantities["mean"].values == pytest.approx([0.2, 0.2, 0.5])
    assert found.scores["model"].accuracy == pytest.approx((0.2, 0.2, 0.5))
    third = mean_of_runs(with_earlier_runs(measured([0.8, 0.9, 1.0], day=3), both))
    assert third.quantities["mean"].values == pytest.approx([0.4, 0.55, 0.75])


def test_seeds_are_matched_by_their_number() -> None:
    both = with_earlier_runs(measured([0.1, 0.2, 0.3], seeds=(0, 1, 2), day=2), measured([0.5, 0.7], seeds=(2, 0)))
    assert mean_of_runs(both).quantities["mean"].values == pytest.approx([0.4, 0.2, 0.4])


def test_values_that_do_not_belong_to_seeds_are_matched_by_their_order() -> None:
    both = with_earlier_runs(measured([0.1, 0.3], seeds=range(9), day=2), measured([0.3, 0.7], seeds=range(9)))
    assert mean_of_runs(both).quantities["mean"].values == pytest.approx([0.2, 0.5])


def test_quantities_that_only_one_run_has_keep_their_values() -> None:
    quantities = {"mean": MeasuredQuantity(n=1, values=[0.1]), "class 1": MeasuredQuantity(n=1, values=[0.6])}
    new = measured([0.1], seeds=(0,), day=2, quantities=quantities)
    found = mean_of_runs(with_earlier_runs(new, measured([0.2], seeds=(0,))))
    assert found.quantities["mean"].values == pytest.approx([0.15])
    assert found.quantities["class 1"].values == [0.6]


@pytest.mark.parametrize(
    "before",
    [
        None,
        measured([0.3, 0.4, 0.5], setting="0" * 16),
        measured([0.1, 0.2, 0.3]),
        measured([0.1, 0.2], seeds=(0, 1)),
        MeasuredRow(table=ROW.table, name=ROW.name, missing="out of luck"),
    ],
    ids=["none", "other settings", "the same numbers", "fewer seeds", "not measured"],
)
def test_other_rows_are_replaced(before: MeasuredRow | None) -> None:
    row = measured([0.1, 0.2, 0.3], day=2)
    assert with_earlier_runs(row, before) == row
    assert mean_of_runs(row) == row
    assert note_on_runs(row) == ""


def test_a_run_that_gives_earlier_numbers_again_counts_once() -> None:
    first, second = measured([0.1, 0.2, 0.3]), measured([0.5, 0.6, 0.7], day=2)
    again = with_earlier_runs(measured([0.1, 0.2, 0.3], day=3), with_earlier_runs(second, first))
    assert [run.provenance.created[:10] for run in again.earlier] == ["2026-01-02"]
    assert mean_of_runs(again).quantities["mean"].values == pytest.approx([0.3, 0.4, 0.5])


def test_a_row_that_cannot_be_measured_again_keeps_its_numbers() -> None:
    before = with_earlier_runs(measured([0.1, 0.2, 0.3], day=2), measured([0.3, 0.4, 0.5]))
    failed = MeasuredRow(table=ROW.table, name=ROW.name, missing="out of memory")
    kept = with_earlier_runs(failed, before)
    assert kept == msgspec.structs.replace(before, notes=(*before.notes, "not measured again: out of memory"))
    assert with_earlier_runs(failed, kept) == kept


def test_a_number_that_became_undefined_and_other_scores_are_differences() -> None:
    both = with_earlier_runs(measured([None, 0.2], seeds=(0, 1), day=2), measured([0.3, 0.2], seeds=(0, 1)))
    assert mean_of_runs(both).quantities["mean"].values == pytest.approx([0.3, 0.2])
    worse = measured([0.3], seeds=(0,), day=2, scores={"model": RoleScores(accuracy=(0.5,))})
    assert mean_of_runs(with_earlier_runs(worse, measured([0.3], seeds=(0,)))).scores["model"].accuracy == (0.4,)


def test_runs_with_other_texts_are_kept_but_not_averaged() -> None:
    full, sample = measured([0.1, 0.2, 0.3]), measured([0.5, 0.6, 0.7], day=2)
    assert sample.provenance is not None
    sample = msgspec.structs.replace(sample, provenance=msgspec.structs.replace(sample.provenance, instances=7))
    second = with_earlier_runs(sample, full)
    assert mean_of_runs(second) == second
    assert note_on_runs(second) == ""
    third = with_earlier_runs(measured([0.3, 0.4, 0.5], day=3), second)
    assert mean_of_runs(third).quantities["mean"].values == pytest.approx([0.2, 0.3, 0.4])


def test_a_report_shows_the_means_and_says_so(tmp_path: Path) -> None:
    row = with_earlier_runs(measured([0.1, 0.2, 0.3], day=2), measured([0.3, 0.4, 0.5]))
    results = Results(header=HEADER, rows=(row,), figures=())
    path = tmp_path / "jain-wallace-made.2d.jsonl"
    path.write_text(results_text(results), encoding="utf-8")
    found = read_results(path)
    assert found == results
    report = lay_out(replace(results, rows=found.rows), paper("jain-wallace"))
    assert values_by_seed(report, ROW.table, ROW.name, "mean") == pytest.approx({0: 0.2, 1: 0.3, 2: 0.4})
    (shown,) = (one for table in report.tables for one in table.rows if one.lines)
    assert shown.notes[1] == (
        "trained and audited twice with the same settings and seeds (2026-01-01, 2026-01-02), and the numbers differ; "
        "each number is the mean over the runs that have it, and figures of texts show the last run"
    )


def test_a_row_that_lacks_seeds_does_not_replace_one_that_has_them() -> None:
    before = measured([0.1, 0.2, 0.3])
    fewer = measured([0.5], day=2)
    assert before.provenance is not None
    assert fewer.provenance is not None
    fewer = msgspec.structs.replace(fewer, provenance=msgspec.structs.replace(fewer.provenance, seeds=(0,)))
    kept = with_earlier_runs(fewer, before)
    assert kept.notes == (*before.notes, "measured again, but not with seeds 1, 2: not used")
    assert msgspec.structs.replace(kept, notes=before.notes) == before
    assert with_earlier_runs(fewer, kept) == kept
    assert with_earlier_runs(before, fewer).provenance == before.provenance


def test_a_run_with_seeds_that_are_no_longer_planned_is_kept_but_does_not_count() -> None:
    before = measured([0.1, 0.2, 0.3], seeds=(0, 1, 2))
    new = measured([0.4, 0.5], seeds=(5, 6), day=2)
    both = with_earlier_runs(new, before, planned=range(5, 7))
    assert both.provenance == new.provenance
    assert [run.provenance for run in both.earlier] == [before.provenance]
    assert mean_of_runs(both).quantities["mean"].values == [0.4, 0.5]
    assert note_on_runs(both) == "the run of 2026-01-01 had other seeds (0, 1, 2), which do not count"
    again = with_earlier_runs(measured([0.6, 0.5], seeds=(5, 6), day=3), both, planned=range(5, 7))
    assert mean_of_runs(again).quantities["mean"].values == [0.5, 0.5]
    assert note_on_runs(again).startswith("trained and audited twice")
    assert note_on_runs(again).endswith("the run of 2026-01-01 had other seeds (0, 1, 2), which do not count")
    kept = with_earlier_runs(new, before, planned=range(2, 7))
    assert kept.notes[-1] == "measured again, but not with seed 2: not used"
