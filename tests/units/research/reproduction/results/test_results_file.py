"""The results file: what is written is read back, and what cannot be read is named with its line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from attnaudit.errors import AuditError, ReportError
from attnaudit.research.reproduction.corpora import CORPORA
from attnaudit.research.reproduction.figures.figure_records import Counterfactual, Figure
from attnaudit.research.reproduction.paper_report import Provenance, WordVectors
from attnaudit.research.reproduction.papers import paper
from attnaudit.research.reproduction.render_reports import read_reports, render
from attnaudit.research.reproduction.results.results_file import (
    SCHEMA_VERSION,
    MeasuredFigure,
    MeasuredQuantity,
    MeasuredRow,
    Results,
    RunHeader,
    exclusive,
    read_results,
    results_text,
)
from attnaudit.research.reproduction.results.row_settings import row_setting
from attnaudit.research.reproduction.table_layout import lay_out, require_declared
from attnaudit.run.environment import describe_environment

VECTORS = WordVectors(name="made.2d", width=2, sha256="0")
HEADER = RunHeader(
    schema_version=SCHEMA_VERSION,
    paper="jain-wallace",
    embedded=False,
    quick=False,
    vectors=VECTORS,
    created="2026-01-01T00:00:00Z",
    attnaudit="0",
    seconds=1.0,
    jobs=2,
    environment=describe_environment(device="cpu", threads=1),
    data={"sst": {"train": 9, "dev": 2, "test": 3}},
)
TABLE = next(one for one in paper("jain-wallace").tables if one.name == "permutation")
PLAN = next(one for one in TABLE.rows(("sst",)) if one.name == "sst/bilstm/additive")
ROW = MeasuredRow(
    table="permutation",
    name="sst/bilstm/additive",
    setting=row_setting(PLAN, VECTORS),
    provenance=Provenance(
        command="attnaudit reproduce jain-wallace",
        created="2026-01-01T00:00:00Z",
        attnaudit="0",
        seeds=[0, 1, 2],
        instances=500,
        training_seconds=61.0,
        audit_seconds=5.0,
    ),
    classes=("negative", "positive"),
    words_with_vectors=1234,
    notes=("a note",),
    quantities={
        "mean": MeasuredQuantity(n=3, values=[0.1, None, 0.3]),
        "class 1": MeasuredQuantity(n=0, values=[None, None, None]),
    },
)
FAILED = MeasuredRow(table="agreement", name="sst/bilstm/dot", missing="out of luck")
FIGURE = MeasuredFigure(
    table="permutation",
    figure=Figure(
        name="counterfactual",
        row="sst/bilstm/additive",
        title="t",
        caption="c",
        counterfactual=Counterfactual(
            instance="i",
            tokens=["line\u2028separator", "next\x85line"],
            predicted="no",
            label="no",
            attention=[0.9, None],
            adversarial=[0.0, 1.0],
            probability=0.99,
            tvd=0.004,
            jsd=0.61,
        ),
    ),
)
RESULTS = Results(header=HEADER, rows=(FAILED, ROW), figures=(FIGURE,))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "jain-wallace-made.2d.jsonl"
    path.write_text(results_text(RESULTS), encoding="utf-8")
    assert path.read_text(encoding="utf-8").count("\n") == 4
    assert read_results(path) == RESULTS
    assert read_results(tmp_path / "none.jsonl") is None


def test_the_report_has_the_numbers_of_the_results_and_the_words_of_the_paper() -> None:
    report = lay_out(RESULTS, paper("jain-wallace"))
    tables = {table.name: {row.name: row for row in table.rows} for table in report.tables}
    row = tables["permutation"]["sst/bilstm/additive"]
    assert row.title == "SST, BiLSTM, additive"
    assert row.provenance == ROW.provenance
    assert row.notes == ("1,234 words of the training texts have a vector in made.2d", "a note")
    mean, of_class = row.lines
    assert (mean.ours, mean.std, mean.n) == (pytest.approx(0.2), pytest.approx(0.02**0.5), 3)
    assert (of_class.ours, of_class.std, of_class.paper) == (None, None, None)
    assert "positive is predicted" in of_class.words
    assert tables["agreement"]["sst/bilstm/dot"].missing == "out of luck"
    assert tables["agreement"]["imdb/bilstm/dot"].missing == "not run here"


def test_a_row_with_other_settings_is_not_shown() -> None:
    old = msgspec.structs.replace(ROW, setting="0" * 16)
    report = lay_out(Results(header=HEADER, rows=(FAILED, old), figures=(FIGURE,)), paper("jain-wallace"))
    table = next(one for one in report.tables if one.name == "permutation")
    row = next(one for one in table.rows if one.name == ROW.name)
    assert (row.lines, row.provenance, table.figures) == ([], None, [])
    assert row.missing.startswith("measured with settings that have changed")


def test_the_setting_depends_on_the_models_the_vectors_and_the_corpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = PLAN.models["model"]
    settings = {
        row_setting(PLAN, VECTORS),
        row_setting(PLAN, None),
        row_setting(PLAN, msgspec.structs.replace(VECTORS, sha256="1")),
        row_setting(replace(PLAN, models={"model": plan.with_settings(epochs=9)}), VECTORS),
        row_setting(replace(PLAN, models={"model": plan, "other": plan}), VECTORS),
        row_setting(replace(PLAN, build=1), VECTORS),
    }
    assert len(settings) == 6
    assert row_setting(replace(PLAN, title="t", paper={"mean": 0.1}), VECTORS) in settings
    monkeypatch.setitem(CORPORA, "sst", replace(CORPORA["sst"], drawn=True))
    assert row_setting(PLAN, VECTORS) not in settings


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (msgspec.structs.replace(ROW, table="permutations"), "a row of table 'permutations'.*'permutation'"),
        (
            msgspec.structs.replace(ROW, name="sst/bilstn/additive"),
            "the row 'sst/bilstn/additive' of table 'permutation'",
        ),
        (
            msgspec.structs.replace(ROW, quantities={"mena": MeasuredQuantity(n=1, values=[0.1])}),
            "the quantity 'mena' of table 'permutation'.*'mean'",
        ),
    ],
)
def test_nothing_that_was_measured_is_left_out_of_a_report(row: MeasuredRow, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "jain-wallace.jsonl"
    path.write_text(results_text(Results(header=HEADER, rows=(row,), figures=())), encoding="utf-8")
    with pytest.raises(ReportError, match=rf"jain-wallace\.jsonl: contains {problem}"):
        render(tmp_path)
    require_declared(RESULTS, paper("jain-wallace"), path)


def test_a_paper_that_is_not_known_is_named_with_its_file(tmp_path: Path) -> None:
    header = msgspec.structs.replace(HEADER, paper="jain-walace")
    (tmp_path / "x.jsonl").write_text(results_text(Results(header=header, rows=(), figures=())), encoding="utf-8")
    with pytest.raises(ReportError, match=r"x\.jsonl: Unknown paper 'jain-walace'. Did you mean 'jain-wallace'"):
        read_reports(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}\n", r"results\.jsonl:1: cannot be read as a line"),
        ("", r"results\.jsonl:1: cannot be read as a line"),
        (results_text(RESULTS) + "half a li", r"results\.jsonl:5: cannot be read as a line"),
        (results_text(RESULTS).partition("\n")[2], r"results\.jsonl:1: expected the description of a run"),
        (
            results_text(RESULTS).replace(f'"schema_version":{SCHEMA_VERSION}', '"schema_version":1', 1),
            f"the schema version is 1, expected {SCHEMA_VERSION}",
        ),
    ],
    ids=["other JSON", "empty", "cut off", "no header", "older"],
)
def test_a_file_of_something_else_is_named(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ReportError, match=rf"{problem}.*Move the file away"):
        read_results(path)


def test_a_folder_without_results_has_no_report(tmp_path: Path) -> None:
    assert read_reports(tmp_path) == {}


def test_without_filelock_the_extra_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(AuditError, match=r'filelock.*pip install "attnaudit\[research\]"'), exclusive(tmp_path):
        pass
