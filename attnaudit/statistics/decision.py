"""What a check's value and its interval decide: verdict, reason, intervals, and a plan where they decide nothing."""

from __future__ import annotations

from dataclasses import dataclass

from attnaudit.records import Interval, Planning, Requirement, VerdictName
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.sample_size import plan
from attnaudit.statistics.verdict import decide, fail_confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict on a value.

    Attributes:
        verdict: "pass", "fail", "inconclusive" or "undefined".
        reason: why, as a clause without a full stop.
        interval: at the check's own confidence; None where there is none.
        fail_interval: at the confidence that a failure needs; None without a threshold.
        planning: how many instances would decide an inconclusive case; None where no figure can be given.
        coverage_warning: why the interval may be too narrow; "" where nothing speaks against it.
    """

    verdict: VerdictName
    reason: str
    interval: Interval | None
    fail_interval: Interval | None
    planning: Planning | None
    coverage_warning: str


def decision(
    *,
    value: float | None,
    estimate: IntervalEstimate | None,
    requirement: Requirement | None,
    n: int,
    n_defined: int,
    confidence: float,
    gated: int,
    no_interval: str = "",
) -> Decision:
    """Decide a case.

    Args:
        value: the statistic; None where it is undefined.
        estimate: its interval at any confidence.
        requirement: the threshold; None for an informational check.
        n: the number of audited instances.
        n_defined: the number of instances that have a value.
        confidence: the confidence that a pass needs.
        gated: how many gated checks the policy has, for which a failure is corrected; 1 for no correction.
        no_interval: why there is no interval, where that is not for want of sources.
    """
    if value is None:
        estimate = None
    for_failure = fail_confidence(confidence, gated)
    interval = estimate.at(confidence) if estimate else None
    fail_interval = estimate.at(for_failure) if estimate and requirement else None
    verdict, reason = decide(
        value=value,
        interval=interval,
        requirement=requirement,
        n=n,
        n_defined=n_defined,
        fail_interval=fail_interval,
        no_interval=no_interval,
    )
    planning = None
    if verdict == "inconclusive" and requirement and estimate and estimate.narrows and value is not None:
        planning = plan(
            value=value,
            estimate=estimate,
            requirement=requirement,
            confidence=confidence,
            fail_confidence=for_failure,
            n=n_defined,
        )
    return Decision(
        verdict=verdict,
        reason=reason,
        interval=interval,
        fail_interval=fail_interval,
        planning=planning,
        coverage_warning=estimate.caution if estimate else "",
    )
