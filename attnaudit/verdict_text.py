"""Describe the record of a case in words. A record holds the result of one check on one model and one data set.

The terminal, JUnit, Markdown and HTML reports all use these functions. Their results depend only on the record.
"""

from __future__ import annotations

import math
import re

from attnaudit.formatting import decimals, number, plain_number, plural, sentence, terminal_safe, threshold
from attnaudit.records import CheckRecord, Interval, Planning, Reference, Requirement
from attnaudit.records.unit_names import names_of
from attnaudit.statistics.verdict import MINIMUM_SHARE

#: Name of a reference value -> its name in reports and in the terminal. All others are shown as they are.
DISPLAYED_NAMES = {
    "gradient_loo": "gradient vs. leave-one-out",
    "signed_loo": "order by signed leave-one-out",
    "label shuffle": "shuffled outputs",
}
#: If the detectable change is larger than this multiple of the width of the interval, the values spread more near the
#: threshold than in the sample. With the same spread, it is about as large as the interval is wide.
FAR_LARGER = 2
#: A detectable change that is not larger than this is a rounding error: all values are equal.
NO_DISTANCE = 1e-12
#: The number of worst instances that a failure message shows.
INSTANCES_IN_MESSAGE = 3


def digits(record: CheckRecord) -> int:
    """Return the number of decimals, from 3 to 6, of the value and its interval.

    It distinguishes the bounds of the interval from each other, and all of these numbers from the threshold.
    """
    limit = record.requirement.value if record.requirement else None
    bounds = [] if record.interval is None else [record.interval.low, record.interval.high]
    return max(decimals(bounds, limit), decimals([] if record.value is None else [record.value], limit))


def headline(record: CheckRecord) -> str:
    """Return the first line of a failure message: the value, its interval, the threshold and the number of instances.

    An example is "mean τ-b 0.213 [0.198, 0.229], required at least 0.300, n=2,026 (12 undefined)". If a case is
    inconclusive only because of the wider interval that decides failures, the line contains this interval as well. If
    the verdict is undefined, it contains the most frequent reason why instances have no value.
    """
    places = digits(record)
    if record.value is None:
        reason = record.comparison.not_comparable if record.comparison else ""
        text = f"{record.value_name}{': not comparable' if reason else ' undefined'}"
    else:
        text = f"{record.value_name} {plain_number(record.value, places)}"
        text += f" {_brackets(record.interval, places)}" if record.interval else " [no interval]"
        text += _wider_brackets(record)
    if record.requirement is None:
        text += ", no threshold"
    else:
        limit = record.requirement
        text += f", required {_direction(limit)} {_plain_limit(limit, places)}"
        text += f" ({limit.expression})" if limit.expression else ""
    text += f", n={record.n_defined:,}"
    if record.n == record.n_defined:
        return text
    why, all_of_them = _most_frequent_reason(record)
    because = f"{':' if all_of_them else ', most often:'} {why}" if why and record.verdict == "undefined" else ""
    return f"{text} ({record.n - record.n_defined:,} undefined{because})"


def reason_in_full(record: CheckRecord) -> str:
    """Return the reason for the verdict, as a clause.

    If the verdict is undefined because too few instances have a value, the most frequent reason for this is added.
    """
    why, all_of_them = _most_frequent_reason(record)
    few = record.n_defined < MINIMUM_SHARE * record.n and not record.unseen_mixers
    if record.verdict != "undefined" or not why or not few:
        return record.reason
    return f"{record.reason}{': ' if all_of_them else '; the most frequent reason is: '}{why}"


def exceeds_margin(record: CheckRecord) -> bool:
    """Return whether the whole interval shows that the model is better than its baseline by more than the margin.

    Only a paired gate compares the model with a baseline. For any other check, the result is False.
    """
    limit, interval = record.requirement, record.interval
    if record.comparison is None or limit is None or interval is None:
        return False
    return interval.low > -limit.value if limit.direction == "at_least" else interval.high < -limit.value


def failure_message(record: CheckRecord) -> str:
    """Return the message that pytest shows for a failed case.

    The lines are, in this order: the headline; the meaning of the value in words; the verdict with its reason; the
    note; the number of instances that would decide an inconclusive case; the smallest change that the check detects;
    the intervals; the reasons why instances have no value; the references; and the worst instances. Lines that do not
    apply are left out.
    """
    lines = [headline(record), record.in_words, f"{record.verdict}: {record.reason}."]
    lines.append(f"note: {record.note}." if record.note else "")
    lines += [planned(record), detected(record) if record.verdict == "inconclusive" else ""]
    if record.interval is not None:
        interval = _brackets(record.interval, digits(record))
        lines.append(f"{interval} is the {record.interval.level} interval ({record.interval.method}).")
    lines.append(failure_rule(record))
    lines += [_without_value(reason, count) for reason, count in record.undefined.items()]
    lines += [
        f"{reference_name(record, reference)}: "
        f"{'undefined' if reference.value is None else plain_number(reference.value)} ({reference.meaning})"
        for reference in record.references
    ]
    lines = [line for line in lines if line]
    if record.worst:
        unit = names_of(record.unit_names).unit
        values = f"values of “{record.distribution.label}”" if record.distribution else "values"
        lines.append(f"Instances with the {record.worst_first} {values}; «» marks the most attended {unit}:")
        lines += [
            f"  {ranked.instance}  {plain_number(ranked.value)}  {ranked.tokens}"
            for ranked in record.worst[:INSTANCES_IN_MESSAGE]
        ]
    return "\n".join(terminal_safe(line) for line in lines)  # line by line, so that no text can add a line


def reference_name(record: CheckRecord, reference: Reference) -> str:
    """Return the name of a reference value as the terminal shows it: in words, with the name of the rows or units.

    The name stays unchanged if the threshold refers to it.

    Examples:
        The name "another_text" becomes "another text" or, for a model that reads bags, "another bag".
    """
    expression = record.requirement.expression if record.requirement is not None else None
    if expression and re.search(rf"\b{re.escape(reference.name)}\b", expression):
        return reference.name
    return names_of(record.unit_names).named(displayed_name(reference.name))


def displayed_name(name: str) -> str:
    """Return the name of a reference value in words.

    Examples:
        >>> displayed_name("largest_possible")
        'largest possible'
    """
    return DISPLAYED_NAMES.get(name, name.replace("_", " "))


def failure_rule(record: CheckRecord) -> str:
    """Return a sentence that says when the check fails. It is "" if one interval decides both passes and failures."""
    wider, limit = record.fail_interval, record.requirement
    if wider is None or limit is None or record.interval is None or wider == record.interval:
        return ""
    places = decimals((wider.low, wider.high), limit.value)
    side = "below" if limit.direction == "at_least" else "above"
    return (
        f"The check fails only if its whole {wider.level} interval, {_brackets(wider, places)}, is {side} "
        f"{_plain_limit(limit, places)}. This interval is wider than the {record.interval.level} "
        f"interval, because {plural(record.gated, 'check')} can block this release."
    )


def verdict_sentence(record: CheckRecord) -> str:
    """Return the reason for the verdict as a sentence, with the interval and the threshold if they exist."""
    if record.requirement is None or record.verdict == "undefined":
        return sentence(reason_in_full(record))
    if record.interval is None:
        return sentence(f"{record.reason}; the check requires {required_words(record.requirement)}")
    facts = [f"the {record.interval.level} interval runs from {interval_words(record)}"]
    wider = record.fail_interval if record.verdict == "fail" else wider_interval_that_decides(record)
    if wider is not None and wider != record.interval:
        facts.append(f"the {wider.level} interval from {interval_range(wider, digits(record))}")
    return sentence(f"{record.reason}: {', '.join(facts)}, and the check requires {required_words(record.requirement)}")


def planned(record: CheckRecord) -> str:
    """Return a sentence with the number of instances that would decide an inconclusive case.

    The result is "" if the record contains no such estimate.
    """
    return sentence(_plan(record.planning, record.n_defined)) if record.planning is not None else ""


def detected(record: CheckRecord) -> str:
    """Return a sentence with the smallest change that the case detects, and a warning if the sample is too small.

    The result is "" if the record does not contain this change.
    """
    change, limit = record.detectable_change, record.requirement
    if change is None or limit is None:
        return ""
    required, wrong = ("above", "below") if limit.direction == "at_least" else ("below", "above")
    distances = ((change.to_fail, "fails", wrong), (change.to_pass, "passes", required))
    parts = [
        f"{verb} if the true value is at least {_two_digits(distance)} {side} the threshold"
        for distance, verb, side in distances
        if distance is not None and distance > NO_DISTANCE
    ]
    text = f"With {change.power:.0%} probability, the check {', and '.join(parts)}." if parts else ""
    return " ".join(filter(None, (text, _spread_at_threshold(record) if parts else "", power_warning(record))))


def _spread_at_threshold(record: CheckRecord) -> str:
    """Return a sentence if the detectable change is far larger than the interval is wide; "" otherwise.

    A reader would take the one for an error of the other.
    """
    change, interval = record.detectable_change, record.interval
    if change is None or interval is None:
        return ""
    if max(change.to_fail or 0.0, change.to_pass or 0.0) <= FAR_LARGER * (interval.high - interval.low):
        return ""
    rows = names_of(record.unit_names).rows
    return (
        f"These distances apply to true values near the threshold, where the {rows} differ more from each other than "
        "in this sample."
    )


def power_warning(record: CheckRecord) -> str:
    """Return a sentence that says why the sample is too small for the threshold.

    It is "" if the sample is large enough, or if the case passed or failed, because its interval then decides.
    """
    if record.verdict in ("pass", "fail"):
        return ""
    change = record.detectable_change
    rows = names_of(record.unit_names).rows
    return sentence(f"audit more {rows}: {change.warning}") if change is not None and change.warning else ""


def defined_sentence(record: CheckRecord) -> str:
    """Return a sentence with the number of instances that have a value; "" if the only instance has a value."""
    if record.n_defined == record.n:
        return f"All {plural(record.n, 'instance')} have a value." if record.n > 1 else ""
    has = "has" if record.n_defined == 1 else "have"
    return f"{record.n_defined:,} of {plural(record.n, 'instance')} {has} a value."


def requirement_symbol(requirement: Requirement) -> str:
    """Return a threshold with "≥" or "≤", such as "≥ 0.30", or "≥ 0.201 (floor + 0.2)" for a relative threshold."""
    return ("≥ " if requirement.direction == "at_least" else "≤ ") + _limit(requirement)


def required_words(requirement: Requirement) -> str:
    """Return a threshold in words, such as "at least 0.30"."""
    return f"{_direction(requirement)} {_limit(requirement)}"


def interval_words(record: CheckRecord) -> str:
    """Return the interval of a record, such as "0.199 to 0.226"; an em dash if it has none."""
    return "—" if record.interval is None else interval_range(record.interval, digits(record))


def interval_range(interval: Interval, places: int) -> str:
    """Return the bounds of an interval with `places` decimals, such as "0.199 to 0.226"."""
    return f"{number(interval.low, digits=places)} to {number(interval.high, digits=places)}"


def wider_interval_that_decides(record: CheckRecord) -> Interval | None:
    """Return `fail_interval` if a case is inconclusive only because this interval contains the threshold; else None."""
    interval, wider, limit = record.interval, record.fail_interval, record.requirement
    if record.verdict != "inconclusive" or interval is None or wider is None or limit is None:
        return None
    missed = interval.high < limit.value if limit.direction == "at_least" else interval.low > limit.value
    return wider if missed and wider.low <= limit.value <= wider.high else None


def _most_frequent_reason(record: CheckRecord) -> tuple[str, bool]:
    """Return why most of the instances without a value have none, and whether this is the reason for all of them.

    The reason is "" if the record contains none, or if it says instead why two models cannot be compared.
    """
    if not record.undefined or (record.comparison and record.comparison.not_comparable):
        return "", True
    return max(record.undefined, key=record.undefined.__getitem__), len(record.undefined) == 1


def _wider_brackets(record: CheckRecord) -> str:
    wider, limit = wider_interval_that_decides(record), record.requirement
    if wider is None or limit is None:
        return ""
    return f" ({wider.level} {_brackets(wider, decimals((wider.low, wider.high), limit.value))})"


def _direction(requirement: Requirement) -> str:
    return requirement.direction.replace("_", " ")


def _limit(requirement: Requirement) -> str:
    """Return a threshold as it was written. For a relative threshold, return its mean and the expression."""
    if requirement.expression is None:
        return threshold(requirement.value)
    return f"{number(requirement.value)} ({requirement.expression})"


def _plain_limit(requirement: Requirement, places: int) -> str:
    """Return a threshold in ASCII with `places` decimals.

    A threshold that was given as a number is written as in the policy, because rounding could change it.
    """
    rounded = plain_number(requirement.value, places)
    exact = "e" not in rounded and float(rounded.replace(",", "")) == requirement.value
    if requirement.expression is not None or exact:
        return rounded
    return threshold(requirement.value).replace("−", "-")


def _brackets(interval: Interval, places: int) -> str:
    return f"[{plain_number(interval.low, places)}, {plain_number(interval.high, places)}]"


def _without_value(reason: str, count: int) -> str:
    return f"{plural(count, 'instance')} {'has' if count == 1 else 'have'} no value: {reason}."


def _plan(planning: Planning, audited: int) -> str:
    """Return a clause with the number of instances that would decide the case, and the range of this number.

    Args:
        planning: The estimate. No number in it is smaller than `audited`.
        audited: The number of audited instances that have a value.
    """
    count, low, high = planning.instances, planning.low, planning.high
    if count is None:
        least = f", but at least {_rounded_up(low)}" if low is not None and low > audited else ""
        return f"the value is too close to the threshold to estimate how many instances would decide it{least}"
    if count <= audited:
        more = f"slightly more than the {audited:,} audited instances would probably decide it"
        if high is None:
            return f"{more}, or many more"
        return f"{more} (up to {_rounded_up(high)})" if high > audited else more
    if low == count == high:
        return f"{_rounded_up(count)} instances would probably decide it"
    upper = _rounded_up(high) if high is not None else ""
    if low is not None and low <= audited:
        span = f"up to {upper}" if upper else "without an upper limit"
    else:
        lower = _rounded_up(low or count)
        span = f"{lower} to {upper}" if upper else f"at least {lower}, without an upper limit"
    return f"about {_rounded_up(count)} instances would probably decide it ({span})"


def _two_digits(value: float) -> str:
    """Format a positive number with two significant digits."""
    return plain_number(value, max(0, 1 - math.floor(math.log10(value)))) if value > 0 else "0"


def _rounded_up(count: int) -> str:
    """Round up to two significant digits, because the estimate is not more precise."""
    step = 10 ** max(0, len(str(count)) - 2)
    return f"{math.ceil(count / step) * step:,}"
