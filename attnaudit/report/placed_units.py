"""Drawings of units that have a place: boxes over a picture, and spans of a recording over a time line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.formatting import number

#: The width of a drawing in its own units. A picture has the height that belongs to its width.
WIDTH = 100.0
#: Height of the band of a timeline, and the largest ratio of height and width of a picture.
BAND, TALLEST = 7.0, 3.0
#: Number of steps between the lightest and the darkest colour. Units of the same step are drawn together.
STEPS = 12
#: Largest number of units that are drawn in one row.
MOST_UNITS = 2_000
#: Number of the largest values whose units have an outline and a tooltip, and are named in the label.
OUTLINED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The outline of a unit that has one of the largest values of its row.

    Attributes:
        x: The left side.
        y: The upper side.
        width: The width.
        height: The height.
        text: The name and the value of the unit.
    """

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRow:
    """The units of one row, drawn at their places.

    Attributes:
        height: The height of the drawing, whose width is WIDTH.
        shades: One pair for each opacity: the opacity, and an SVG path that outlines all units with this opacity. If
            values may be negative, these are only the units above zero.
        negative: The same kind of pairs for the units below zero.
        outlines: The units with the largest values, largest first.
        ticks: Pairs of a horizontal place and a time in words, for a timeline.
        label: The row in words, for screen readers.
        undrawn: Number of units with small values that are not drawn.
    """

    height: float
    shades: tuple[tuple[float, str], ...]
    negative: tuple[tuple[float, str], ...]
    outlines: tuple[Outline, ...]
    ticks: tuple[tuple[float, str], ...] = ()
    label: str = ""
    undrawn: int = 0


def placed_row(
    name: str,
    values: Sequence[float | None],
    units: Sequence[str],
    *,
    heats: Sequence[float],
    boxes: Sequence[Sequence[float]] = (),
    times: Sequence[Sequence[float]] = (),
    aspect: float = 1.0,
) -> PlacedRow:
    """Draw one row of values at the places of the units.

    Args:
        name: The name of the row.
        values: One value per unit; None where undefined.
        units: The names of the units.
        heats: How dark each unit is, from 0 to 1.
        boxes: x, y, width and height of each unit, as fractions of the picture; empty for a recording.
        times: Start and end of each unit in seconds, if there are no boxes.
        aspect: Height of the picture divided by its width.
    """
    height = WIDTH * min(TALLEST, aspect) if boxes else BAND
    end = max((one[1] for one in times), default=0.0)
    start = min((one[0] for one in times), default=0.0)
    scale = WIDTH / (end - start) if end > start else 0.0
    if boxes:
        places = [(b[0] * WIDTH, b[1] * height, b[2] * WIDTH, b[3] * height) for b in boxes]
    else:
        places = [((t[0] - start) * scale, 0.0, max(0.3, (t[1] - t[0]) * scale), BAND) for t in times]
    sizes = [abs(v) if v is not None and math.isfinite(v) else 0.0 for v in values]
    order = sorted(range(len(places)), key=lambda i: -sizes[i])
    drawn = order[:MOST_UNITS]
    largest = [i for i in order[:OUTLINED] if sizes[i] > 0]
    texts = {i: f"{units[i]}: {number(values[i] or 0.0, digits=4)}" for i in largest}
    named = "; ".join(texts.values())
    return PlacedRow(
        height=round(height, 2),
        shades=_shades(places, heats, [i for i in drawn if (values[i] or 0) >= 0]),
        negative=_shades(places, heats, [i for i in drawn if (values[i] or 0) < 0]),
        outlines=tuple(
            Outline(
                x=round(places[i][0], 2),
                y=round(places[i][1], 2),
                width=round(places[i][2], 2),
                height=round(places[i][3], 2),
                text=texts[i],
            )
            for i in largest
        ),
        ticks=() if boxes else _ticks(start, end, scale),
        label=f"{name}. Largest values: {named}." if named else f"{name}. All values are 0.",
        undrawn=max(0, len(order) - MOST_UNITS),
    )


def _shades(
    places: Sequence[tuple[float, float, float, float]], heats: Sequence[float], chosen: Sequence[int]
) -> tuple[tuple[float, str], ...]:
    """Group units by their colour. Return pairs of an opacity and the path of all units that have it."""
    by_step: dict[int, list[str]] = {}
    for i in chosen:
        step = round(heats[i] * STEPS)
        if step:
            x, y, width, height = places[i]
            by_step.setdefault(step, []).append(f"M{x:.2f} {y:.2f}h{width:.2f}v{height:.2f}h{-width:.2f}z")
    return tuple((round(step / STEPS, 3), "".join(paths)) for step, paths in sorted(by_step.items()))


def _ticks(start: float, end: float, scale: float) -> tuple[tuple[float, str], ...]:
    """Return about five round times with their places."""
    span = end - start
    if span <= 0:
        return ()
    rough = span / 4
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough)
    first = math.ceil(start / step - 1e-9)
    times = [n * step for n in range(first, math.floor(end / step + 1e-9) + 1)]
    return tuple((round((t - start) * scale, 2), f"{t:g} s") for t in times)
