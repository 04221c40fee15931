"""A complete reproduction of a small synthetic paper."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from attnaudit.checks import UniformFragility
from attnaudit.errors import AuditError
from attnaudit.models.word_vectors import Vectors
from attnaudit.research.reproduction import prepare_corpora, reproduce
from attnaudit.research.reproduction.corpora import Corpus
from attnaudit.research.reproduction.pages import paper_pages
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.paper_tables import (
    MODEL,
    Audit,
    Paper,
    Quantity,
    RowPlan,
    TablePlan,
    accuracy,
    value_of,
)
from attnaudit.research.reproduction.prepare_corpora import Prepared
from attnaudit.research.reproduction.reproduce_options import ReproductionOptions
from attnaudit.research.reproduction.results.results_file import exclusive
from attnaudit.research.reproduction.results.seed_plan import SEED_PLAN
from tests.units.research.reproduction.small_corpus import data, plan

UNIFORM = UniformFragility(severity="report")


def rows(corpora: Sequence[str]) -> list[RowPlan]:
    return [
        RowPlan(
            name=f"movie-reviews/{name}",
            title=name,
            corpus="movie-reviews",
            models={MODEL: plan(epochs=epochs)},
            paper={"uniform": 0.1},
        )
        for name, epochs in (("one", 2), ("two", 3))
    ] + [RowPlan(name="movie-reviews/never", title="never", corpus="movie-reviews", unavailable="No such model.")]


def table(name: str) -> TablePlan:
    return TablePlan(
        name=name,
        title=name,
        source="nowhere",
        rows=rows,
        quantities=(
            Quantity(name="accuracy", words="accuracy", read=accuracy),
            Quantity(name="uniform", words="uniform", read=value_of(UNIFORM.id)),
            Quantity(name="third", words="{} only", read=accuracy, of_class=2),
        ),
        audits=(Audit(checks=(UNIFORM,)),),
        deviations=("Provenance up.",),
    )


PAPER = Paper(name="synthetic", title="A paper", citation="", corpora=(), tables=(table("first"), table("second")))


@pytest.fixture(autouse=True)
def small_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(one: Corpus, root: Path | None, out: Path, *, quick: bool = False) -> Prepared:
        return data(out / one.name)

    monkeypatch.setattr(reproduce, "prepare", prepare)


@contextmanager
def silent(doing: str) -> Iterator[Callable[[int, int, str], None]]:
    yield lambda done, total, name: None


def run(
    tmp_path: Path,
    *,
    only: Sequence[str] = (),
    tables: Sequence[str] = (),
    seeds: int | None = 2,
    progress_bar: reproduce.ProgressBar = silent,
    vectors: Vectors | None = None,
) -> Reproduction:
    options = ReproductionOptions(
        paper=PAPER,
        out=tmp_path,
        command=f"only {' '.join(only)}",
        only=only,
        tables=tables,
        seeds=seeds,
        vectors=vectors,
    )
    report, _, _ = reproduce.reproduce(options, progress_bar=progress_bar)
    return report


def test_a_row_is_the_mean_and_the_deviation_over_seeds(tmp_path: Path) -> None:
    found = run(tmp_path, only=("*/one",), tables=("first",))
    row = found.tables[0].rows[0]
    assert [one.quantity for one in row.lines] == ["accuracy", "uniform"]  # there is no third class
    for one in row.lines:
        known = [v for v in one.values if v is not None]
        assert len(known) == 2
        assert one.ours == pytest.approx(sum(known) / 2)
        assert one.std == pytest.approx(abs(known[0] - known[1]) / 2**0.5)
    assert row.lines[1].difference == pytest.approx(row.lines[1].ours - 0.1)
    assert row.provenance is not None
    assert row.provenance.seeds == [0, 1]


def test_rows_that_are_not_selected_are_not_run_and_earlier_ones_are_kept(tmp_path: Path) -> None:
    first = run(tmp_path, only=("*/one",), tables=("first",))
    assert [row.missing for row in first.tables[0].rows] == ["", "not run here", "No such model."]
    assert [bool(row.lines) for row in first.tables[1].rows] == [False, False, False]
    second = run(tmp_path, only=("*/two",), seeds=1)
    assert [bool(row.lines) for row in second.tables[0].rows] == [True, True, False]
    assert [bool(row.lines) for row in second.tables[1].rows] == [False, True, False]
    earlier, kept = first.tables[0].rows[0], second.tables[0].rows[0]
    assert msgspec.structs.replace(kept, excluded="") == msgspec.structs.replace(earlier, excluded="")
    assert "No standard deviation is given where there is only one seed: two." in second.tables[0].deviations
    assert "Provenance up." in second.tables[0].deviations


def test_the_plan_of_seeds_decides_how_many_are_run(tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    path = tmp_path / "papers" / SEED_PLAN
    path.write_text('[[planned]]\nreports = "*"\nrows = "*/one"\nseeds = 1\nreason = ""', encoding="utf-8")
    with pytest.raises(AuditError, match=r"--seeds 2: .*seeds.toml plans 1 seed for movie-reviews/one"):
        run(tmp_path, only=("*/one",), tables=("first",), seeds=2)
    made = run(tmp_path, only=("*/one",), tables=("first",), seeds=None).tables[0].rows[0].provenance
    assert made is not None
    assert (made.seeds, made.seed_plan) == ([0], hashlib.sha256(path.read_bytes()).hexdigest())


def test_new_seeds_replace_those_that_were_seen_and_may_not_repeat_them(tmp_path: Path) -> None:
    path = tmp_path / "papers" / SEED_PLAN
    earlier = run(tmp_path, only=("*/one",), tables=("first",), seeds=2).tables[0].rows[0]
    planned = '[[planned]]\nreports = "*"\nrows = "*/one"\nseeds = 2\nfirst = {}\nreason = ""'
    path.write_text(planned.format(1), encoding="utf-8")
    message = r"movie-reviews/one \(first\): .*new seeds from 1 on, .*a run with seeds 0, 1\. Plan seeds from 2 on\."
    with pytest.raises(AuditError, match=message):
        run(tmp_path, only=("*/one",), tables=("first",), seeds=None)
    path.write_text(planned.format(2), encoding="utf-8")
    for _ in range(2):  # the second run trains nothing
        row = run(tmp_path, only=("*/one",), tables=("first",), seeds=None).tables[0].rows[0]
        assert row.provenance is not None
        assert row.provenance.seeds == [2, 3]
        assert [line.values for line in row.lines] != [line.values for line in earlier.lines]
        assert any("had other seeds (0, 1), which do not count" in note for note in row.notes)


def test_every_row_records_the_environment_in_which_it_was_measured(tmp_path: Path) -> None:
    report = run(tmp_path, only=("*/one",), tables=("first",), seeds=1)
    made = report.tables[0].rows[0].provenance
    assert made is not None
    assert made.environment == report.environment


def test_a_run_keeps_the_rows_that_another_run_adds_in_the_meantime(tmp_path: Path) -> None:
    @contextmanager
    def while_another_runs(doing: str) -> Iterator[Callable[[int, int, str], None]]:
        if doing == "auditing":
            run(tmp_path, only=("*/two",), tables=("first",), seeds=1)
        yield lambda done, total, name: None

    found = run(tmp_path, only=("*/one",), tables=("first",), seeds=1, progress_bar=while_another_runs)
    assert [bool(row.lines) for row in found.tables[0].rows] == [True, True, False]


def test_one_run_at_a_time_adds_to_a_report(tmp_path: Path) -> None:
    entered: list[str] = []

    def other() -> None:
        with exclusive(tmp_path):
            entered.append("other")

    with exclusive(tmp_path):
        waiting = threading.Thread(target=other)
        waiting.start()
        waiting.join(timeout=0.3)
        entered.append("this")
    waiting.join()
    assert entered == ["this", "other"]


def test_a_folder_for_reports_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "papers").write_text("")
    with (
        pytest.raises(AuditError, match=r"papers: cannot be written.*--out"),
        exclusive(tmp_path / "papers"),
    ):
        pass


def test_rows_that_start_from_word_vectors_have_a_report_of_their_own(tmp_path: Path) -> None:
    random = run(tmp_path, only=("*/one",), tables=("first",), seeds=1)
    path = tmp_path / "made.2d.txt"
    path.write_text("good 1 -1\nbad -1 1\nthe 0 .5\n", encoding="utf-8")
    vectors = Vectors.from_file(path)
    found = run(tmp_path, only=("*/one",), tables=("first",), seeds=1, vectors=vectors)
    assert sorted(one.name for one in (tmp_path / "papers").glob("*.jsonl")) == [
        "synthetic-embedded-made.2d.jsonl",
        "synthetic-embedded.jsonl",
    ]
    (row, *_), deviations = found.tables[0].rows, found.tables[0].deviations
    assert row.notes == ("3 words of the training texts have a vector in made.2d",)
    assert row.lines[1].values != random.tables[0].rows[0].lines[1].values
    assert any("start from made.2d (2 wide)" in one for one in deviations)
    assert PAPER.embeddings not in deviations
    assert PAPER.embeddings in random.tables[0].deviations
    assert "# Reproduction of “A paper” with made.2d word vectors\n" in paper_pages.markdown(found)
    path.write_text("good 1 -1\n", encoding="utf-8")
    with pytest.raises(AuditError, match=r"different word vectors of the same name, made\.2d\. Rename .*made\.2d\.txt"):
        run(tmp_path, only=("*/one",), tables=("first",), seeds=1, vectors=Vectors.from_file(path))


def test_equal_plans_are_trained_once_for_all_tables(tmp_path: Path) -> None:
    run(tmp_path, only=("*/one",), seeds=1)
    assert len(list((tmp_path / "models").iterdir())) == 1
    assert len(list((tmp_path / "measured").iterdir())) == 1


def test_an_unknown_table_or_row_is_reported_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="Did you mean 'first'"):
        run(tmp_path, tables=("frist",))
    with pytest.raises(AuditError, match=r"--only sst/\*: no row matches"):
        run(tmp_path, only=("sst/*",))
    assert not (tmp_path / "models").exists()


def test_all_missing_files_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "prepare", prepare_corpora.prepare)
    lacking_rows = [
        RowPlan(name=name, title=name, corpus=name, models={MODEL: msgspec.structs.replace(plan(), corpus=name)})
        for name in ("sst", "imdb")
    ]
    lacking = TablePlan(name="t", title="t", source="", rows=lambda _: lacking_rows, quantities=(), audits=())
    paper = Paper(name="p", title="p", citation="", corpora=("sst", "imdb"), tables=(lacking,))
    options = ReproductionOptions(paper=paper, out=tmp_path, command="", data_root=tmp_path)
    with pytest.raises(AuditError) as caught:
        reproduce.reproduce(options, progress_bar=silent)
    assert "sst_binary_jain_wallace.parquet" in str(caught.value)
    assert "aclimdb_50k.parquet" in str(caught.value)
