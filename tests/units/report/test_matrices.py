"""Matrices: the place, tooltip, number and shade of every cell."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from attnaudit.records import Matrix
from attnaudit.report import build
from attnaudit.report.matrices import matrix
from tests.units.report.example_checks import check_record
from tests.units.report.example_runs import run_record, token_rows, write_run

TWO_LAYERS = Matrix(
    row_label="layer", column_label="head", rows=["0", "1"], columns=["0", "1", "2"],
    values=[[0.5, -0.25, None], [0.0, 0.05, -0.5]],
)  # fmt: skip


def test_a_cell_has_its_place_and_value_as_tooltip() -> None:
    drawing = matrix(TWO_LAYERS, title="agreement")
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
    assert drawing.label == "agreement by layer and head, from −0.500 to 0.500"


def test_cells_of_a_matrix_with_few_columns_show_their_numbers() -> None:
    few, many = matrix(TWO_LAYERS, title=""), matrix(_wide(32), title="")
    assert few is not None
    assert many is not None
    assert [s.text for s in few.shapes if s.css == "cell-number"] == [".50", "−.25", "0", ".05", "−.50"]
    assert not [s for s in many.shapes if s.css == "cell-number"]
    assert many.width <= 420


def test_a_matrix_without_a_defined_value_is_not_drawn() -> None:
    empty = Matrix(row_label="layer", column_label="head", rows=["0"], columns=["0"], values=[[None]])
    assert matrix(empty, title="") is None


def _wide(count: int) -> Matrix:
    return Matrix(
        row_label="layer", column_label="head", rows=["0"], columns=[str(c) for c in range(count)],
        values=[[c / count for c in range(count)]],
    )  # fmt: skip


def test_the_report_draws_the_matrix_of_a_sweep_and_shows_the_notes_of_its_measuring(tmp_path: Path) -> None:
    run = run_record([check_record(matrix=TWO_LAYERS, severity="report", requirement=None, blocks=False)])
    notes = ["The attention shown is the reading cls@layer=5,heads=mean."]
    run = msgspec.structs.replace(
        run, measured=[msgspec.structs.replace(record, notes=notes) for record in run.measured]
    )
    build(write_run(tmp_path, run, token_rows(run.checks[0], "a", ["good", "film"])))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "By layer and head" in page
    assert "layer 0, head 1: −0.250" in page
    assert "cls@layer=5,heads=mean" in page
    assert "cls@layer=5,heads=mean" in (tmp_path / "summary.md").read_text(encoding="utf-8").replace("&#8203;", "")


@pytest.mark.parametrize(
    ("largest", "cells", "unit"),
    [(0.52, [".52", "−.13"], ""), (0.052, [".052", "−.013"], ""), (0.0052, ["5.2", "−1.3"], "thousandths")],
)
def test_cells_show_two_significant_digits(largest: float, cells: list[str], unit: str) -> None:
    values = [[largest, -largest / 4]]
    record = Matrix(
        row_label="layer",
        column_label="head",
        rows=["0"],
        columns=["0", "1"],
        values=values,
        low=[[largest - 0.001, None]],
        high=[[largest + 0.001, None]],
    )
    drawing = matrix(record, title="t")
    assert drawing is not None
    assert [shape.text for shape in drawing.shapes if shape.css == "cell-number"] == cells
    first = next(shape.text for shape in drawing.shapes if shape.kind == "rect")
    assert first.startswith("layer 0, head 0: ")
    assert ", interval " in first
    assert unit in drawing.note
    assert "is that of layer 0, head 0. Because it is the highest of 2 values" in drawing.note
