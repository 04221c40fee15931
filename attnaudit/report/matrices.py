"""The values of a check for every layer and head, drawn as a matrix of coloured cells."""

from __future__ import annotations

import math

from attnaudit.formatting import number
from attnaudit.records import Matrix
from attnaudit.records.unit_names import TOKENS_OF_TEXTS
from attnaudit.report.charts import Drawing, Shape, finite

LEFT, TOP, RIGHT, BOTTOM = 44.0, 24.0, 8.0, 28.0
CELL_WIDTH, CELL_HEIGHT = 30.0, 22.0
#: The smallest total width of a matrix. If there are few columns, their cells are widened to fill it.
FULL_WIDTH = 420.0
#: The number of the darkest shade in report.css. The lightest shade is 0.
DARKEST = 9
#: With more columns than this, the cells are too narrow for numbers. Only the tooltips then show them.
MOST_NUMBERED_COLUMNS = 16


#: With more decimals than this, cells show thousandths instead.
MOST_DECIMALS = 3
UNITS = "thousandths"


def matrix(record: Matrix, *, title: str, rows: str = TOKENS_OF_TEXTS.rows) -> Drawing | None:
    """Draw a matrix with one coloured cell per value.

    Cells are blue for values above zero and magenta for values below zero. The larger the absolute value is, the darker
    the cell is.

    Args:
        record: The values.
        title: What the values are, for screen readers.
        rows: The name of several rows of the data.

    Returns:
        The drawing; None if no value is defined.
    """
    known = finite(value for row in record.values for value in row)
    if not known:
        return None
    largest = max(map(abs, known)) or 1.0
    columns = len(record.columns)
    digits = _digits(largest)
    numbered = columns <= MOST_NUMBERED_COLUMNS
    width = (FULL_WIDTH - LEFT - RIGHT) / columns
    width = max(CELL_WIDTH, width) if numbered else width
    bottom = TOP + CELL_HEIGHT * len(record.rows)
    shapes = [
        Shape(kind="text", css="axis-name", x=4, y=TOP - 10, text=record.row_label, anchor="start"),
        Shape(kind="text", css="axis-name", x=LEFT + width * columns / 2, y=bottom + 25, text=record.column_label),
    ]
    for c, name in enumerate(record.columns):
        shapes.append(Shape(kind="text", css="tick", x=LEFT + width * (c + 0.5), y=bottom + 12, text=name))
    for r, name in enumerate(record.rows):
        y = TOP + CELL_HEIGHT * r
        baseline = y + CELL_HEIGHT / 2 + 3.5
        shapes.append(Shape(kind="text", css="tick", x=LEFT - 6, y=baseline, text=name, anchor="end"))
        for c, value in enumerate(record.values[r]):
            x = LEFT + width * c
            place = f"{record.row_label} {name}, {record.column_label} {record.columns[c]}"
            shapes.append(
                Shape(
                    kind="rect",
                    css=_shade(value, largest),
                    x=x,
                    y=y,
                    width=width - 1,
                    height=CELL_HEIGHT - 1,
                    text=f"{place}: {_in_words(record, r, c)}",
                )
            )
            if value is not None and numbered:
                shapes.append(
                    Shape(kind="text", css="cell-number", x=x + width / 2, y=baseline, text=_short(value, digits))
                )
    best = max(
        (value, f"{record.row_label} {row}, {record.column_label} {column}")
        for row, values in zip(record.rows, record.values, strict=True)
        for column, value in zip(record.columns, values, strict=True)
        if value is not None and math.isfinite(value)
    )
    scaled = "" if digits <= MOST_DECIMALS else f" The cells show {UNITS} of the value."
    return Drawing(
        width=LEFT + width * columns + RIGHT,
        height=bottom + BOTTOM,
        label=f"{title} by {record.row_label} and {record.column_label}, from {number(min(known))} to "
        f"{number(max(known))}",
        shapes=tuple(shapes),
        note="The values of blue cells are above 0, those of magenta cells below 0. The darker a cell, the further "
        f"its value is from 0, up to {number(largest)}.{scaled} The highest value, {number(best[0])}, is that "
        f"of {best[1]}. Because it is the highest of {len(known)} values, it is likely to be too high. To "
        f"choose a head, use {rows} other than those on which you report results.",
    )


def _in_words(record: Matrix, row: int, column: int) -> str:
    """Return the value of a cell and its interval in words."""
    value = record.values[row][column]
    if value is None:
        return "undefined"
    low, high = (bounds[row][column] if bounds else None for bounds in (record.low, record.high))
    return (
        number(value) if low is None or high is None else f"{number(value)}, interval {number(low)} to {number(high)}"
    )


def _digits(largest: float) -> int:
    """Return the number of decimals that shows two significant digits of the largest absolute value, at least 2."""
    return max(2, 1 - math.floor(math.log10(largest)))


def _shade(value: float | None, largest: float) -> str:
    """Return the CSS classes of a cell. They depend on the sign and the size of its value."""
    if value is None:
        return "cell none"
    step = round(DARKEST * min(1.0, abs(value) / largest))
    return f"cell {'below' if value < 0 else 'above'} k{step}"


def _short(value: float, digits: int) -> str:
    """Format a number without a leading zero, so that it fits into a cell; in thousandths if it is very small."""
    text = f"{value:.{digits}f}" if digits <= MOST_DECIMALS else f"{1000 * value:.{max(0, digits - 3)}f}"
    text = "0" if float(text) == 0 else text.replace("0.", ".", 1)
    return text.replace("-", "−")
