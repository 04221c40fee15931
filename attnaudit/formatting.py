"""Format numbers, counts, durations and text of a data set for terminals and reports."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

FEWEST_DECIMALS = 3
MOST_DECIMALS = 6
#: Characters that are invisible or reorder the text around them: control characters, direction marks and surrogates.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def number(value: float | int | None, *, digits: int = FEWEST_DECIMALS) -> str:
    """Format a number for a report, with a typographic minus sign and commas between thousands.

    Zero has no sign. Numbers that would round to zero are written with an exponent. None and NaN become an em dash.

    Args:
        value: The number.
        digits: Number of decimals of a float below 1,000; larger ones have none.

    >>> number(-0.25), number(12345.6), number(None)
    ('−0.250', '12,346', '—')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int):
        text = f"{int(value):,}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif value != 0 and abs(value) < 0.5 * 10.0**-digits:
        text = f"{value:.1e}"
    else:
        text = f"{value:.{digits}f}"
        if float(text) == 0:
            text = text.lstrip("-")
    return text.replace("-", "−")


def plain_number(value: float, digits: int = FEWEST_DECIMALS) -> str:
    """Format a number for a terminal in ASCII, with a fixed number of decimals and without "-0.000".

    >>> plain_number(-0.0001)
    '0.000'
    """
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def decimals(numbers: Sequence[float], threshold: float | None) -> int:
    """Return how many decimals it takes to distinguish every number from the threshold: at least 3, at most 6.

    A number that equals the threshold needs no further decimals.

    >>> decimals([0.29996], 0.3)
    5
    """
    if threshold is None:
        return FEWEST_DECIMALS
    for digits in range(FEWEST_DECIMALS, MOST_DECIMALS):
        if all(f"{x:.{digits}f}" != f"{threshold:.{digits}f}" for x in numbers if x != threshold):
            return digits
    return MOST_DECIMALS


def threshold(value: float) -> str:
    """Format a threshold with at least two decimals and all of its digits.

    >>> threshold(0.3), threshold(0.125)
    ('0.30', '0.125')
    """
    text = repr(float(value))
    if "e" in text or len(text.partition(".")[2]) >= 2:
        return text.replace("-", "−")
    return f"{value:.2f}".replace("-", "−")


def plural(count: int, noun: str) -> str:
    """Format a count with its noun, which is in the plural unless the count is 1.

    >>> plural(1, "instance"), plural(2026, "instance")
    ('1 instance', '2,026 instances')
    """
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> duration(4.21), duration(75), duration(3720)
    ('4.2 s', '1 min 15 s', '1 h 02 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def sentence(clause: str) -> str:
    """Turn a clause into a sentence: capitalise its first letter and add a full stop; "" stays ""."""
    return f"{clause[:1].upper()}{clause[1:]}." if clause else ""


def visible(text: str) -> str:
    """Replace invisible characters by visible ones, so that no text of a data set can hide or reorder a report.

    >>> visible("a\\x00b")
    'a␀b'
    """

    def symbol(match: re.Match[str]) -> str:
        code = ord(match[0])
        if code < 0x20:
            return chr(0x2400 + code)
        return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"

    return INVISIBLE.sub(symbol, text)


def printable(text: str) -> str:
    """Replace every character that a terminal may interpret, including line breaks, by U+FFFD."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def marked_tokens(tokens: Sequence[str], top: int | None, limit: int = 24) -> str:
    """Join tokens for a terminal, with the token at position `top` in guillemets.

    Args:
        tokens: The tokens of one instance.
        top: The position to mark; None marks nothing.
        limit: The largest number of tokens to show. Longer texts are truncated around the marked token.

    >>> marked_tokens(["a", "good", "film"], 1)
    'a «good» film'
    """
    start = max(0, min((top or 0) - limit // 2, len(tokens) - limit))
    marked = [f"«{token}»" if i == top else token for i, token in enumerate(tokens)][start : start + limit]
    text = printable(" ".join(marked))
    return ("… " if start else "") + text + (" …" if start + limit < len(tokens) else "")
