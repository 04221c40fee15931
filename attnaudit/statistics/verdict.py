"""The rule that turns a value, its intervals and a threshold into a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from attnaudit.formatting import left_out, plural
from attnaudit.records import CheckRecord, InconclusiveRule, Interval, Requirement, Rounding, Severity, VerdictName

#: A pass or a fail requires at least this many different instances with a value.
MINIMUM_DEFINED = 30
#: The verdict is undefined if a smaller share of the instances has a value.
MINIMUM_SHARE = 0.8


def decide(
    *,
    value: float | None,
    interval: Interval | None,
    requirement: Requirement | None,
    n: int,
    n_defined: int,
    n_different: int | None = None,
    fail_interval: Interval | None = None,
    no_interval: str = "",
    severity: Severity = "gate",
    unseen_mixers: Sequence[str] = (),
    rounding: Rounding | None = None,
) -> tuple[VerdictName, str]:
    """Reach the verdict on the value of a check.

    * "pass": the whole `interval` is on the required side of the threshold; a bound may equal the threshold.
    * "fail": the whole `fail_interval` is on the wrong side of the threshold.
    * "undefined": there is no value, fewer than 80% of the instances have a value, or the threshold of a gate is
      undefined. A gate is also undefined in two further cases. First, the reading (the attention shown to people)
      leaves out modules of the model that mix tokens, so the value does not answer the question. Second, the model is
      in half precision, and rounding could change the verdict.
    * "informational": the check is informational and has no threshold.
    * "inconclusive": none of the above. For example, the threshold lies inside the interval, there is no interval, or
      fewer than 30 different instances have a value.

    Passes need no correction for the number of gates, because a release passes by mistake only if every check that
    should block it passes by mistake (an intersection–union test). Failures need a correction, because a single
    mistaken failure blocks a release (see `fail_confidence`).

    Args:
        value: The statistic; None if it is undefined.
        interval: The interval at the check's confidence; None if there is none.
        requirement: The threshold; None if the check has none, or if a relative threshold is undefined on the data.
        n: Number of audited instances.
        n_defined: Number of instances that have a value.
        n_different: Number of different instances among them; None if there are at least 30 (see `CheckRecord`).
        fail_interval: The interval that decides failures; `interval` by default.
        no_interval: Why there is no interval, as a clause; "" means that there are too few independent sources.
        severity: "gate", or "report" for an informational check.
        unseen_mixers: The modules that the reading leaves out (see `CheckRecord.unseen_mixers`).
        rounding: How much rounding changes the value (see `CheckRecord.rounding`).

    Returns:
        The verdict, and the reason for it as a clause without a full stop.
    """
    if unseen_mixers and severity == "gate":
        return "undefined", f"{left_out(unseen_mixers)}, so the reading of attention is incomplete"
    if n_defined == 0:
        return "undefined", "no instance has a value"
    if value is None:
        return "undefined", "the statistic is undefined on this data"
    if n_defined < MINIMUM_SHARE * n:
        return "undefined", f"only {n_defined:,} of {n:,} instances have a value, fewer than {MINIMUM_SHARE:.0%}"
    if requirement is None:
        if severity == "gate":
            return "undefined", "the threshold is undefined on this data"
        return "informational", "there is no threshold, so the value is reported but not judged"
    if n_defined < MINIMUM_DEFINED:
        return "inconclusive", f"fewer than {MINIMUM_DEFINED} instances have a value, too few for a verdict"
    if n_different is not None and n_different < MINIMUM_DEFINED:
        return "inconclusive", (
            f"{plural(n_defined, 'instance')} have a value, but only {n_different} of them are different, and a "
            f"verdict needs at least {MINIMUM_DEFINED} different ones"
        )
    if interval is None:
        return "inconclusive", no_interval or "there are too few independent sources for an interval"
    at_least = requirement.direction == "at_least"
    required_side, wrong_side = ("at or above", "below") if at_least else ("at or below", "above")
    if severity == "gate" and rounding is not None:
        reason = _rounding_decides(interval, fail_interval or interval, requirement, rounding)
        if reason:
            return "undefined", reason
    if interval.low >= requirement.value if at_least else interval.high <= requirement.value:
        return "pass", f"the whole {interval.level} interval is {required_side} the required value"
    wider = fail_interval or interval
    if wider.high < requirement.value if at_least else wider.low > requirement.value:
        return "fail", f"the whole {wider.level} interval is {wrong_side} the required value"
    if interval.high < requirement.value if at_least else interval.low > requirement.value:
        return "inconclusive", (
            f"the whole {interval.level} interval is {wrong_side} the required value, but because the policy has "
            f"several gates, a check fails only if its whole {wider.level} interval is on that side"
        )
    return "inconclusive", f"the required value lies inside the {interval.level} interval"


def decide_again(record: CheckRecord) -> tuple[VerdictName, str]:
    """Reach the verdict on the value that a record contains, and the reason for it (see `decide`)."""
    return decide(
        value=record.value,
        interval=record.interval,
        requirement=record.requirement,
        n=record.n,
        n_defined=record.n_defined,
        n_different=record.n_different,
        fail_interval=record.fail_interval,
        severity=record.severity,
        unseen_mixers=record.unseen_mixers,
        rounding=record.rounding,
    )


def _rounding_decides(interval: Interval, wider: Interval, requirement: Requirement, rounding: Rounding) -> str:
    """Return why the verdict may depend on rounding; "" if it does not.

    Both intervals are moved by the change that rounding causes, in both directions. A pass must stay a pass, and a
    verdict that is not a fail must not become a fail. A fail blocks the release in any case.

    Args:
        interval: The interval that decides a pass.
        wider: The interval that decides a fail.
        requirement: The threshold.
        rounding: How much rounding changes the value.
    """
    sign = 1 if requirement.direction == "at_least" else -1
    lowest, highest = min(sign * interval.low, sign * interval.high), max(sign * wider.low, sign * wider.high)
    required, precision, change = sign * requirement.value, rounding.precision, rounding.change
    if highest < required:
        return ""
    if change is None:
        return f"the model was audited in {precision}, and the effect of rounding on the value is unknown"
    if highest - change >= required and (lowest < required or lowest - change >= required):
        return ""
    return f"rounding in {precision} changes the value by {change:.2g}, which could change the verdict"


def fail_confidence(confidence: float, gated: int) -> float:
    """Return the confidence at which failures are decided. It has a Bonferroni correction for the number of gates.

    For one model on one data set, assume that the true value of every gate meets its threshold. Then the probability
    that at least one gate fails is at most (1 - confidence) / 2.

    Args:
        confidence: The confidence of the check.
        gated: Number of gates in the policy.
    """
    return 1 - (1 - confidence) / max(1, gated)


def blocks(verdict: VerdictName, *, severity: Severity, inconclusive: InconclusiveRule) -> bool:
    """Return whether a verdict blocks the release, that is, whether its pytest case fails.

    Args:
        verdict: The verdict on the case.
        severity: "gate", or "report" for an informational check, which never blocks.
        inconclusive: The effect of an inconclusive gate: "fail" blocks the release, "warn" and "pass" do not.
    """
    if severity == "report" or verdict in ("pass", "informational"):
        return False
    return verdict in ("fail", "undefined") or inconclusive == "fail"
