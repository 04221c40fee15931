"""Labels of points: none overlaps another one, and all stay inside the chart."""

from __future__ import annotations

import html
import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit.research.reproduction.figures.label_placement import FAR, Box, place_labels
from attnaudit.research.reproduction.pages import paper_pages
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.papers import PAPERS
from attnaudit.research.reproduction.render_reports import read_reports
from tests.slow_cases import slow_except

FOLDER = Path(__file__).parents[4] / "reports" / "papers"
INSIDE = Box(left=44.0, top=0.0, right=420.0, bottom=190.0)
CHART = re.compile(
    r'<figcaption>(.*?)</figcaption>\s*<svg class="chart" viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>(.*?)</svg>', re.DOTALL
)
TEXT = re.compile(r'<text class="[^"]*" x="([\d.-]+)" y="([\d.-]+)" text-anchor="(\w+)">(.*?)</text>')
#: The estimated width of a character, and how far a text reaches above and below its baseline, in pixels.
GLYPH, ASCENT, DESCENT = 6.0, 8.0, 2.0


def text_boxes(svg: str) -> list[tuple[str, Box]]:
    """The estimated areas of the texts of a chart."""
    found = []
    for x, y, anchor, escaped in TEXT.findall(svg):
        text = html.unescape(escaped)
        width = GLYPH * len(text)
        left = float(x) - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        box = Box(left=left, top=float(y) - ASCENT, right=left + width, bottom=float(y) + DESCENT)
        found.append((text, box))
    return found


@pytest.fixture(scope="module")
def reports() -> dict[str, Reproduction]:
    return read_reports(FOLDER)


@pytest.mark.parametrize("name", slow_except(PAPERS, ["jain-wallace", "tutek-snajder"]))
def test_no_texts_of_the_charts_of_a_paper_overlap(name: str, reports: dict[str, Reproduction]) -> None:
    of_paper = {stem: report for stem, report in reports.items() if report.paper == name}
    page = paper_pages.html(of_paper)
    charts = CHART.findall(page)
    assert charts
    for title, width, height, svg in charts:
        area = Box(left=0.0, top=0.0, right=float(width), bottom=float(height))
        boxes = text_boxes(svg)
        assert boxes, title
        assert [text for text, box in boxes if not area.contains(box)] == [], title
        pairs = [(one, other) for (one, a), (other, b) in combinations(boxes, 2) if a.overlaps(b)]
        assert pairs == [], title
    # No label was left out: all points of first curves, and all published numbers, have one.
    drawn = [one.curves for report in of_paper.values() for t in report.tables for one in t.figures if one.curves]
    points = [
        {point.label for curve in (record.curves[0], *record.published) for seed in curve.seeds for point in seed}
        for record in drawn
    ]
    assert page.count('class="tick label"') == sum(map(len, points))


POINT = st.tuples(st.floats(50, 410), st.floats(20, 180))


@settings(max_examples=30)
@given(st.lists(POINT, max_size=6), st.lists(POINT, max_size=6))
def test_labels_do_not_overlap_wherever_the_points_are(points: list[tuple[float, float]], line: list) -> None:  # type: ignore[type-arg]
    taken = Box(left=0.0, top=0.0, right=120.0, bottom=18.0)
    named = [(f"λ={place}", point) for place, point in enumerate(points)]
    placed = place_labels(named, inside=INSIDE, taken=[taken], points=points, lines=[line])
    assert placed == place_labels(named, inside=INSIDE, taken=[taken], points=points, lines=[line])
    assert [label.text for label in placed] == [text for text, _ in named]
    for one, other in combinations(placed, 2):
        assert not one.box.overlaps(other.box)
    for label in placed:
        assert INSIDE.contains(label.box)
        assert not label.box.overlaps(taken)
        assert (len(label.shapes()) == 2) is (label.distance >= FAR)  # a line leads to a label that is far away


def test_a_lonely_label_is_next_to_its_point_and_off_the_lines() -> None:
    (label,) = place_labels([("λ=1", (200.0, 100.0))], inside=INSIDE, taken=[], points=[(200.0, 100.0)], lines=[])
    assert label.box.left > 200.0
    assert label.box.bottom < 100.0
    rising = [(200.0, 100.0), (230.0, 90.0)]
    (label,) = place_labels([("λ=1", (200.0, 100.0))], inside=INSIDE, taken=[], points=rising[:1], lines=[rising])
    assert not label.box.crosses(*rising)


@pytest.mark.parametrize(
    ("start", "end", "inside"),
    [
        ((0.0, 5.0), (10.0, 5.0), True),
        ((5.0, 0.0), (5.0, 10.0), True),
        ((0.0, 0.0), (10.0, 10.0), True),
        ((5.0, 5.0), (5.5, 5.5), True),
        ((0.0, 1.0), (10.0, 1.0), False),
        ((0.0, 8.0), (2.0, 10.0), False),
        ((0.0, 5.0), (3.0, 5.0), False),
    ],
)
def test_a_line_crosses_a_box_if_a_part_of_it_is_inside(
    start: tuple[float, float], end: tuple[float, float], inside: bool
) -> None:
    box = Box(left=4.0, top=4.0, right=6.0, bottom=6.0)
    assert box.crosses(start, end) is box.crosses(end, start) is inside
