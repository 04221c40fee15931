"""Format numbers, counts, durations and text from data sets for terminals and reports."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

FEWEST_DECIMALS = 3
MOST_DECIMALS = 6
#: Characters that are invisible, control a terminal, or reorder the text around them: control characters, direction
#: marks, tags and surrogates. Joiners and variation selectors are not among them, because Persian, Indic scripts and
#: emoji need them.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff]"
)
#: Format characters that are not in `INVISIBLE`. A culture-sensitive comparison of text ignores them.
_IGNORED = (
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U000e0100-\U000e01ef"
)
# GitHub's runner looks for "::" at the start of a line, after white space, and for "##[" anywhere in the line. The
# agents of Azure and TeamCity look for "##vso[" and "##teamcity[". The runner compares text by culture-sensitive rules
# (String.StartsWith and IndexOf without StringComparison.Ordinal). It therefore finds a command even if joiners are
# between its characters.
_COMMAND_AT_START = re.compile(rf"^((?:[^\S\n]|[{_IGNORED}])*)(?=:[{_IGNORED}]*:)", re.MULTILINE)
_COMMAND_ANYWHERE = re.compile(rf"(#[{_IGNORED}]*#[{_IGNORED}]*(?:[A-Za-z][{_IGNORED}]*)*)(?=\[)")


def number(value: float | int | None, *, digits: int = FEWEST_DECIMALS, exponent: bool = True) -> str:
    """Format a number for a report, with a typographic minus sign and commas between thousands.

    Zero has no sign. None and NaN become an em dash.

    Args:
        value: The number.
        digits: Number of decimals of floats below 1,000. Larger floats have no decimals.
        exponent: Whether nonzero numbers that would be rounded to zero are written with an exponent. Otherwise, they
            are written as zero.

    Examples:
        >>> number(-0.25), number(12345.6), number(None)
        ('−0.250', '12,346', '—')
        >>> number(-0.00025), number(-0.00025, exponent=False)
        ('−2.5e−04', '0.000')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int):
        text = f"{int(value):,}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif exponent and value != 0 and abs(value) < 0.5 * 10.0**-digits:
        text = f"{value:.1e}"
    else:
        text = f"{value:.{digits}f}"
        if float(text) == 0:
            text = text.lstrip("-")
    return text.replace("-", "−")


def percentage(share: float) -> str:
    """Format a share as a percentage with two significant digits. Percentages of 10% or more have no decimals.

    Examples:
        >>> percentage(0.344), percentage(0.0614), percentage(-0.5), percentage(0.00001)
        ('34%', '6.1%', '−50%', 'less than 0.01%')
    """
    size = abs(share)
    if 0 < size < 0.0001:
        return "less than 0.01%"
    text = f"{100 * size:,.0f}%" if size >= 0.0995 or not size else f"{100 * size:.2g}%"
    return f"−{text}" if share < 0 else text


def plain_number(value: float, digits: int = FEWEST_DECIMALS) -> str:
    """Format a number in ASCII for a terminal, as `number` does.

    Examples:
        >>> plain_number(-0.25), plain_number(-0.00008), plain_number(0.0)
        ('-0.250', '-8.0e-05', '0.000')
    """
    return number(float(value), digits=digits).replace("−", "-").replace("∞", "inf").replace("—", "nan")


def decimals(numbers: Sequence[float], threshold: float | None = None) -> int:
    """Return the number of decimals, from 3 to 6, with which different numbers look different.

    Args:
        numbers: Numbers in ascending order, such as the bounds of an interval or the edges of a histogram. Each has to
            differ from the next one.
        threshold: A number from which each of them has to differ; None for no such number.

    Examples:
        >>> decimals([0.29996], 0.3), decimals([0.0312, 0.0314]), decimals([0.2, 0.3])
        (5, 4, 3)
    """
    pairs = [*pairwise(numbers), *((x, threshold) for x in numbers if threshold is not None)]
    for digits in range(FEWEST_DECIMALS, MOST_DECIMALS):
        if all(number(float(a), digits=digits) != number(float(b), digits=digits) for a, b in pairs if a != b):
            return digits
    return MOST_DECIMALS


def threshold(value: float) -> str:
    """Format a threshold with at least two decimals and all of its digits.

    Examples:
        >>> threshold(0.3), threshold(0.125)
        ('0.30', '0.125')
    """
    text = repr(float(value))
    if "e" in text or len(text.partition(".")[2]) >= 2:
        return text.replace("-", "−")
    return f"{value:.2f}".replace("-", "−")


def listed(names: Sequence[str], most: int = 3) -> str:
    """List names as text, such as "a, b, c and 2 others".

    Args:
        names: At least one name.
        most: The largest number of names before "and N others". "and 1 others" never occurs: a single remaining name is
            listed.
    """
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} others"


def plural(count: int, noun: str) -> str:
    """Format a count with a noun. The noun is in the plural unless the count is 1.

    Examples:
        >>> plural(1, "instance"), plural(2026, "instance")
        ('1 instance', '2,026 instances')
    """
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def left_out(unseen_mixers: Sequence[str]) -> str:
    """Return a clause about modules that no reading includes (see `Capabilities.unseen_mixers`)."""
    verb = "carries" if len(unseen_mixers) == 1 else "carry"
    return (
        f"{plural(len(unseen_mixers), 'module')} of the model {verb} information between tokens without visible "
        f"weights ({listed(unseen_mixers)})"
    )


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    Examples:
        >>> duration(4.21), duration(75), duration(3720)
        ('4.2 s', '1 min 15 s', '1 h 02 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def moment(time: str) -> str:
    """Format a time in ISO 8601 for a reader, in UTC. Text in any other format is left unchanged.

    Examples:
        >>> moment("2026-01-05T10:30:59+01:00"), moment("yesterday")
        ('2026-01-05 09:30 UTC', 'yesterday')
    """
    try:
        return datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return time


def sentence(clause: str) -> str:
    """Turn a clause into a sentence, with a capital letter and a full stop. "" stays ""."""
    return f"{clause[:1].upper()}{clause[1:]}." if clause else ""


def visible(text: str) -> str:
    """Replace invisible characters with visible ones, so that text from data cannot hide or reorder parts of a report.

    Examples:
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
    r"""Insert backslashes so that no CI system executes a printed line of the text as a command.

    A backslash is visible, and no CI system removes it. The rest of the line stays unchanged. White space would not
    help, because GitHub removes it.

    Examples:
        >>> print(without_commands("::error::failed"), without_commands("see ##vso[task.complete]"))
        \::error::failed see ##vso\[task.complete]
    """
    return _COMMAND_ANYWHERE.sub(r"\1\\", _COMMAND_AT_START.sub(r"\1\\", text))


def terminal_safe(text: str, *, keep_lines: bool = False) -> str:
    r"""Make a text from a model, a data set or an exception harmless in a terminal and in the log of a CI job.

    Invisible characters become visible (see `visible`), and CI systems execute no commands in the text (see
    `without_commands`). Ordinary text in any script stays unchanged. Applying the function twice has the same effect as
    applying it once.

    Args:
        text: Any text.
        keep_lines: Whether to keep line breaks and tabs. By default, they become visible too, so that the result is one
            line.

    Examples:
        >>> terminal_safe("row\x1b[2J\n::error::1")
        'row␛[2J␊::error::1'
        >>> terminal_safe("row\n::error::1", keep_lines=True)
        'row\n\\::error::1'
    """
    text = text.replace("\r\n", "\n") if keep_lines else text.replace("\n", "␊").replace("\t", "␉")
    return without_commands(visible(text))


def one_line(text: str) -> str:
    r"""Make a text harmless in a terminal (see `terminal_safe`), and replace its line breaks with spaces.

    Examples:
        >>> one_line("two rows:\nr1")
        'two rows: r1'
    """
    return terminal_safe(" ".join(filter(None, map(str.strip, text.splitlines()))))


def marked_tokens(tokens: Sequence[str], top: int | None, limit: int = 24) -> str:
    """Join tokens for a terminal, with the token at position `top` in guillemets.

    Args:
        tokens: The tokens of one instance.
        top: The position of the token to mark; None for no mark.
        limit: Largest number of tokens in the result. A longer text is cut to the tokens around the marked token.

    Examples:
        >>> marked_tokens(["a", "good", "film"], 1)
        'a «good» film'
    """
    start = max(0, min((top or 0) - limit // 2, len(tokens) - limit))
    marked = [f"«{token}»" if i == top else token for i, token in enumerate(tokens)][start : start + limit]
    text = terminal_safe(" ".join(marked))
    return ("… " if start else "") + text + (" …" if start + limit < len(tokens) else "")
