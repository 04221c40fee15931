"""What a check's record says in words: rendered from the record alone, for terminal, JUnit, Markdown and HTML alike."""

from __future__ import annotations

import math

from attnaudit.formatting import decimals, number, plain_number, plural, printable, sentence, threshold
from attnaudit.records import CheckRecord, Interval, Planning, Requirement

#: How many of the worst instances a failure message shows.
INSTANCES_IN_MESSAGE = 3


def shown_verdict(record: CheckRecord) -> str:
    """Return the verdict, or "measured" for a check without a threshold, which is neither passed nor failed."""
    informational = record.requirement is None and record.verdict != "undefined" and not record.blocks
    return "measured" if informational else record.verdict


def digits(record: CheckRecord) -> int:
    """Return the number of decimals at which value and interval stay on their own side of the threshold."""
    numbers = [] if record.value is None else [record.value]
    if record.interval is not None:
        numbers += [record.interval.low, record.interval.high]
    return decimals(numbers, record.requirement.value if record.requirement else None)


def headline(record: CheckRecord) -> str:
    """Return value, interval, threshold and count in one line: the first line of a failure.

    Such as 'mean τ-b 0.213 [0.198, 0.229], required at least 0.300, n=2,026 (12 undefined)'.
    """
    places = digits(record)
    if record.value is None:
        text = f"{record.value_name} undefined"
    else:
        text = f"{record.value_name} {plain_number(record.value, places)}"
        text += f" {_brackets(record.interval, places)}" if record.interval else " [no interval]"
    if record.requirement is None:
        text += ", nothing required"
    else:
        limit = record.requirement
        text += f", required {_direction(limit)} {plain_number(limit.value, places)}"
        text += f" ({limit.expression})" if limit.expression else ""
    text += f", n={record.n_defined:,}"
    return text + (f" ({record.n - record.n_defined:,} undefined)" if record.n > record.n_defined else "")


def failure_message(record: CheckRecord) -> str:
    """Return the whole text of a failed case, as pytest shows it.

    The lines are the headline, the verdict with its reason, the note, what would decide an inconclusive case, the
    intervals, the instances without a value, the references, and the worst instances.
    """
    lines = [headline(record), f"{record.verdict}: {record.reason}."]
    if record.note:
        lines.append(f"note: {record.note}")
    if record.planning is not None:
        lines.append(f"planning: {_plan(record.planning)}.")
    if record.interval is not None:
        lines.append(f"interval: {record.interval.level} confidence, {record.interval.method}.")
    rule = failure_rule(record)
    if rule:
        lines.append(f"{rule}.")
    lines += [f"undefined: {plural(count, 'instance')}: {why}." for why, count in record.undefined.items()]
    lines += [
        f"{reference.name}: "
        f"{'undefined' if reference.value is None else plain_number(reference.value)} ({reference.meaning})"
        for reference in record.references
    ]
    if record.worst:
        lines.append(f"{record.worst_first} instances (most attended token marked):")
        lines += [
            f"  {printable(ranked.instance)}  {plain_number(ranked.value)}  {ranked.tokens}"
            for ranked in record.worst[:INSTANCES_IN_MESSAGE]
        ]
    return "\n".join(lines)


def failure_rule(record: CheckRecord) -> str:
    """Return when the check fails, where that takes a wider interval than a pass does; otherwise nothing."""
    wider, limit = record.fail_interval, record.requirement
    if wider is None or limit is None or wider == record.interval:
        return ""
    places = decimals((wider.low, wider.high), limit.value)
    side = "below" if limit.direction == "at_least" else "above"
    return (
        f"fails only if the whole {wider.level} interval {_brackets(wider, places)} is {side} "
        f"{plain_number(limit.value, places)}, because {plural(record.gated, 'check')} gate this release"
    )


def verdict_sentence(record: CheckRecord) -> str:
    """Return the reason for the verdict as a sentence, with the interval and the threshold that it compares."""
    if record.requirement is None or record.verdict == "undefined":
        return sentence(record.reason)
    if record.interval is None:
        return sentence(f"{record.reason}; the check requires {required_words(record.requirement)}")
    facts = [f"the {record.interval.level} interval runs from {interval_words(record)}"]
    if _only_the_wider_interval_decides(record) and record.fail_interval is not None:
        wider = record.fail_interval
        facts.append(f"the {wider.level} interval from {interval_range(wider, digits(record))}")
    return sentence(f"{record.reason}: {', '.join(facts)}, and the check requires {required_words(record.requirement)}")


def planned(record: CheckRecord) -> str:
    """Return what would decide an inconclusive case, as a sentence; nothing where no figure was planned."""
    return sentence(_plan(record.planning)) if record.planning is not None else ""


def defined_sentence(record: CheckRecord) -> str:
    """Return how many instances have a value, as a sentence; nothing for a statistic of one whole data set."""
    if record.n_defined == record.n:
        return f"All {plural(record.n, 'instance')} have a value." if record.n > 1 else ""
    has = "has" if record.n_defined == 1 else "have"
    return f"{record.n_defined:,} of {plural(record.n, 'instance')} {has} a value."


def requirement_symbol(requirement: Requirement) -> str:
    """Return a threshold with its sign, such as '≥ 0.30' or, of a relative one, '≥ 0.201 (shuffled + 0.2)'."""
    return ("≥ " if requirement.direction == "at_least" else "≤ ") + _limit(requirement)


def required_words(requirement: Requirement) -> str:
    """Return a threshold in words, such as 'at least 0.30'."""
    return f"{_direction(requirement)} {_limit(requirement)}"


def interval_words(record: CheckRecord) -> str:
    """Return the interval, such as '0.199 to 0.226'; an em dash where there is none."""
    return "—" if record.interval is None else interval_range(record.interval, digits(record))


def interval_range(interval: Interval, places: int) -> str:
    """Return both bounds of an interval with this number of decimals, such as '0.199 to 0.226'."""
    return f"{number(interval.low, digits=places)} to {number(interval.high, digits=places)}"


def _only_the_wider_interval_decides(record: CheckRecord) -> bool:
    """Whether the interval misses the threshold and the wider one, which a failure needs, holds it."""
    interval, wider, limit = record.interval, record.fail_interval, record.requirement
    if record.verdict != "inconclusive" or interval is None or wider is None or limit is None:
        return False
    missed = interval.high < limit.value if limit.direction == "at_least" else interval.low > limit.value
    return missed and wider.low <= limit.value <= wider.high


def _direction(requirement: Requirement) -> str:
    return requirement.direction.replace("_", " ")


def _limit(requirement: Requirement) -> str:
    """The threshold as it was written; of a relative one, the number that it came to."""
    if requirement.expression is None:
        return threshold(requirement.value)
    return f"{number(requirement.value)} ({requirement.expression})"


def _brackets(interval: Interval, places: int) -> str:
    return f"[{plain_number(interval.low, places)}, {plain_number(interval.high, places)}]"


def _plan(planning: Planning) -> str:
    count, low, high = planning.instances, planning.low, planning.high
    if count is None:
        more = f"; at least {_rounded_up(low)} instances" if low is not None else ""
        return f"the value is too close to the threshold to say how many instances would decide it{more}"
    if low == count == high:
        return f"{_rounded_up(count)} instances would decide it"
    upper = f"to {_rounded_up(high)}" if high is not None else "upwards, without a known limit"
    return f"about {_rounded_up(count)} instances would decide it ({_rounded_up(low or count)} {upper})"


def _rounded_up(count: int) -> str:
    """Two significant figures, rounded up, since the plan is no more precise than that."""
    step = 10 ** max(0, len(str(count)) - 2)
    return f"{math.ceil(count / step) * step:,}"
