"""The rule by which a value, its interval and a threshold become a verdict."""

from __future__ import annotations

from attnaudit.records import InconclusiveRule, Interval, Requirement, Severity, VerdictName

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
    no_interval: str = "",
) -> tuple[VerdictName, str]:
    """Return the verdict and its reason.

    * undefined: there is no value, or fewer than 80% of the instances have one.
    * inconclusive: fewer than 30 instances have a value, there is no interval, the threshold lies inside the interval,
      or there is no threshold.
    * pass: the whole interval, bounds included, is on the required side of the threshold.
    * fail: the whole of `fail_interval` is on the other side.

    A release passes when every gated check passes. A false pass of the release needs a false pass of each check that
    should not have passed, so passes need no correction for the number of checks. A single false failure blocks the
    release, so failures are corrected (see `fail_confidence`).

    Args:
        value: the statistic; None where it is undefined.
        interval: its interval at the check's own confidence.
        requirement: the threshold; None for an informational check.
        n: the number of audited instances.
        n_defined: the number of instances that have a value.
        fail_interval: the interval that a failure needs; by default `interval`.
        no_interval: why there is no interval, where that is not for want of sources.

    Returns:
        The verdict, and its reason as a clause without a full stop.
    """
    if n_defined == 0:
        return "undefined", "no instance has a value"
    if value is None:
        return "undefined", "the statistic is undefined on this data"
    if n_defined < MINIMUM_SHARE * n:
        return "undefined", f"only {n_defined:,} of {n:,} instances have a value, fewer than {MINIMUM_SHARE:.0%}"
    if requirement is None:
        return "inconclusive", "there is no threshold, so the value is reported and not judged"
    if n_defined < MINIMUM_DEFINED:
        return "inconclusive", f"fewer than {MINIMUM_DEFINED} instances have a value, too few for a verdict"
    if interval is None:
        return "inconclusive", no_interval or "there are too few independent sources for an interval"
    at_least = requirement.direction == "at_least"
    required_side, wrong_side = ("at or above", "below") if at_least else ("at or below", "above")
    if interval.low >= requirement.value if at_least else interval.high <= requirement.value:
        return "pass", f"the whole {interval.level} interval is {required_side} the required value"
    wider = fail_interval or interval
    if wider.high < requirement.value if at_least else wider.low > requirement.value:
        return "fail", f"the whole {wider.level} interval is {wrong_side} the required value"
    if interval.high < requirement.value if at_least else interval.low > requirement.value:
        return "inconclusive", (
            f"the whole {interval.level} interval is {wrong_side} the required value, but among several gated checks "
            f"a failure also needs the whole {wider.level} interval there"
        )
    return "inconclusive", f"the required value lies inside the {interval.level} interval"


def fail_confidence(confidence: float, gated: int) -> float:
    """Return the confidence at which one of `gated` checks may fail (Bonferroni).

    With it, a policy whose thresholds are all met raises a false failure with a chance of at most (1 - confidence) / 2.
    """
    return 1 - (1 - confidence) / max(1, gated)


def blocks(verdict: VerdictName, *, severity: Severity, inconclusive: InconclusiveRule) -> bool:
    """Return whether the pytest case must fail: a gate that failed, is undefined, or is inconclusive and fails then."""
    if severity == "report" or verdict == "pass":
        return False
    return verdict in ("fail", "undefined") or inconclusive == "fail"
