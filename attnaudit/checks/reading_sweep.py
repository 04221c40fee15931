"""Combine the evidence of a check under several readings, such as every layer and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Protocol

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.evidence import Evidence, count_reasons, join_remarks, mean_of
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.readings import Reading, parse
from attnaudit.records import Matrix
from attnaudit.statistics.interval_estimate import IntervalEstimate, bracket
from attnaudit.statistics.intervals import mean_interval


class CheckOfReadings(Protocol):
    """The type of the checks that `evidence_over_readings` accepts: the properties and methods that it uses."""

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
    """Combine the evidence of a check under several readings (selections of attention weights).

    If the statistic is the mean of values per instance, the values of each instance are first averaged over the
    readings. The combined value is the mean of these averages, and it has an interval. For any other statistic, such as
    a ratio or a difference of F1, the combined value is the mean of the values under each reading, and it has no
    interval.

    Args:
        check: The check.
        measurements: The measurements under all of the readings.
        readings: The names of the readings.

    Returns:
        The combined evidence, and a matrix with the value under each reading. The matrix has a row per layer and a
        column per head.
    """
    by_reading = {reading: check.evidence(measurements.under(reading)) for reading in readings}
    places = {name: parse(name or measurements.own_reading) for name in readings}
    known = [evidence.value for evidence in by_reading.values() if evidence.value is not None]
    details = {
        "readings": len(readings),
        "lowest": min(known, default=None),
        "highest": max(known, default=None),
        "highest at": _highest(by_reading, places),
    }
    notes = list(dict.fromkeys(evidence.note for evidence in by_reading.values()))
    matrix = _matrix(by_reading, places, check.confidence)
    values = [evidence.values for evidence in by_reading.values() if evidence.values is not None]
    if check.statistic != "mean" or len(values) < len(by_reading):
        evidence = Evidence(
            value=sum(known) / len(known) if known else None,
            interval=None,
            defined=reduce(np.logical_or, (evidence.defined for evidence in by_reading.values())),
            details=details,
            note=join_remarks(["the value is the mean over the readings, which has no interval", *notes]),
            no_interval="this statistic has no interval over several readings",
        )
        return evidence, matrix
    mean = _mean(values)
    undefined = np.isnan(mean)
    groups = measurements.groups(np.logical_not(undefined))

    def interval_of_mean(of_instances: Floats) -> IntervalEstimate | None:
        return mean_interval(
            of_instances,
            groups,
            confidence=check.confidence,
            generator=check.generator(measurements, "sweep"),
            bounds=check.bounds,
        )

    interval, upper_bounds = interval_of_mean(mean), None
    if any(evidence.upper_bounds is not None for evidence in by_reading.values()):
        upper_bounds = _mean([_upper_bounds(evidence) for evidence in by_reading.values()])
        above = interval_of_mean(upper_bounds)
        interval = bracket(interval, above) if interval and above else None
    evidence = Evidence(
        value=mean_of(mean),
        interval=interval,
        defined=np.logical_not(undefined),
        undefined=count_reasons(("undefined under every reading", undefined)),
        values=mean,
        values_label="mean over the readings, per instance",
        upper_bounds=upper_bounds,
        details=details,
        note=join_remarks(notes),
    )
    return evidence, matrix


def _matrix(by_reading: Mapping[str, Evidence], places: Mapping[str, Reading], confidence: float) -> Matrix:
    """Arrange the values and their intervals in a matrix with a row per layer and a column per head.

    Undefined values are None.
    """
    layers = sorted({str(place.layer) for place in places.values()}, key=_numeric_order)
    heads = sorted({str(place.heads) for place in places.values()}, key=_numeric_order)
    values, lows, highs = (_empty(len(layers), len(heads)) for _ in range(3))
    for name, place in places.items():
        row, column = layers.index(str(place.layer)), heads.index(str(place.heads))
        evidence = by_reading[name]
        values[row][column] = evidence.value
        if evidence.interval is not None and evidence.value is not None:
            interval = evidence.interval.at(confidence)
            lows[row][column], highs[row][column] = interval.low, interval.high
    return Matrix(
        row_label="layer", column_label="head", rows=layers, columns=heads, values=values, low=lows, high=highs
    )


def _empty(rows: int, columns: int) -> list[list[float | None]]:
    return [[None] * columns for _ in range(rows)]


def _mean(values: Sequence[Floats]) -> Floats:
    """Average the values of each instance over the readings, without NaN values. Return NaN if all of them are NaN."""
    counts, totals = filled(len(values[0]), 0, np.int64), filled(len(values[0]), 0.0)
    for one in values:
        defined = np.logical_not(np.isnan(one))
        counts += defined
        totals += np.where(defined, one, 0.0)
    means: Floats = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
    return means


def _upper_bounds(evidence: Evidence) -> Floats:
    """Return the (n,) upper bounds of the values. If no bounds are known, return the values."""
    values = filled(len(evidence.defined), np.nan) if evidence.values is None else evidence.values
    bounds: Floats = values if evidence.upper_bounds is None else np.fmax(values, evidence.upper_bounds)
    return bounds


def _numeric_order(text: str) -> tuple[int, str]:
    """Return a sort key: words such as "mean" come first, then numbers in ascending order."""
    return (int(text), "") if text.isdigit() else (-1, text)


def _highest(by_reading: Mapping[str, Evidence], places: Mapping[str, Reading]) -> str | None:
    """Return the layer and the head with the highest value as text; None if there are no values."""
    known = {name: evidence.value for name, evidence in by_reading.items() if evidence.value is not None}
    if not known:
        return None
    place = places[max(known, key=lambda name: known[name])]
    return f"layer {place.layer}, head {place.heads}"
