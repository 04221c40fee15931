"""Format numbers, counts, durations and text of a data set for terminals and reports."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

FEWEST_DECIMALS = 3
MOST_DECIMALS = 6
#: Characters that act on a terminal, reorder the text around them or hide: control characters, marks of direction,
#: tags, surrogates. The joiners and variation selectors stay, because Persian, Indic scripts and emoji need them.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff]"
)
#: Format characters that stay, and that a comparison of text by the rules of a language ignores.
_IGNORED = (
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U000e0100-\U000e01ef"
)
# GitHub's runner looks for "::" at the start of a line, after white space, and for "##[" anywhere in it; the agents of
# Azure and TeamCity look for "##vso[" and "##teamcity[". The runner compares by the rules of a language
# (String.StartsWith and IndexOf without StringComparison.Ordinal), so a joiner between the characters hides nothing.
_COMMAND_AT_START = re.compile(rf"^((?:[^\S\n]|[{_IGNORED}])*)(?=:[{_IGNORED}]*:)", re.MULTILINE)
_COMMAND_ANYWHERE = re.compile(rf"(#[{_IGNORED}]*#[{_IGNORED}]*(?:[A-Za-z][{_IGNORED}]*)*)(?=\[)")


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


def without_commands(text: str) -> str:
    r"""Put a backslash into whatever a CI system would execute as a command if a line of the text were printed.

    A backslash is visible, is removed by no CI system and keeps the rest of the line as it was. White space would not
    help, because GitHub trims it.

    >>> print(without_commands("::error::failed"), without_commands("see ##vso[task.complete]"))
    \::error::failed see ##vso\[task.complete]
    """
    return _COMMAND_ANYWHERE.sub(r"\1\\", _COMMAND_AT_START.sub(r"\1\\", text))


def terminal_safe(text: str, *, keep_lines: bool = False) -> str:
    r"""Return text of a model, a data set or an exception that is harmless in a terminal and in the log of a CI job.

    Invisible characters become visible (see `visible`) and commands of CI systems are not executed (see
    `without_commands`). Ordinary text of any script is unchanged, and so is the result of this function.

    Args:
        text: Any text.
        keep_lines: Keep line breaks and tabs. By default these are made visible too, so that the text stays one line.

    >>> terminal_safe("row\x1b[2J\n::error::1")
    'row␛[2J␊::error::1'
    >>> terminal_safe("row\n::error::1", keep_lines=True)
    'row\n\\::error::1'
    """
    text = text.replace("\r\n", "\n") if keep_lines else text.replace("\n", "␊").replace("\t", "␉")
    return without_commands(visible(text))


def one_line(text: str) -> str:
    r"""Return text that is harmless in a terminal (see `terminal_safe`), with spaces in place of its line breaks.

    >>> one_line("two rows:\nr1")
    'two rows: r1'
    """
    return terminal_safe(" ".join(filter(None, map(str.strip, text.splitlines()))))


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
    text = terminal_safe(" ".join(marked))
    return ("… " if start else "") + text + (" …" if start + limit < len(tokens) else "")
