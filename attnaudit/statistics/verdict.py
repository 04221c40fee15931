"""The one rule by which evidence becomes a verdict, and the words in which it is told."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from attnaudit.records import (
    CheckRecord,
    InconclusiveRule,
    Interval,
    Planning,
    Reference,
    Requirement,
    Severity,
    Shown,
    VerdictName,
)

MINIMUM_DEFINED = 30
MINIMUM_SHARE = 0.8


def decide(
    *,
    value: float | None,
    interval: Interval | None,
    requirement: Requirement | None,
    n: int,
    n_defined: int,
    fail_interval: Interval | None = None,
    missing: str = "",
) -> tuple[VerdictName, str]:
    """The verdict and its reason in words.

    undefined: no value, or fewer than 80% of the instances are defined. inconclusive: fewer than 30 are defined, there
    is no interval (missing says why), or the threshold lies inside it; also where nothing is required, since nothing is
    then concluded.
    pass: the whole interval, ends included, is on the required side. fail: the whole of `fail_interval`, by default the
    same one, is on the other. A release passes when every gated check passes, so a false pass of the release needs a
    false pass of each check that should not have passed, and no correction; but a single false failure blocks it, so
    failures are corrected for the number of gated checks (`fail_confidence`).
    """
    if value is None or n_defined == 0:
        return "undefined", "the statistic is defined on no instance" if not n_defined else "the statistic is undefined"
    if n_defined < MINIMUM_SHARE * n:
        share = f"fewer than {MINIMUM_SHARE:.0%} of the instances are defined"
        return "undefined", f"{share}, {n_defined:,} of {n:,}"
    if requirement is None:
        return "inconclusive", "no threshold was given: reported, not judged"
    if n_defined < MINIMUM_DEFINED:
        return "inconclusive", f"fewer than {MINIMUM_DEFINED} instances are defined"
    if interval is None:
        return "inconclusive", missing or "there are too few independent sources for an interval"
    at_least = requirement.direction == "at_least"
    if interval.low >= requirement.value if at_least else interval.high <= requirement.value:
        return "pass", "the whole interval is on the required side"
    side = "below" if at_least else "above"
    strict = fail_interval or interval
    if strict.high < requirement.value if at_least else strict.low > requirement.value:
        return "fail", f"the whole interval lies {side} the required value"
    if interval.high < requirement.value if at_least else interval.low > requirement.value:
        return "inconclusive", (
            f"the interval lies {side} the required value, but not that of {strict.level} confidence, "
            "which a failure needs among so many gated checks"
        )
    return "inconclusive", "the required value lies inside the interval"


def fail_confidence(confidence: float, gated: int) -> float:
    """The level at which one of `gated` checks may call a failure (Bonferroni), so that a policy whose thresholds are
    all met raises a false one with a chance of at most (1 - confidence) / 2."""
    return 1 - (1 - confidence) / max(1, gated)


def blocks(verdict: VerdictName, *, severity: Severity, inconclusive: InconclusiveRule) -> bool:
    """Whether the pytest case must fail. A check that only reports never blocks; undefined fails a gate."""
    if severity == "report" or verdict == "pass":
        return False
    return verdict in ("fail", "undefined") or inconclusive == "fail"


def decimals(numbers: Sequence[float], threshold: float | None) -> int:
    """Three, or as many as it takes (up to six) that no number is rounded onto a threshold that it is not equal to."""
    if threshold is None:
        return 3
    for digits in range(3, 6):
        if all(f"{x:.{digits}f}" != f"{threshold:.{digits}f}" for x in numbers if x != threshold):
            return digits
    return 6


def _number(x: float, digits: int) -> str:
    text = f"{x:.{digits}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def headline(
    measured: str,
    *,
    value: float | None,
    interval: Interval | None,
    requirement: Requirement | None,
    n: int,
    n_defined: int,
) -> str:
    """'mean τ-b 0.213 [0.198, 0.229], required at least 0.300, n=2,026 (12 undefined)'."""
    numbers = [] if value is None else [value]
    if interval is not None:
        numbers += [interval.low, interval.high]
    digits = decimals(numbers, requirement.value if requirement else None)
    text = f"{measured} undefined" if value is None else f"{measured} {_number(value, digits)}"
    if value is not None:
        text += (
            f" [{_number(interval.low, digits)}, {_number(interval.high, digits)}]" if interval else " [no interval]"
        )
    if requirement is None:
        text += ", nothing required"
    else:
        text += f", required {requirement.direction.replace('_', ' ')} {_number(requirement.value, digits)}"
        text += f" ({requirement.expression})" if requirement.expression else ""
    text += f", n={n_defined:,}"
    return text + (f" ({n - n_defined:,} undefined)" if n > n_defined else "")


def message(
    first: str,
    *,
    verdict: VerdictName,
    reason: str,
    interval: Interval | None,
    undefined: dict[str, int],
    references: Sequence[Reference],
    shown: Sequence[tuple[Shown, str]],
    order: str,
    note: str,
    fail_interval: Interval | None = None,
    threshold: float | None = None,
    planning: Planning | None = None,
) -> str:
    """The text of a failure: the headline, the verdict and why, references, and the worst instances with tokens."""
    lines = [first, f"{verdict}: {reason}."]
    if planning is not None:
        lines.append(f"planning: {planning.words}.")
    if interval is not None:
        lines.append(f"interval: {interval.level} confidence, {interval.method}.")
    if fail_interval is not None and fail_interval != interval:
        numbers = (fail_interval.low, fail_interval.high)
        ends = ", ".join(_number(end, decimals(numbers, threshold)) for end in numbers)
        lines.append(f"a failure needs: [{ends}], {fail_interval.level} confidence, on the wrong side.")
    lines += [f"undefined: {count:,} instances: {why}." for why, count in undefined.items()]
    lines += [
        f"{one.name}: {'undefined' if one.value is None else _number(one.value, 3)} ({one.meaning})"
        for one in references
    ]
    if note:
        lines.append(f"note: {note}")
    if shown:
        lines.append(f"{order} instances (most attended token marked):")
        lines += [f"  {printable(one.instance)}  {_number(one.value, 3)}  {tokens}" for one, tokens in shown]
    return "\n".join(lines)


def noted(record: CheckRecord, said: str) -> CheckRecord:
    """The record with one more remark, in its note and behind the verdict in its message."""
    note = "; ".join(part for part in (record.note, said) if part)
    lines = record.message.split("\n")
    own = f"note: {record.note}"
    if record.note and own in lines:
        lines[lines.index(own)] = f"note: {note}"
    else:
        lines.insert(2, f"note: {note}")
    return msgspec.structs.replace(record, note=note, message="\n".join(lines))


def printable(text: str) -> str:
    """Text of a data set without control characters, fit for a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def marked(tokens: Sequence[str], top: int | None, limit: int = 24) -> str:
    """Tokens in a row, the most attended one in «», cut to a window of `limit` around it."""
    start = max(0, min((top or 0) - limit // 2, len(tokens) - limit))
    words = [f"«{token}»" if i == top else token for i, token in enumerate(tokens)][start : start + limit]
    text = printable(" ".join(words))
    return ("… " if start else "") + text + (" …" if start + limit < len(tokens) else "")
