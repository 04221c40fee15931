"""Thresholds that are relative to the references of a check, such as "floor + 0.2"."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.evidence import Evidence, count_reasons
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Direction, Requirement
from attnaudit.statistics.interval_estimate import IntervalEstimate, bracket, shifted
from attnaudit.statistics.intervals import mean_interval
from attnaudit.statistics.threshold import Expression, parse


def validate_expression(
    text: str,
    argument: str,
    *,
    known: Sequence[str],
    bounds: tuple[float, float],
    reference_bounds: Mapping[str, tuple[float, float]],
    several_readings: str | None,
    name_in_errors: str,
) -> None:
    """Validate a threshold that is an expression.

    Args:
        text: The expression.
        argument: "at_least" or "at_most".
        known: The names of the references that the threshold may use.
        bounds: The smallest and the largest possible value of the check.
        reference_bounds: Reference name -> its smallest and largest possible value, where they differ from `bounds`.
        several_readings: The reading of the check if it stands for several readings; otherwise None.
        name_in_errors: The name of the check in error messages.

    Raises:
        CheckError: The expression is invalid, or no value can meet it.
    """
    low, high = bounds
    if several_readings is not None:
        raise CheckError(
            f"{name_in_errors}: {argument} is relative to references, but reading {several_readings!r} stands for "
            "several readings, each with its own references. Give a number, or name one layer and one head."
        )
    with contextlib.suppress(ValueError):
        float(text)
        raise CheckError(f"{name_in_errors}: {argument} is {text!r}; expected a number. Write it without quotes.")
    if not known:
        raise CheckError(
            f"{name_in_errors}: {argument} is {text!r}; expected a number, because this check has no reference that is "
            "measured on every instance."
        )
    try:
        least, most = parse(text, known).range(low, high, reference_bounds)
    except CheckError as error:
        raise CheckError(f"{name_in_errors}: {argument}: {error}") from None
    if most < low or least > high:
        raise CheckError(
            f"{name_in_errors}: {argument}={text!r} is impossible: the threshold lies between {least:.4g} and "
            f"{most:.4g}, but the value of this check lies between {low:g} and {high:.4g}."
        )


def relative_to_references(
    evidence: Evidence,
    direction: Direction,
    expression: Expression,
    *,
    measurements: Measurements,
    bounds: tuple[float, float],
    confidence: float,
    generator: Callable[[], np.random.Generator],
    name_in_errors: str,
) -> tuple[Evidence, Requirement | None]:
    """Compute a threshold from the references of a check, and prepare the evidence for the comparison.

    A threshold that depends on references is itself an estimate, with one number per instance. The verdict therefore
    depends on paired differences: the value of each instance minus its threshold. Only instances that have both are
    used. The interval of the value is the interval of the mean difference, shifted by the mean threshold.

    Args:
        evidence: What the check found.
        direction: "at_least" or "at_most".
        expression: The threshold.
        measurements: The measurements that the evidence was computed from.
        bounds: The smallest and the largest possible value, both of the check and of its references.
        confidence: The confidence of the interval.
        generator: Returns a random generator that draws the resamples. It is called once per interval.
        name_in_errors: The name of the check in error messages.

    Returns:
        The evidence on the instances that have both a value and a threshold, and the mean threshold. If there are no
        such instances, the value of the evidence and the threshold are None.

    Raises:
        CheckError: The check, or a reference that the threshold names, has no values per instance.
    """
    if evidence.values is None or not set(expression.weights) <= set(evidence.reference_values):
        raise CheckError(
            f"{name_in_errors}: the threshold '{expression.text}' needs values per instance of the check and of its "
            "references, but the measurements do not contain them."
        )
    limits = expression.of(evidence.reference_values)
    both = evidence.defined & ~np.isnan(evidence.values) & ~np.isnan(limits)
    if not both.any():
        return replace(evidence, value=None, defined=both), None
    threshold = float(limits[both].mean())
    groups = measurements.groups(both)
    low, high = bounds
    least, most = expression.range(low, high)

    def interval_of_difference(values: Floats) -> IntervalEstimate | None:
        return mean_interval(
            values - limits,
            groups,
            confidence=confidence,
            generator=generator(),
            bounds=(low - most, high - least),
        )

    interval = interval_of_difference(evidence.values)
    if evidence.upper_bounds is not None and interval is not None:
        above = interval_of_difference(np.fmax(evidence.values, evidence.upper_bounds))
        interval = bracket(interval, above) if above else None
    undefined = count_reasons(("a reference of the threshold is undefined", evidence.defined & ~both))
    return (
        replace(
            evidence,
            value=float(evidence.values[both].mean()),
            interval=shifted(interval, threshold, f"paired difference from {expression.text}") if interval else None,
            defined=both,
            undefined=evidence.undefined | undefined,
        ),
        Requirement(direction=direction, value=threshold, expression=expression.text),
    )
