"""Find the shapes of a drawing."""

from __future__ import annotations

from attnaudit.report.charts import Drawing


def rects(drawing: Drawing | None, css: str) -> list[tuple[float, float]]:
    """Return (width, height) of the rectangles with this CSS class."""
    assert drawing is not None
    return [(shape.width, shape.height) for shape in drawing.shapes if shape.kind == "rect" and shape.css == css]
