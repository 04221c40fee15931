"""Figures of the pages of papers: their axes, names and numbers."""

from __future__ import annotations

import re
from importlib import resources

import msgspec

from attnaudit.records import Chart, Series
from attnaudit.report.charts import Drawing
from attnaudit.research.reproduction.figures.figure_records import Figure, Strip, Strips
from attnaudit.research.reproduction.figures.paper_figures import draw
from attnaudit.research.reproduction.figures.shared_axes import highest_values, share_axes
from attnaudit.research.reproduction.pages import paper_pages
from attnaudit.research.reproduction.paper_report import WordVectors
from tests.units.research.reproduction.pages.report_with_figures import PROVENANCE, figures, finding, reproduction

#: The classes that lay out parts of the page. The style sheet of audit reports must not style them too.
LAID_OUT = re.compile(r'<(?:div|ul|table|section)[^>]* class="([a-z]+)')
STYLES = resources.files("attnaudit.report.templates").joinpath("report.css").read_text(encoding="utf-8")
SHARED = {"scroll", "outcome", "heatmap", "legend", "provenance"}
REPORT_CLASSES = {*re.findall(r"^\s*\.([a-z]+)", STYLES, re.MULTILINE)} - SHARED
HIGHS = (
    (0.3, Strip(label="a", values=[0.1, 0.3], paper=None, counts=True)),
    (0.9, Strip(label="a", values=[0.9], paper=None, counts=True)),
)


def test_the_page_is_escaped_and_draws_every_figure() -> None:
    page = paper_pages.html({"synthetic": reproduction()})
    assert "<i>BiLSTM" not in page
    assert "<b>waste" not in page
    assert "6,355 train" in page
    assert page.count("<svg") == 2
    assert "http://" not in page
    assert "https://" not in page


def test_the_numbers_of_a_chart_are_one_table_with_escaped_names() -> None:
    one = reproduction()
    strip = Strip(label="<b>SST", values=[0.1, 0.3], paper=0.2, counts=True, seeds=(0, 1))
    strips = Strips(x_label="tau", low=0.0, high=1.0, strips=[strip])
    figure = Figure(name="strips tau", row="", title="A <i>title", caption="c", strips=strips)
    table = msgspec.structs.replace(one.tables[0], figures=[figure])
    page = paper_pages.html({"synthetic": msgspec.structs.replace(one, tables=[table])})
    assert page.count("Numbers of this chart") == 1
    shown = page[page.index("Numbers of this chart") :]
    shown = shown[: shown.index("</details>")]
    assert re.findall(r'<th scope="(?:col|row)"[^>]*>(.*?)</th>', shown) == [
        "row",
        "seed 0",
        "seed 1",
        "paper",
        "&lt;b&gt;SST",
    ]
    assert re.findall(r'<td class="num">(.*?)</td>', shown) == ["0.100", "0.300", "0.200"]
    assert "<i>title" not in page


def test_the_caption_of_a_stored_figure_names_its_seeds() -> None:
    one = reproduction()
    counted = [Series(name=f"predicted {name} (n=800)", x=[0], y=[1]) for name in ("no", "yes")]
    chart = Chart(title="t", x_label="x", y_label="y", kind="bar", series=counted)
    figure = Figure(name="bars", row="a", title="Bars", caption="Shares.", chart=chart)
    provenance = msgspec.structs.replace(PROVENANCE, instances=None)
    (first, *others) = one.tables[0].rows
    rows = [msgspec.structs.replace(first, provenance=provenance), *others]
    table = msgspec.structs.replace(one.tables[0], rows=rows, figures=[figure])
    page = paper_pages.html({"synthetic": msgspec.structs.replace(one, tables=[table])})
    assert "Shares. Only the model of the first seed (0) is shown; the table has 2 seeds." in page


def test_the_page_of_a_paper_shows_all_its_reports_with_shared_axes() -> None:
    random = msgspec.structs.replace(reproduction(), findings=(finding("undecided"),))
    vectors = WordVectors(name="made.2d", width=2, sha256="0" * 64)
    strips = [Strips(x_label="tau", low=0.0, high=high, strips=[strip]) for high, strip in HIGHS]
    reports = {}
    for name, drawn, verdict in (("synthetic", strips[0], "undecided"), ("synthetic-made.2d", strips[1], "holds")):
        figure = Figure(name="strips tau", row="", title="Strips", caption="c", strips=drawn)
        table = msgspec.structs.replace(random.tables[0], figures=[figure])
        reports[name] = msgspec.structs.replace(
            random, tables=[table], findings=(finding(verdict),), vectors=None if name == "synthetic" else vectors
        )
    page = paper_pages.html(reports)
    assert page.index("Embeddings: made.2d") < page.index("Embeddings: random")  # as the models of the papers first
    assert page.count("<strong>holds</strong>") == page.count("<strong>undecided</strong>") == 1
    assert page.count("A claim.") == 1
    assert page.count('<i class="swatch s0 dot"></i>ours, one dot per value') == 2
    assert re.search(r"\.swatch:is\([^)]*\.dot[^)]*\) {[^}]*border-radius: 50%", page)  # a dot, not a dash
    shared = share_axes(reports)
    axes = {one.strips.high for report in shared.values() for one in report.tables[0].figures if one.strips}
    assert axes == {0.9}
    index = paper_pages.index_html(reports)
    assert index.count('<a href="synthetic.html">A paper</a>') == 2  # in the table, and as a heading
    for text in (page, index):
        assert not [name for name in LAID_OUT.findall(text) if name in REPORT_CLASSES]


def test_bars_and_violins_have_the_same_axis_in_all_reports() -> None:
    low, high = reproduction(), reproduction()
    violins, bars, text = high.tables[0].figures
    assert violins.violins is not None
    wide = msgspec.structs.replace(violins.violins.violins[0], at=[0.0, 0.1, 0.9])
    wider = msgspec.structs.replace(violins, violins=msgspec.structs.replace(violins.violins, violins=[wide]))
    table = msgspec.structs.replace(high.tables[0], figures=[wider, bars, text])
    found = highest_values({"a": low, "b": msgspec.structs.replace(high, tables=[table])})
    assert found == {("t", "violins"): 0.9, ("t", "bars"): 2.0, ("t", "rival"): 0.0}
    ticks = [_ticks(draw(one, highest=0.9)) for one in (violins, wider)]
    assert ticks[0] == ticks[1]
    assert _ticks(draw(bars, highest=9.0)) != _ticks(draw(bars))


def _ticks(drawing: Drawing | None) -> list[str]:
    assert drawing is not None
    return [shape.text for shape in drawing.shapes if shape.css == "tick"]


def test_half_a_violin_is_drawn_on_its_side_of_the_line() -> None:
    drawn = draw(figures()[0])
    assert drawn is not None
    half = next(shape for shape in drawn.shapes if shape.kind == "path")
    heights = [float(point.split()[1]) for point in half.text.strip("MZ").split("L")]
    assert max(heights) == heights[0] == heights[-1]  # the upper half: nothing below its line
    assert min(heights) < heights[0]
