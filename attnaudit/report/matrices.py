"""A check under every layer and head, drawn as a matrix: blue above zero, magenta below, the number in each cell."""

from __future__ import annotations

from attnaudit.formatting import number
from attnaudit.records import Matrix
from attnaudit.report.charts import Drawing, Shape, finite

LEFT, TOP, RIGHT, BOTTOM = 44.0, 24.0, 8.0, 28.0
WIDE, LOW = 30.0, 22.0
LEAST = 420.0
STEPS = 9
#: More columns than this leave no room for numbers in the cells; they are in the titles all the same.
NUMBERED = 16


def matrix(one: Matrix, *, measured: str) -> Drawing | None:
    """None where no cell is defined."""
    known = finite(value for row in one.values for value in row)
    if not known:
        return None
    largest = max(map(abs, known)) or 1.0
    count = len(one.columns)
    wide = max(WIDE, (LEAST - LEFT - RIGHT) / count) if count <= NUMBERED else (LEAST - LEFT - RIGHT) / count
    shapes = [
        Shape(kind="text", css="axis-name", x=4, y=TOP - 10, text=one.row_label, anchor="start"),
        Shape(
            kind="text",
            css="axis-name",
            x=LEFT + wide * count / 2,
            y=TOP + LOW * len(one.rows) + 25,
            text=one.column_label,
        ),
    ]
    for c, name in enumerate(one.columns):
        shapes.append(
            Shape(kind="text", css="tick", x=LEFT + wide * (c + 0.5), y=TOP + LOW * len(one.rows) + 12, text=name)
        )
    for r, name in enumerate(one.rows):
        y = TOP + LOW * r
        shapes.append(Shape(kind="text", css="tick", x=LEFT - 6, y=y + LOW / 2 + 3.5, text=name, anchor="end"))
        for c, value in enumerate(one.values[r]):
            x = LEFT + wide * c
            where = f"{one.row_label} {name}, {one.column_label} {one.columns[c]}: "
            shapes.append(
                Shape(
                    kind="rect",
                    css=_shade(value, largest),
                    x=x,
                    y=y,
                    width=wide - 1,
                    height=LOW - 1,
                    text=where + ("undefined" if value is None else number(value)),
                )
            )
            if value is not None and count <= NUMBERED:
                shapes.append(
                    Shape(kind="text", css="cell-number", x=x + wide / 2, y=y + LOW / 2 + 3.5, text=_short(value))
                )
    return Drawing(
        width=LEFT + wide * count + RIGHT,
        height=TOP + LOW * len(one.rows) + BOTTOM,
        label=f"{measured} by {one.row_label} and {one.column_label}, from {number(min(known))} to "
        f"{number(max(known))}.",
        shapes=tuple(shapes),
    )


def _shade(value: float | None, largest: float) -> str:
    if value is None:
        return "cell none"
    step = round(STEPS * min(1.0, abs(value) / largest))
    return f"cell {'below' if value < 0 else 'above'} k{step}"


def _short(value: float) -> str:
    """Two decimals without the leading zero, so that it fits a cell."""
    text = f"{value:.2f}"
    text = "0" if float(text) == 0 else text.replace("0.", ".", 1)
    return text.replace("-", "−")
