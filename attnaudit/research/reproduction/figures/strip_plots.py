"""Draw strip plots as shapes: one lane per row of a table, with one dot per value and a mark at the paper's number."""

from __future__ import annotations

from attnaudit.report.charts import BOTTOM, WIDTH, Drawing, Scale, Shape
from attnaudit.research.reproduction.figures.figure_records import Strip, Strips
from attnaudit.research.reproduction.figures.horizontal_axis import horizontal_axis

#: All lengths are in pixels.
TOP, LANE = 14.0, 15.0
GLYPH = 6.3
#: Whether a row counts -> the CSS classes of its dots. A row that does not count has grey rings instead of dots.
STYLES = {True: "s0", False: "s5 ring"}
#: Whether a row counts -> the CSS classes of its key in the legend, and the text of the legend.
LEGEND = {
    True: ("s0 dot", "ours, one dot per value"),
    False: ("s5 ring", "ours, in a row that does not count for the claims"),
}


def strip_plots(record: Strips) -> Drawing | None:
    """Draw the strips of a figure. Return None if there are none."""
    if not record.strips:
        return None
    left = 14 + GLYPH * max(len(strip.label) for strip in record.strips)
    height = TOP + LANE * len(record.strips) + BOTTOM
    x, shapes = horizontal_axis(
        record.low, record.high, left=left, top=TOP, bottom=height - BOTTOM, label=record.x_label
    )
    for place, strip in enumerate(record.strips):
        shapes += _strip(strip, x, TOP + LANE * (place + 0.5), left, record.compared_with)
    counted = sorted({strip.counts for strip in record.strips}, reverse=True)
    legend = tuple(LEGEND[counts] for counts in counted)
    label = f"{record.x_label}. " + "; ".join(_in_words(strip, record.compared_with) for strip in record.strips)
    whose = "the paper's number" if record.compared_with == "paper" else f"the number of the {record.compared_with}"
    note = f"The vertical mark is {whose}." if any(one.paper is not None for one in record.strips) else ""
    return Drawing(width=WIDTH, height=height, label=label, shapes=tuple(shapes), legend=legend, note=note)


def _strip(strip: Strip, x: Scale, y: float, left: float, compared_with: str) -> list[Shape]:
    css = STYLES[strip.counts]
    shapes = [
        Shape(kind="text", css="tick", x=left - 8, y=y + 3.5, text=strip.label, anchor="end"),
        Shape(kind="line", css="axis", x=x(min(strip.values)), y=y, x2=x(max(strip.values)), y2=y),
    ]
    if strip.paper is not None:
        at = x(strip.paper)
        shapes.append(Shape(kind="line", css="mark threshold", x=at, y=y - 6, x2=at, y2=y + 6))
    dots = zip(strip.values, _names(strip, compared_with), strict=True)
    return [*shapes, *(Shape(kind="dot", css=f"fill {css}", x=x(v), y=y, width=2.6, text=name) for v, name in dots)]


def _names(strip: Strip, compared_with: str) -> list[str]:
    """Return the tooltip of each value."""
    seeds = [f", seed {seed}" for seed in strip.seeds] or [""] * len(strip.values)
    paper = "" if strip.paper is None else f" ({compared_with} {strip.paper:.3f})"
    return [f"{strip.label}{seed}: {v:.3f}{paper}" for v, seed in zip(strip.values, seeds, strict=True)]


def _in_words(strip: Strip, compared_with: str) -> str:
    ours = ", ".join(f"{value:.3f}" for value in strip.values)
    paper = "" if strip.paper is None else f"; {compared_with} {strip.paper:.3f}"
    return f"{strip.label}: {ours}{paper}"
