"""The plan of seeds: how it is read, and how reports are held to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from attnaudit.errors import ReportError
from attnaudit.research.reproduction.papers import PAPERS, paper
from attnaudit.research.reproduction.render_reports import read_reports
from attnaudit.research.reproduction.results.results_file import SUFFIX, read_results
from attnaudit.research.reproduction.results.seed_counts import RowSeeds, planned_seeds
from attnaudit.research.reproduction.results.seed_plan import SEED_PLAN, PlannedSeeds, SeedPlan, read_seed_plan

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "reports" / "papers"
PLAN = """
[[planned]]
reports = "wen*"
rows = "imdb/*"
seeds = 2
reason = "a run takes an hour"

[[planned]]
reports = "*"
tables = "gumbel"
rows = "sst/*"
first = 3
seeds = 2
reason = "new seeds"

[[planned]]
reports = "*"
rows = "*"
seeds = 5
reason = "a run takes minutes"
"""


def test_the_first_entry_that_matches_counts(tmp_path: Path) -> None:
    assert read_seed_plan(tmp_path) is None
    (tmp_path / SEED_PLAN).write_text(PLAN, encoding="utf-8")
    plan = read_seed_plan(tmp_path)
    assert plan is not None
    assert plan.seeds("wen-glove", "ranking", "imdb/bilstm/additive") == range(2)
    assert plan.seeds("wen", "ranking", "sst/bilstm/additive") == range(5)
    assert plan.seeds("meister", "influence", "imdb/bilstm/additive") == range(5)
    assert plan.seeds("wen", "gumbel", "sst/bilstm/additive") == range(3, 5)
    (tmp_path / SEED_PLAN).write_text(PLAN.partition("\n\n")[0], encoding="utf-8")
    first = read_seed_plan(tmp_path)
    assert first is not None
    assert first.seeds("meister", "influence", "imdb/bilstm/additive") is None
    assert first.sha256 != plan.sha256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("planned = 3", "not a plan of seeds"),
        ("[[planned]\n", "not a plan of seeds"),
        ('[[planned]]\nreports = "*"\nrows = "*"\nseeds = 3', "not a plan of seeds"),
        ('[[planned]]\nreports = "*"\nrows = "*"\nseeds = 0\nreason = ""', "at least 1 seed"),
        ('[[planned]]\nreports = "*"\nrows = "*"\nseeds = 3\nfirst = -1\nreason = ""', "no first seed below 0"),
    ],
)
def test_an_invalid_plan_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / SEED_PLAN).write_text(text, encoding="utf-8")
    with pytest.raises(ReportError, match=message):
        read_seed_plan(tmp_path)


def test_every_committed_row_has_a_plan() -> None:
    plan = read_seed_plan(FOLDER)
    assert plan is not None
    for path in FOLDER.glob(f"*{SUFFIX}"):
        found = read_results(path)
        assert found is not None
        assert all(plan.seeds(path.stem, row.table, row.name) for row in found.rows)


def test_later_seeds_are_left_out_and_missing_seeds_keep_a_row_from_deciding(tmp_path: Path) -> None:
    name = f"tutek-snajder{SUFFIX}"
    (tmp_path / name).write_text((FOLDER / name).read_text(encoding="utf-8"), encoding="utf-8")
    everything = read_reports(tmp_path)["tutek-snajder"]
    (tmp_path / SEED_PLAN).write_text(
        '[[planned]]\nreports = "*"\nrows = "*"\nseeds = 2\nreason = ""', encoding="utf-8"
    )
    planned = read_reports(tmp_path)["tutek-snajder"]
    for before, after in zip(everything.tables, planned.tables, strict=True):
        for first, second in zip(before.rows, after.rows, strict=True):
            if first.provenance is None or second.provenance is None:
                assert first == second
                continue
            assert second.provenance.seeds == first.provenance.seeds[:2]
            assert [line.values for line in second.lines] == [line.values[:2] for line in first.lines]
            added = len(first.provenance.seeds) - 2
            assert any("added after the plan" in note for note in second.notes) is (added > 0)
            assert ("1 of 2 planned seeds" in second.excluded) is (added < 0)


@pytest.mark.parametrize("first", [1, 2, 100])
def test_a_run_with_seeds_before_the_planned_ones_does_not_count(tmp_path: Path, first: int) -> None:
    name = f"tutek-snajder{SUFFIX}"
    (tmp_path / name).write_text((FOLDER / name).read_text(encoding="utf-8"), encoding="utf-8")
    everything = read_reports(tmp_path)["tutek-snajder"]
    (tmp_path / SEED_PLAN).write_text(
        f'[[planned]]\nreports = "*"\nrows = "*"\nseeds = 2\nfirst = {first}\nreason = ""', encoding="utf-8"
    )
    planned = read_reports(tmp_path)["tutek-snajder"]
    for before, after in zip(everything.tables, planned.tables, strict=True):
        for one, other in zip(before.rows, after.rows, strict=True):
            if one.provenance is None:
                assert one == other
                continue
            assert one.provenance.seeds[0] == 0
            assert (other.lines, other.provenance) == ([], None)
            day = one.provenance.created[:10]
            assert other.missing == (
                f"the planned seeds have not been run yet; the run of {day} with other seeds does not count"
            )
        assert after.figures == []
    assert any(table.figures for table in everything.tables)


def test_planning_new_seeds_changes_no_verdict_before_they_have_been_run(tmp_path: Path) -> None:
    name = f"tutek-snajder{SUFFIX}"
    (tmp_path / name).write_text((FOLDER / name).read_text(encoding="utf-8"), encoding="utf-8")
    old = '[[planned]]\nreports = "*"\nrows = "*"\nseeds = 2\nreason = ""\n'
    new = '[[planned]]\nreports = "*"\nrows = "sst/*"\nseeds = 12\nfirst = 5\nreason = ""\n'
    (tmp_path / SEED_PLAN).write_text(old, encoding="utf-8")
    before = read_reports(tmp_path)["tutek-snajder"]
    (tmp_path / SEED_PLAN).write_text(new + old, encoding="utf-8")
    after = read_reports(tmp_path)["tutek-snajder"]
    assert (after.findings, after.goals) == (before.findings, before.goals)
    note = "new seeds are planned (5 to 16); seeds 0 to 1 count until they have been run"
    for one, other in zip(before.tables, after.tables, strict=True):
        assert other.figures == one.figures
        for first, second in zip(one.rows, other.rows, strict=True):
            assert second.lines == first.lines
            pending = [text for text in second.notes if text.startswith(note)]
            assert len(pending) == (second.corpus == "sst" and bool(second.lines))


def test_new_seeds_count_as_soon_as_they_have_been_run() -> None:
    results = read_results(FOLDER / f"tutek-snajder{SUFFIX}")
    assert results is not None
    row = next(row for row in results.rows if row.name == "sst/base/additive" and row.provenance is not None)
    assert row.provenance is not None
    seeds = [seed + 5 for seed in row.provenance.seeds]
    run = msgspec.structs.replace(row, provenance=msgspec.structs.replace(row.provenance, seeds=seeds))
    plan = SeedPlan(
        path=Path(SEED_PLAN),
        sha256="",
        planned=tuple(
            PlannedSeeds(reports="*", rows="*", seeds=len(seeds), first=first, reason="") for first in (5, 0)
        ),
    )
    declared = paper("tutek-snajder")
    for one, expected in (
        (row, RowSeeds(range(len(seeds)), range(5, 5 + len(seeds)))),
        (run, RowSeeds(range(5, 5 + len(seeds)))),
    ):
        found = planned_seeds(replace(results, rows=(one,)), declared, declared.corpora, plan, "tutek-snajder")
        assert found == {(row.table, row.name): expected}


def test_seeds_of_a_row_that_compares_seeds_are_not_planned() -> None:
    assert "wiegreffe-pinter" in PAPERS
    assert any(row.once for table in paper("wiegreffe-pinter").tables for row in table.rows(("sst",)))
    results = read_results(FOLDER / f"wiegreffe-pinter{SUFFIX}")
    assert results is not None
    declared = paper("wiegreffe-pinter")
    planned = planned_seeds(results, declared, declared.corpora, read_seed_plan(FOLDER), "wiegreffe-pinter")
    assert "seeds" in {row.table for row in results.rows}
    assert {table for table, _ in planned} == {row.table for row in results.rows} - {"seeds"}
