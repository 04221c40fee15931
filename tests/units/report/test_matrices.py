"""A check under every layer and head: each cell drawn, named and shaded by its size and side."""

from __future__ import annotations

from pathlib import Path

import msgspec

from attnaudit.records import Matrix
from attnaudit.report import build
from attnaudit.report.matrices import matrix
from tests.units.report.example_runs import check_record, run_record, token_rows, write_run

TWO = Matrix(
    row_label="layer", column_label="head", rows=["0", "1"], columns=["0", "1", "2"],
    values=[[0.5, -0.25, None], [0.0, 0.05, -0.5]],
)  # fmt: skip


def test_every_cell_says_where_it_is_and_what_it_holds() -> None:
    drawing = matrix(TWO, measured="agreement")
    assert drawing is not None
    cells = [s for s in drawing.shapes if s.kind == "rect"]
    assert [s.text for s in cells] == [
        "layer 0, head 0: 0.500",
        "layer 0, head 1: −0.250",
        "layer 0, head 2: undefined",
        "layer 1, head 0: 0.000",
        "layer 1, head 1: 0.050",
        "layer 1, head 2: −0.500",
    ]
    assert [s.css for s in cells] == [
        *("cell above k9", "cell below k4", "cell none"),
        *("cell above k0", "cell above k1", "cell below k9"),
    ]
    assert drawing.label == "agreement by layer and head, from −0.500 to 0.500."


def test_numbers_are_written_where_they_fit() -> None:
    few, many = matrix(TWO, measured=""), matrix(_wide(32), measured="")
    assert few is not None
    assert many is not None
    assert [s.text for s in few.shapes if s.css == "cell-number"] == [".50", "−.25", "0", ".05", "−.50"]
    assert not [s for s in many.shapes if s.css == "cell-number"]
    assert many.width <= 420


def test_nothing_defined_draws_nothing() -> None:
    empty = Matrix(row_label="layer", column_label="head", rows=["0"], columns=["0"], values=[[None]])
    assert matrix(empty, measured="") is None


def _wide(count: int) -> Matrix:
    return Matrix(
        row_label="layer", column_label="head", rows=["0"], columns=[str(c) for c in range(count)],
        values=[[c / count for c in range(count)]],
    )  # fmt: skip


def test_the_report_draws_the_matrix_of_a_sweep_and_says_what_is_read(tmp_path: Path) -> None:
    run = run_record([check_record(matrix=TWO, severity="report", requirement=None, blocks=False)])
    notes = ["The attention shown is the reading cls@layer=5,heads=mean."]
    run = msgspec.structs.replace(run, measured=[msgspec.structs.replace(one, notes=notes) for one in run.measured])
    build(write_run(tmp_path, run, token_rows(run.checks[0], "a", ["good", "film"])))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "By layer and head" in page
    assert "layer 0, head 1: −0.250" in page
    assert "cls@layer=5,heads=mean" in page
    assert "cls@layer=5,heads=mean" in (tmp_path / "summary.md").read_text(encoding="utf-8").replace("&#64;", "@")
