"""The pictures of the gallery, as SVG that needs neither scripts nor fonts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape

from attnaudit.formatting import number, visible
from attnaudit.research.gallery.gallery_records import (
    CLOSE,
    OUTCOMES,
    CheckValue,
    Exhibit,
    Gallery,
    Outcome,
    PaperNumber,
)

WIDTH = 640
#: The right edge of the labels, and the left edges of the two columns of bars.
LABELS, ATTENTION, EFFECT = 150, 160, 405
BAR, ROW, LONGEST = 175, 19, 20
#: The scale of a gate.
SCALE_LEFT, SCALE_RIGHT = 215, 500
BLUE, ORANGE, GREY, INK = "#2166ac", "#b35806", "#767676", "#1f1f1f"
VERDICT_COLOURS = {"pass": "#1b7837", "fail": "#b2182b", "inconclusive": "#7a5c00", "undefined": GREY}
OUTCOME_COLOURS: dict[Outcome, str] = {"right": "#1b7837", "partly": "#7a5c00", "unused": "#b2182b", "elsewhere": BLUE}
GATE_QUESTIONS = {
    "total effect": "Is attention used?",
    "pointing": "Does it point at what matters?",
    "sufficiency": "Are the attended tokens enough?",
}


def exhibit_svg(exhibit: Exhibit, families: dict[str, str]) -> str:
    """Draw one text of an exhibit: the attention and the effect of each token, and below them the values of the gates.

    Args:
        exhibit: The exhibit.
        families: Check id -> the kind of check.
    """
    text, parts = exhibit.text, []
    parts += [_text(ATTENTION, 18, "attention", colour=BLUE), _text(EFFECT, 18, "effect on the output", colour=ORANGE)]
    largest = max(text.attention) or 1.0, max(text.effects) or 1.0
    for i, token in enumerate(text.tokens):
        y = 28 + i * ROW
        parts.append(_text(LABELS, y + 13, _shortened(token), anchor="end"))
        columns = ((ATTENTION, text.attention[i], BLUE, largest[0]), (EFFECT, text.effects[i], ORANGE, largest[1]))
        for x, value, colour, most in columns:
            width = BAR * value / most
            parts.append(_rect(x, y + 2, max(width, 0.5), ROW - 5, colour))
            parts.append(_text(x + width + 4, y + 13, number(value, digits=2) if value >= 0.005 else "0", size=11))
    bottom = 28 + len(text.tokens) * ROW + 14
    for check in gates(exhibit):
        parts += _gate(check, GATE_QUESTIONS.get(families[check.check], check.check), bottom)
        bottom += 46
    return _svg(bottom, exhibit_label(exhibit), parts)


def exhibit_label(exhibit: Exhibit) -> str:
    """Describe the picture of an exhibit in words, for readers who cannot see it."""
    text = exhibit.text
    top = [max(range(len(text.tokens)), key=values.__getitem__) for values in (text.attention, text.effects)]
    verdicts = "; ".join(f"{check.check} {number(check.value, digits=2)}: {check.verdict}" for check in gates(exhibit))
    return (
        f"Attention is largest on “{text.tokens[top[0]]}” ({number(text.attention[top[0]], digits=2)}), and the "
        f"effect is largest on “{text.tokens[top[1]]}”. {verdicts}."
    )


def gates(exhibit: Exhibit) -> list[CheckValue]:
    """Return the checks of an exhibit that have a threshold."""
    return [check for check in exhibit.checks if check.threshold is not None]


def check_svg(gallery: Gallery, check: str) -> str:
    """Draw the values of a check on all exhibits, with one row of dots for each outcome."""
    rows = values_by_outcome(gallery, check)
    values = [value for found in rows.values() for value in found]
    low, high = min(0.0, *values), max(1.0, *values) if max(values) > 0.5 else max(values)
    scale = _Scale(low, high, 160, 610)
    parts = [_rect(scale.at(v), 8, 1, 26 * len(rows), "#d9d9d9") for v in scale.ticks()]
    parts += [
        _text(scale.at(v), 26 * len(rows) + 24, number(v, digits=2), size=11, anchor="middle") for v in scale.ticks()
    ]
    for i, (outcome, found) in enumerate(rows.items()):
        y = 21 + 26 * i
        parts.append(_text(LABELS, y + 4, OUTCOMES[outcome], anchor="end", colour=OUTCOME_COLOURS[outcome]))
        for k, value in enumerate(found):
            parts.append(_dot(scale.at(value), y + (k % 5 - 2) * 3.5, 3.5, OUTCOME_COLOURS[outcome], opacity=0.6))
    medians = ", ".join(f"{OUTCOMES[one]} {number(statistics.median(found), digits=2)}" for one, found in rows.items())
    return _svg(26 * len(rows) + 34, f"{check} on planted models; medians: {medians}.", parts)


def values_by_outcome(gallery: Gallery, check: str) -> dict[Outcome, list[float]]:
    """Return outcome -> the defined values of a check. Outcomes without a defined value are left out."""
    rows = {
        outcome: [
            result.value
            for exhibit in gallery.exhibits
            if exhibit.outcome == outcome
            for result in exhibit.checks
            if result.check == check and result.value is not None
        ]
        for outcome in OUTCOMES
    }
    return {outcome: found for outcome, found in rows.items() if found}


def paper_svg(numbers: Sequence[PaperNumber]) -> str:
    """Draw a scatter plot of the numbers of a paper and the reproduced numbers."""
    values = [value for one in numbers for value in (one.paper, one.ours)]
    low, high = min(0.0, *values), max(1.0, *values)
    across, up = _Scale(low, high, 60, 400), _Scale(low, high, 350, 10)
    parts = [_line(across.at(low), up.at(low), across.at(high), up.at(high), "#bdbdbd")]
    for v in across.ticks():
        parts.append(_text(across.at(v), 370, number(v, digits=1), size=11, anchor="middle"))
        parts.append(_text(52, up.at(v) + 4, number(v, digits=1), size=11, anchor="end"))
    parts += [_dot(across.at(one.paper), up.at(one.ours), 3.5, BLUE, opacity=0.6) for one in numbers]
    parts += [
        _text(230, 388, "number in the paper", anchor="middle"),
        _text(412, 30, "number in this reproduction"),
    ]
    parts += [_text(412, 48, "(dots on the line equal the paper)")]
    close = sum(one.is_close for one in numbers)
    return _svg(
        396, f"{close} of {len(numbers)} reproduced numbers differ from the paper's by at most {CLOSE:g}.", parts
    )


class _Scale:
    """A linear map from [low, high] to [start, end]."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high if high > low else low + 1.0, start, end

    def at(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """About four round numbers on the scale."""
        rough = (self.high - self.low) / 4
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [round(step * k, 9) for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _gate(check: CheckValue, question: str, y: float) -> list[str]:
    """Draw the interval of a gate on its scale. The part of the scale on which the gate passes is green."""
    colour = VERDICT_COLOURS[check.verdict]
    verdict = _text(
        SCALE_RIGHT + 12, y + 16, f"{number(check.value, digits=2)} {check.verdict}", colour=colour, bold=True
    )
    if check.value is None or check.threshold is None:
        return [_text(SCALE_LEFT - 10, y + 16, question, anchor="end"), verdict]
    low, high = (
        check.low if check.low is not None else check.value,
        check.high if check.high is not None else check.value,
    )
    scale = _Scale(min(0.0, low), max(1.0, high), SCALE_LEFT, SCALE_RIGHT)
    limit = scale.at(check.threshold)
    passes = (limit, SCALE_RIGHT) if check.direction == "at_least" else (SCALE_LEFT, limit)
    ends = (scale.at(low), scale.at(high))
    return [
        _text(SCALE_LEFT - 10, y + 16, question, anchor="end"),
        _rect(SCALE_LEFT, y + 6, SCALE_RIGHT - SCALE_LEFT, 12, "#f6dcd9"),
        _rect(passes[0], y + 6, passes[1] - passes[0], 12, "#d9f0d3"),
        _rect(limit - 0.75, y + 2, 1.5, 20, INK),
        _text(limit, y + 34, f"required {number(check.threshold, digits=2)}", size=11, anchor="middle"),
        _rect(ends[0], y + 10, max(ends[1] - ends[0], 1), 4, colour),
        _dot(scale.at(check.value), y + 12, 5, colour),
        verdict,
    ]


def _shortened(token: str) -> str:
    shown = visible(token)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_short(height)}" width="{WIDTH}" role="img" '
        'font-family="sans-serif" font-size="13">'
    )
    title = f"<title>{escape(label)}</title>"
    return "\n".join([head, title, _rect(0, 0, WIDTH, height, "#ffffff"), *parts, "</svg>"]) + "\n"


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    size = f'width="{_short(width)}" height="{_short(height)}"'
    return f'<rect x="{_short(x)}" y="{_short(y)}" {size} fill="{colour}"/>'


def _line(x: float, y: float, x2: float, y2: float, colour: str) -> str:
    return f'<path d="M{_short(x)} {_short(y)}L{_short(x2)} {_short(y2)}" stroke="{colour}"/>'


def _dot(x: float, y: float, radius: float, colour: str, *, opacity: float = 1.0) -> str:
    faded = "" if opacity == 1.0 else f' fill-opacity="{opacity:g}"'
    return f'<circle cx="{_short(x)}" cy="{_short(y)}" r="{_short(radius)}" fill="{colour}"{faded}/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, colour: str = INK, bold: bool = False
) -> str:
    style = "".join(
        (
            "" if anchor == "start" else f' text-anchor="{anchor}"',
            "" if size == 13 else f' font-size="{size}"',
            "" if colour == INK else f' fill="{colour}"',
            ' font-weight="bold"' if bold else "",
        )
    )
    return f'<text x="{_short(x)}" y="{_short(y)}"{style}>{escape(text)}</text>'


def _short(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
