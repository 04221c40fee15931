"""Place the labels of points so that they do not overlap, and so that they stay inside the chart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnaudit.report.charts import Shape

#: The approximate width of a character of a label, and how far a label reaches above and below its baseline, in pixels.
GLYPH, ASCENT, DESCENT = 6.5, 9.0, 3.0
#: The smallest distance between two labels next to each other, in pixels.
SPACE = 5.0
#: The distances between a point and its label that are tried, in pixels.
DISTANCES = (5.0, 9.0, 15.0, 22.0, 30.0, 39.0, 50.0, 64.0, 80.0)
#: The directions in which a label is placed, the preferred ones first.
DIRECTIONS = (
    *((1, -1), (-1, -1), (1, 1), (-1, 1), (0, -1), (1, 0), (-1, 0), (0, 1)),
    *((0.4, -1), (-0.4, -1), (0.4, 1), (-0.4, 1)),
)
#: From this distance on, a line connects the label with its point.
FAR = 15.0
#: What it costs to cover a point, a line of the chart, or a line to another label, and to move a label by one pixel.
POINT, LINE, LEADER, PIXEL = 8.0, 4.0, 12.0, 0.1
#: What it costs to leave out a label.
MISSING = 1000.0
#: How often a label may move after all labels have a place.
SWEEPS = 5
Position = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle, in pixels. `top` is smaller than `bottom`."""

    left: float
    top: float
    right: float
    bottom: float

    def widened(self, by: float) -> Box:
        """Return the rectangle with additional space on the left and on the right."""
        return Box(left=self.left - by, top=self.top, right=self.right + by, bottom=self.bottom)

    def overlaps(self, other: Box) -> bool:
        """Return whether both rectangles have a common area."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def contains(self, other: Box) -> bool:
        """Return whether the other rectangle is inside this one."""
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )

    def crosses(self, start: Position, end: Position) -> bool:
        """Return whether a line segment has a part inside the rectangle."""
        low, high = 0.0, 1.0
        for a, b, first, last in (
            (start[0], end[0], self.left, self.right),
            (start[1], end[1], self.top, self.bottom),
        ):
            if a == b:
                if not first < a < last:
                    return False
                continue
            ends = sorted(((first - a) / (b - a), (last - a) / (b - a)))
            low, high = max(low, ends[0]), min(high, ends[1])
        return low < high


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A label with its place.

    Attributes:
        text: The text of the label.
        box: The estimated area of the text.
        point: The point that the label belongs to.
        end: The end of the line from the point to the label.
        distance: The distance between the point and the label.
    """

    text: str
    box: Box
    point: Position
    end: Position
    distance: float

    def shapes(self) -> list[Shape]:
        """Return the text, and before it a line from the point if the label is far away."""
        (x, y), (x2, y2) = self.point, self.end
        line = [Shape(kind="line", css="leader", x=x, y=y, x2=x2, y2=y2)] if self.distance >= FAR else []
        middle = (self.box.left + self.box.right) / 2
        return [*line, Shape(kind="text", css="tick label", x=middle, y=self.box.bottom - DESCENT, text=self.text)]


def place_labels(
    named: Iterable[tuple[str, Position]],
    *,
    inside: Box,
    taken: Sequence[Box],
    points: Sequence[Position],
    lines: Sequence[Sequence[Position]],
) -> list[Label]:
    """Place a label next to each named point.

    No label overlaps another one or a taken area, and no label leaves the area for labels. Among the other places, a
    label takes one that is close to its point and that covers few points and lines. The result depends only on the
    arguments.

    Args:
        named: The text of each label, and its point.
        inside: The area for the labels.
        taken: Areas with other texts.
        points: All points of the chart.
        lines: The corners of each line of the chart.

    Returns:
        The labels with their places. A label that fits nowhere is left out.
    """
    segments = [segment for line in lines for segment in pairwise(line)]
    choices = [
        [
            (label.distance * PIXEL + _covered(label, points, segments), label)
            for label in _candidates(text, point)
            if inside.contains(label.box) and not any(label.box.overlaps(area) for area in taken)
        ]
        for text, point in named
    ]
    places = range(len(choices))
    attempts = [_place(choices, order) for order in (places, places[::-1])]
    return [label for label in min(attempts, key=lambda attempt: attempt[0], default=(0.0, []))[1] if label is not None]


def _place(choices: Sequence[Sequence[tuple[float, Label]]], order: Sequence[int]) -> tuple[float, list[Label | None]]:
    """Give each label, one after the other, the cheapest free place, until no label moves.

    Args:
        choices: For each label, its possible places with their costs.
        order: The order in which labels are placed.

    Returns:
        The sum of the costs, and the places. A place is None if there is no free one.
    """
    placed: list[Label | None] = [None] * len(choices)
    costs = [MISSING] * len(choices)
    for _ in range(SWEEPS):
        before = list(placed)
        for place in order:
            others = [one for other, one in enumerate(placed) if one is not None and other != place]
            free = [
                (cost + _in_the_way(label, others), label) for cost, label in choices[place] if _is_free(label, others)
            ]
            costs[place], placed[place] = min(free, key=lambda option: option[0], default=(MISSING, None))
        if placed == before:
            break
    return sum(costs), placed


def _candidates(text: str, point: Position) -> list[Label]:
    """Return a label at every distance in every direction."""
    width, height = GLYPH * len(text), ASCENT + DESCENT
    x, y = point
    found = []
    for distance in DISTANCES:
        for right, down in DIRECTIONS:
            step = distance / math.hypot(right, down)
            end = (x + right * step, y + down * step)
            left, top = end[0] - width * (1 - right) / 2, end[1] - height * (1 - down) / 2
            box = Box(left=left, top=top, right=left + width, bottom=top + height)
            found.append(Label(text=text, box=box, point=point, end=end, distance=distance))
    return found


def _covered(label: Label, points: Sequence[Position], segments: Sequence[tuple[Position, Position]]) -> float:
    """Return the cost of the points and lines that a label covers, and of the lines that the line to it crosses."""
    box = label.box
    covered = sum(box.left - 3 < x < box.right + 3 and box.top - 3 < y < box.bottom + 3 for x, y in points)
    crossed = sum(
        box.crosses(*segment) or (label.distance >= FAR and _cross((label.point, label.end), segment))
        for segment in segments
    )
    return POINT * covered + LINE * crossed


def _is_free(label: Label, others: Sequence[Label]) -> bool:
    """Return whether a label overlaps no other label, and neither covers nor crosses another one with its line."""
    return not any(
        label.box.widened(SPACE).overlaps(other.box)
        or (label.distance >= FAR and other.box.crosses(label.point, label.end))
        or (other.distance >= FAR and label.box.crosses(other.point, other.end))
        for other in others
    )


def _in_the_way(label: Label, others: Sequence[Label]) -> float:
    """Return the cost of the lines to other labels that the line to this label crosses."""
    lines = [(other.point, other.end) for other in others if other.distance >= FAR]
    return LEADER * sum(_cross((label.point, label.end), line) for line in lines) if label.distance >= FAR else 0.0


def _cross(one: tuple[Position, Position], other: tuple[Position, Position]) -> bool:
    def side(line: tuple[Position, Position], point: Position) -> float:
        (x, y), (x2, y2) = line
        return (x2 - x) * (point[1] - y) - (y2 - y) * (point[0] - x)

    return side(one, other[0]) * side(one, other[1]) < 0 and side(other, one[0]) * side(other, one[1]) < 0
