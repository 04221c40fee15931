"""The rows of the table of differences between two runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnaudit.formatting import FEWEST_DECIMALS, decimals, number
from attnaudit.records import CheckRecord
from attnaudit.records.comparison_records import ComparedCheck, PairedValue
from attnaudit.report.charts import Drawing
from attnaudit.report.two_runs.difference_strip import difference_strip
from attnaudit.report.wording import VERDICT_NAMES, VERDICT_SYMBOLS

#: The meaning of a difference -> its name, its symbol, and the verdict that has the same colour.
MEANINGS = {
    "better": ("Better", "+", "pass"),
    "worse": ("Worse", "−", "fail"),
    "higher": ("Higher", "↑", "informational"),
    "lower": ("Lower", "↓", "informational"),
    "unclear": ("No clear difference", "≈", "informational"),
    "same": ("Unchanged", "=", "informational"),
    "no interval": ("No interval", "?", "undefined"),
    "not comparable": ("Not comparable", "∅", "undefined"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    """A verdict as text.

    Attributes:
        css: The CSS class of the verdict.
        name: The verdict in words.
        symbol: The verdict as one character.
    """

    css: str
    name: str
    symbol: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """A row of the table of differences between two runs: a check, or a number such as the accuracy.

    Attributes:
        title: The name of the number, or the title of the check.
        id: The id of the check; "" for accuracy and F1.
        anchor: The fragment identifier of the instances of the check; "" if none are shown.
        role: "gate" or "informational"; "" for accuracy and F1.
        base: The number in the base run.
        candidate: The number in the candidate run.
        difference: The difference with its sign; an em dash if there is none.
        interval: The interval of the difference; "" if there is none.
        level: The confidence of the interval, such as "95%"; "" if there is none.
        detectable: The smallest difference that would have been detected; "" if it is unknown.
        count: The number of instances with a value in both runs; an em dash if the check is not comparable.
        meaning: What the difference means, in the form of a verdict.
        strip: The drawing of the interval; None if there is no interval.
        verdicts: The verdict of each run, the base run first; empty for accuracy and F1.
        changed: Whether the verdict or the role differs between the runs.
        reason: Why there is no difference or interval; "" if there are both.
        warning: Why the interval may be too narrow; "" if nothing suggests that.
    """

    title: str
    id: str = ""
    anchor: str = ""
    role: str = ""
    base: str
    candidate: str
    difference: str
    interval: str
    level: str
    detectable: str
    count: str
    meaning: VerdictView
    strip: Drawing | None
    verdicts: tuple[VerdictView, ...] = ()
    changed: bool = False
    reason: str = ""
    warning: str = ""


def is_decided(paired: PairedValue) -> bool:
    """Return whether a difference can be interpreted: it has an interval, or both values are the same."""
    return paired.interval is not None or paired.meaning == "same"


def difference_row(paired: PairedValue) -> DifferenceRow:
    """Return the row of the table for a number, such as the accuracy."""
    meaning = paired.meaning if is_decided(paired) else "no interval"
    return DifferenceRow(
        title=paired.name[:1].upper() + paired.name[1:],
        base=number(paired.base),
        candidate=number(paired.candidate),
        difference=signed(paired.difference),
        interval=interval_of(paired),
        level=paired.interval.level if paired.interval else "",
        detectable="" if paired.detectable is None else number(paired.detectable),
        count=number(paired.n),
        meaning=_meaning(meaning),
        strip=difference_strip(paired, MEANINGS[meaning][2]),
    )


def not_comparable_row(title: str, base: float | None, candidate: float | None) -> DifferenceRow:
    """Return the row of the table for two numbers that cannot be compared."""
    return DifferenceRow(
        title=title,
        base=number(base),
        candidate=number(candidate),
        difference="—",
        interval="",
        level="",
        detectable="",
        count="—",
        meaning=_meaning("not comparable"),
        strip=None,
    )


def check_row(compared: ComparedCheck, anchor: str) -> DifferenceRow:
    """Return the row of the table for a check.

    Args:
        compared: The check in both runs.
        anchor: The fragment identifier of its instances; "" if none are shown.
    """
    before, after = compared.base, compared.candidate
    paired = compared.paired
    row = difference_row(paired) if paired else not_comparable_row(after.title, before.value, after.value)
    return replace(
        row,
        title=after.title,
        id=after.check,
        anchor=anchor,
        role=_role(compared),
        verdicts=(verdict_view(before), verdict_view(after)),
        changed=verdict_changed(compared),
        reason=compared.reason,
        warning=compared.warning,
    )


def _role(compared: ComparedCheck) -> str:
    roles = ["gate" if one.severity == "gate" else "informational" for one in (compared.base, compared.candidate)]
    return roles[0] if roles[0] == roles[1] else f"{roles[0]} → {roles[1]}"


def verdict_changed(compared: ComparedCheck) -> bool:
    """Return whether the verdict or the role of a check differs between the runs."""
    return compared.base.verdict != compared.candidate.verdict or (
        compared.base.severity != compared.candidate.severity
    )


def verdict_view(record: CheckRecord) -> VerdictView:
    """Return the verdict of a case as text."""
    verdict = record.verdict
    return VerdictView(css=verdict, name=VERDICT_NAMES[verdict], symbol=VERDICT_SYMBOLS[verdict])


def _meaning(meaning: str) -> VerdictView:
    name, symbol, css = MEANINGS[meaning]
    return VerdictView(css=css, name=name, symbol=symbol)


def signed(value: float | None, places: int = FEWEST_DECIMALS) -> str:
    """Format a difference with its sign."""
    text = number(value, digits=places)
    return f"+{text}" if value is not None and value > 0 else text


def interval_of(paired: PairedValue) -> str:
    """Format the interval of a difference. The text is "" if there is no interval."""
    if paired.interval is None:
        return ""
    low, high = paired.interval.low, paired.interval.high
    places = decimals([low, high])
    return f"{signed(low, places)} to {signed(high, places)}"
