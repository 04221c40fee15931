"""Decide a case. A case is one check of one model on one data set.

A decision contains the intervals, the verdict, and the smallest change that the case detects. If the case is
inconclusive, it also contains the number of instances that would decide it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.records import (
    DetectableChange,
    Interval,
    Planning,
    Requirement,
    SamplingError,
    Severity,
    VerdictName,
)
from attnaudit.statistics.detectable_change import detectable_change
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.sample_size import plan
from attnaudit.statistics.verdict import MINIMUM_DEFINED, MINIMUM_SHARE, decide, fail_confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict on a value, and the intervals that decided it.

    Attributes:
        verdict: "pass", "fail", "inconclusive", "undefined" or "informational".
        reason: The reason for the verdict, as a clause without a full stop.
        interval: The interval at the check's confidence; None if there is none.
        fail_interval: The interval that decides failures (see `fail_confidence`); None without a threshold or interval.
        planning: How many instances would decide an inconclusive case. None for any other verdict, without a threshold
            or an interval, if more instances would not narrow the interval, or if most instances repeat others.
        sampling_error: How much the value varies between samples; None without an interval.
        detectable_change: The smallest change that the case detects; None without a threshold or an interval, or if too
            few instances have a value for a verdict.
        coverage_warning: Why the interval may be too narrow; "" if there is no reason to suspect it.
    """

    verdict: VerdictName
    reason: str
    interval: Interval | None
    fail_interval: Interval | None
    planning: Planning | None
    sampling_error: SamplingError | None
    detectable_change: DetectableChange | None
    coverage_warning: str


def decision(
    *,
    value: float | None,
    estimate: IntervalEstimate | None,
    requirement: Requirement | None,
    n: int,
    n_defined: int,
    n_different: int | None = None,
    confidence: float,
    gated: int,
    no_interval: str = "",
    bounds: tuple[float, float] = (-math.inf, math.inf),
    no_difference: float | None = None,
    severity: Severity = "gate",
    unseen_mixers: Sequence[str] = (),
) -> Decision:
    """Reach the verdict on a case, and compute its intervals and its planning.

    Args:
        value: The statistic; None if it is undefined.
        estimate: The interval estimate of the value; None if there is none.
        requirement: The threshold; None if the check has none.
        n: Number of audited instances.
        n_defined: Number of instances that have a value.
        n_different: Number of different instances among them; None if there are at least 30.
        confidence: The confidence of the check, at which a pass is decided.
        gated: Number of gates in the policy. The confidence of failures is corrected for this number; 1 means no
            correction.
        no_interval: Why there is no interval, as a clause; "" means that there are too few independent sources.
        bounds: The lowest and the highest possible value.
        no_difference: The value to which the threshold adds a margin (see `Check.no_difference`), or
            None.
        severity: "gate", or "report" for an informational check.
        unseen_mixers: The modules that the reading leaves out (see `CheckRecord.unseen_mixers`).
    """
    if value is None:
        estimate = None
    corrected = fail_confidence(confidence, gated)
    interval = estimate.at(confidence) if estimate else None
    fail_interval = estimate.at(corrected) if estimate and requirement else None
    verdict, reason = decide(
        value=value,
        interval=interval,
        requirement=requirement,
        n=n,
        n_defined=n_defined,
        n_different=n_different,
        fail_interval=fail_interval,
        no_interval=no_interval,
        severity=severity,
        unseen_mixers=unseen_mixers,
    )
    planning = None
    repeats = n_defined >= MINIMUM_DEFINED and n_different is not None  # then n says little about the data
    narrows = estimate is not None and estimate.narrows_with_n and not repeats
    if verdict == "inconclusive" and requirement and estimate and narrows and value is not None:
        planning = plan(
            value=value,
            estimate=estimate,
            requirement=requirement,
            confidence=confidence,
            fail_confidence=corrected,
            n=n_defined,
        )
    detectable = None
    # A detectable change refers to a fixed number of rows. A gate that stops as soon as it is decided has no such
    # number.
    fixed = interval is not None and not interval.is_sequence
    enough = n_defined >= max(MINIMUM_DEFINED, MINIMUM_SHARE * n) and not repeats
    if value is not None and estimate and requirement and enough and fixed:
        detectable = detectable_change(
            value=value,
            estimate=estimate,
            requirement=requirement,
            confidence=confidence,
            fail_confidence=corrected,
            bounds=bounds,
            no_difference=no_difference,
        )
    return Decision(
        verdict=verdict,
        reason=reason,
        interval=interval,
        fail_interval=fail_interval,
        planning=planning,
        sampling_error=_sampling_error(estimate) if estimate else None,
        detectable_change=detectable,
        coverage_warning=estimate.coverage_warning if estimate else "",
    )


def _sampling_error(estimate: IntervalEstimate) -> SamplingError:
    rows = estimate.share.rows if estimate.share else None
    return SamplingError(
        standard_error=estimate.error,
        slope=estimate.slope,
        share_rows=rows,
        narrows_with_rows=estimate.narrows_with_n,
    )
