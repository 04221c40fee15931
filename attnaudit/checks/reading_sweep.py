"""One check under every layer and head of a model: a matrix of its values, and their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.evidence import Evidence, count_reasons, join_remarks, mean_of
from attnaudit.engine.measurements import Measurements
from attnaudit.readings import Reading, parse
from attnaudit.records import Matrix
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate, bracket
from attnaudit.statistics.intervals import mean_interval


class CheckOfReadings(Protocol):
    """What a sweep over readings needs of a check."""

    @property
    def confidence(self) -> float: ...

    @property
    def statistic(self) -> str: ...

    @property
    def bounds(self) -> tuple[float, float]: ...

    def evidence(self, measurements: Measurements) -> Evidence: ...

    def generator(self, measurements: Measurements, purpose: str) -> np.random.Generator: ...


def evidence_over_readings(
    check: CheckOfReadings, measurements: Measurements, readings: Sequence[str]
) -> tuple[Evidence, Matrix]:
    """Judge a check under several readings.

    A check that is a mean over instances has as its value the mean over instances and readings, with an interval. A
    check that is a ratio, or a difference of F1, has the mean of its values under the readings, without an interval.

    Args:
        check: the check.
        measurements: what was measured, under all of the readings.
        readings: the names of the readings.

    Returns:
        The evidence of the mean, and the matrix of the values under the single readings, with a row for every layer
        and a column for every head.
    """
    own = measurements.own_reading
    by_reading = {reading: check.evidence(measurements.under(reading)) for reading in readings}
    places = {name: parse(name or own) for name in readings}
    matrix = _matrix(by_reading, places)
    known = [one.value for one in by_reading.values() if one.value is not None]
    details = {
        "readings": len(readings),
        "lowest": min(known, default=None),
        "highest": max(known, default=None),
        "highest at": _highest(by_reading, places),
    }
    notes = list(dict.fromkeys(one.note for one in by_reading.values()))
    with_values = [one for one in by_reading.values() if one.values is not None]
    if check.statistic != "mean" or len(with_values) < len(by_reading):
        evidence = Evidence(
            value=sum(known) / len(known) if known else None,
            interval=None,
            defined=np.any([one.defined for one in by_reading.values()], axis=0),
            details=details,
            note=join_remarks(["the mean of the values under the single readings, which has no interval", *notes]),
            no_interval="the mean of such values under several readings has no interval",
        )
        return evidence, matrix
    mean, upper = _mean([one.values for one in with_values if one.values is not None]), None
    if any(one.upper_bounds is not None for one in with_values):
        upper = _mean([_upper(one) for one in with_values])
    undefined = np.isnan(mean)
    groups = Groups.of(measurements.instances, np.logical_not(undefined))

    def estimate(values: Floats) -> IntervalEstimate | None:
        return mean_interval(
            values,
            groups,
            confidence=check.confidence,
            generator=check.generator(measurements, "sweep"),
            bounds=check.bounds,
        )

    below, above = estimate(mean), None if upper is None else estimate(upper)
    evidence = Evidence(
        value=mean_of(mean),
        interval=bracket(below, above) if below and above else below,
        defined=np.logical_not(undefined),
        undefined=count_reasons(("undefined under every reading", undefined)),
        values=mean,
        values_label="mean over the readings, per instance",
        upper_bounds=upper,
        details=details,
        note=join_remarks(notes),
    )
    return evidence, matrix


def _matrix(by_reading: Mapping[str, Evidence], places: Mapping[str, Reading]) -> Matrix:
    layers = sorted({str(p.layer) for p in places.values()}, key=_order)
    heads = sorted({str(p.heads) for p in places.values()}, key=_order)
    values: list[list[float | None]] = [[None] * len(heads) for _ in layers]
    for name, place in places.items():
        values[layers.index(str(place.layer))][heads.index(str(place.heads))] = by_reading[name].value
    return Matrix(row_label="layer", column_label="head", rows=layers, columns=heads, values=values)


def _mean(values: Sequence[Floats]) -> Floats:
    """(n,) means over the readings under which an instance has a value; NaN where it has none."""
    table = np.stack(values)
    counts = np.logical_not(np.isnan(table)).sum(0)
    means: Floats = np.where(counts > 0, np.nansum(table, axis=0) / np.maximum(counts, 1), np.nan)
    return means


def _upper(evidence: Evidence) -> Floats:
    """(n,) upper bounds of the values; the values themselves where there are no other bounds."""
    values = np.full(len(evidence.defined), np.nan) if evidence.values is None else evidence.values
    upper: Floats = values if evidence.upper_bounds is None else np.fmax(values, evidence.upper_bounds)
    return upper


def _order(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (-1, text)


def _highest(by_reading: Mapping[str, Evidence], places: Mapping[str, Reading]) -> str | None:
    """The layer and head with the highest value."""
    known = {name: one.value for name, one in by_reading.items() if one.value is not None}
    if not known:
        return None
    top = places[max(known, key=lambda name: known[name])]
    return f"layer {top.layer}, head {top.heads}"
