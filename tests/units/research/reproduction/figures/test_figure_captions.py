"""The captions of stored figures: they say which of a row's seeds the figure shows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from attnaudit.records import Chart, Series
from attnaudit.research.reproduction.figures.figure_captions import full_caption
from attnaudit.research.reproduction.figures.figure_records import Figure, Violin, Violins
from attnaudit.research.reproduction.paper_report import Row, Table
from tests.units.research.reproduction.synthetic_reports import reproduction, row

DATA = {"sst": {"test": 100}}
FIRST = "Only the model of the first seed (4) is shown; the table has 3 seeds."
ALL = "The texts of all 3 seeds are pooled."


def of_classes(*counts: int, name: str = "predicted") -> Figure:
    series = [Series(name=f"{name} {place} (n={count:,})", x=[0], y=[1]) for place, count in enumerate(counts)]
    chart = Chart(title="t", x_label="x", y_label="y", kind="bar", series=series)
    return Figure(name="bars", row="sst/bilstm", title="t", caption="Shares.", chart=chart)


def violins(*counts: int) -> Figure:
    made = [Violin(bin=0, side=side, at=[0, 1], density=[1, 1], median=0.5, n=n) for side, n in enumerate(counts)]
    record = Violins(bins=["b"], sides=["no", "yes"], x_label="x", y_label="y", violins=made)
    return Figure(name="violins", row="sst/bilstm", title="t", caption="Shares.", violins=record)


def caption(figure: Figure, *, seeds: Sequence[int] = (4, 5, 6), values: int = 3, texts: int | None = None) -> str:
    made = row("sst/bilstm", {"tau": [0.5] * values}, seeds=seeds)
    assert made.provenance is not None
    made = msgspec.structs.replace(made, provenance=msgspec.structs.replace(made.provenance, instances=texts))
    return full_caption(figure, table(made), DATA)


def table(made: Row) -> Table:
    return reproduction(t=[made]).tables[0]


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (of_classes(40, 60), f"Shares. {FIRST}"),
        (of_classes(40, 57), f"Shares. {FIRST}"),  # some values are undefined
        (of_classes(120, 180), f"Shares. {ALL}"),
        (of_classes(120, 177), f"Shares. {ALL}"),
        (of_classes(100, 100), "Shares."),  # two seeds, or three seeds with many undefined values
        (of_classes(100, 100, name="measure"), f"Shares. {FIRST}"),  # two measures of the same texts
        (of_classes(300, 300, name="measure"), f"Shares. {ALL}"),
        (of_classes(200, 300), "Shares. The texts of 5 seeds are pooled."),  # two seeds were dropped from the numbers
        (violins(40, 60), f"Shares. {FIRST}"),
        (violins(120, 179), f"Shares. {ALL}"),
    ],
)
def test_the_number_of_texts_shows_the_seeds(figure: Figure, expected: str) -> None:
    assert caption(figure) == expected


def test_a_sample_of_the_texts_is_counted_for_each_seed() -> None:
    assert caption(of_classes(10, 10), texts=20) == f"Shares. {FIRST}"
    assert caption(of_classes(30, 30), texts=20) == f"Shares. {ALL}"


def test_nothing_is_added_if_there_is_one_seed_or_if_the_caption_names_the_seeds() -> None:
    assert caption(of_classes(40, 60), seeds=(0,), values=1) == "Shares."
    for known in ("All texts, with the model of the first seed.", "With the models of all seeds."):
        assert caption(msgspec.structs.replace(of_classes(40, 60), caption=known)) == known
    elsewhere = msgspec.structs.replace(of_classes(40, 60), row="other")
    assert caption(elsewhere) == "Shares."
    text = Figure(name="text", row="sst/bilstm", title="t", caption="A rule.")
    assert caption(text) == "A rule."


def test_a_row_that_compares_seeds_shows_the_texts_once() -> None:
    shown = caption(of_classes(40, 60), values=1)
    assert shown == "Shares. The texts are shown once, with the model of the first seed (4)."
