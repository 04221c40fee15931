"""Thresholds that are relative to the references of a check, such as "shuffled + 0.2"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.evidence import Evidence, count_reasons
from attnaudit.errors import CheckError
from attnaudit.instances import Instance
from attnaudit.records import Direction, Requirement
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate, bracket, shifted
from attnaudit.statistics.intervals import mean_interval
from attnaudit.statistics.threshold import Expression


def relative_to_references(
    evidence: Evidence,
    direction: Direction,
    expression: Expression,
    *,
    instances: Sequence[Instance],
    bounds: tuple[float, float],
    confidence: float,
    generator: Callable[[], np.random.Generator],
    check: str,
) -> tuple[Evidence, Requirement | None]:
    """Compare the values of a check with a threshold that is computed from its references.

    Such a threshold is itself an estimate, so what decides is the mean paired difference between values and threshold
    over the instances that have both. Value and interval are taken over those instances, and the interval of the
    difference is shifted by the number that the threshold came to.

    Args:
        evidence: what the check found.
        direction: "at_least" or "at_most".
        expression: the threshold.
        instances: the n instances of the evidence.
        bounds: the smallest and largest value that the check and its references can have.
        confidence: the confidence of the interval.
        generator: makes the random numbers of one interval.
        check: the name of the check, for the error message.

    Returns:
        The evidence on the instances that have both, and the threshold as a number; None where no instance has both.

    Raises:
        CheckError: if the evidence holds no values per instance of the check or of a reference.
    """
    if evidence.values is None or not set(expression.weights) <= set(evidence.reference_values):
        raise CheckError(
            f"{check}: '{expression.text}' needs values per instance of the check and of its references, but the "
            "measurements hold none."
        )
    limit = expression.of(evidence.reference_values)
    both = evidence.defined & ~np.isnan(evidence.values) & ~np.isnan(limit)
    if not both.any():
        return replace(evidence, value=None, defined=both), None
    threshold = float(limit[both].mean())
    groups = Groups.of(instances, both)
    low, high = bounds
    least, most = expression.range(low, high)

    def difference(values: Floats) -> IntervalEstimate | None:
        return mean_interval(
            values - limit,
            groups,
            confidence=confidence,
            generator=generator(),
            bounds=(low - most, high - least),
        )

    paired = difference(evidence.values)
    if evidence.upper_bounds is not None and paired is not None:
        above = difference(np.fmax(evidence.values, evidence.upper_bounds))
        paired = bracket(paired, above) if above else paired
    undefined = count_reasons(("a reference of the threshold is undefined", evidence.defined & ~both))
    return (
        replace(
            evidence,
            value=float(evidence.values[both].mean()),
            interval=shifted(paired, threshold, f"paired difference to {expression.text}") if paired else None,
            defined=both,
            undefined=evidence.undefined | undefined,
        ),
        Requirement(direction=direction, value=threshold, expression=expression.text),
    )
