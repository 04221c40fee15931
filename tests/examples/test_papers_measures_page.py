"""docs/papers_measures.md quotes the figures of benchmarks/paper_measures.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers_measures.md").read_text(encoding="utf-8")
FIGURES = (ROOT / "benchmarks" / "paper_measures.md").read_text(encoding="utf-8")
QUOTED = re.compile(r"`(\w+)` (−?\d?\.\d{3})\b")


def table(heading: str) -> dict[str, dict[str, str]]:
    """First cell of a row -> head of a column -> cell, for the table below a heading."""
    lines = [line for line in FIGURES.partition(heading)[2].splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows if len(row) == len(head)}


AREAS = table("## Does a measure separate").items()
MEDIANS = table("## Medians by kind")
ROWS = {
    cells[0]: cells
    for line in PAGE.splitlines()
    if line.startswith("|")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    if len(cells) == 6
}


@pytest.mark.parametrize("measure", [name for name, _ in AREAS if name not in ("S_T", "points")])
def test_the_row_of_a_measure_quotes_its_areas_and_medians(measure: str) -> None:
    _, _, fooled, not_used, wrongly, _ = ROWS[measure]
    areas = dict(AREAS)[measure]
    assert (float(not_used), float(wrongly)) == (float(areas["area, not used"]), float(areas["area, points wrongly"]))
    quoted = QUOTED.findall(fooled)
    assert quoted
    for kind, number in quoted:
        assert float(number.replace("−", "-")) == float(MEDIANS[kind][measure].replace("−", "-")), (kind, number)


def test_every_faithful_kind_passes_both_gates_and_no_unfaithful_one_does() -> None:
    for kind, row in MEDIANS.items():
        used, points = (float(row[title].replace("−", "-")) for title in ("S_T", "points"))
        passes = used >= 0.092 and points >= 0.83
        assert passes is (row["truth"] == "faithful"), kind


def test_the_counts_on_the_page_are_those_of_the_models() -> None:
    models = {
        truth: sum(int(row["models"]) for row in MEDIANS.values() if row["truth"] == truth)
        for truth in ("faithful", "unfaithful")
    }
    assert f"{models['faithful']} faithful and {models['unfaithful']} unfaithful" in " ".join(PAGE.split())
    assert f"[planted models](planted.md) of {len(MEDIANS)} kinds" in " ".join(PAGE.split())
