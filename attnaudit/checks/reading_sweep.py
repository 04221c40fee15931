"""One check under every layer and head of a model: a matrix of its values, and what they are on average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.evidence import Evidence, mean_of, reasons
from attnaudit.engine.measurements import Measurements
from attnaudit.readings import Reading, parse
from attnaudit.records import Matrix
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate, bracket
from attnaudit.statistics.intervals import mean_interval


class Described(Protocol):
    @property
    def statistic(self) -> str: ...

    @property
    def bounds(self) -> tuple[float, float]: ...


class Swept(Protocol):
    """What a sweep needs of a check."""

    @property
    def confidence(self) -> float: ...

    @property
    def description(self) -> Described: ...

    def evidence(self, measurements: Measurements) -> Evidence: ...

    def generator(self, measurements: Measurements, purpose: str) -> np.random.Generator: ...


def swept(check: Swept, measurements: Measurements, readings: Sequence[str]) -> tuple[Evidence, Matrix]:
    """The evidence of the mean over all readings, and the matrix of the single ones, a row per layer and a column per
    head. Where the check is a mean over instances, so is that of the readings, and it has an interval; of a ratio or a
    difference of F1 it is the mean of the matrix, without one."""
    own = measurements.own_reading
    each = {reading: check.evidence(measurements.under(reading)) for reading in readings}
    places = {name: parse(name or own) for name in readings}
    layers = sorted({str(p.layer) for p in places.values()}, key=_order)
    heads = sorted({str(p.heads) for p in places.values()}, key=_order)
    values: list[list[float | None]] = [[None] * len(heads) for _ in layers]
    for name, place in places.items():
        values[layers.index(str(place.layer))][heads.index(str(place.heads))] = each[name].value
    matrix = Matrix(row_label="layer", column_label="head", rows=layers, columns=heads, values=values)
    stacked = [one.values for one in each.values() if one.values is not None]
    known = [one.value for one in each.values() if one.value is not None]
    details = {
        "readings": len(readings),
        "lowest": min(known, default=None),
        "highest": max(known, default=None),
        "highest at": _best(each, places),
    }
    notes = list(dict.fromkeys(one.note for one in each.values() if one.note))
    if check.description.statistic != "mean" or len(stacked) < len(each):
        found = Evidence(
            value=sum(known) / len(known) if known else None,
            interval=None,
            defined=np.any([one.defined for one in each.values()], axis=0),
            details=details,
            note="; ".join(["the mean of the values under the single readings, which has no interval", *notes]),
            no_interval="the mean of such values under several readings has no interval",
        )
        return found, matrix
    mean, upper = _mean(stacked), None
    if any(one.upper is not None for one in each.values()):
        upper = _mean(
            [np.fmax(v, v if e.upper is None else e.upper) for v, e in zip(stacked, each.values(), strict=True)]
        )
    missing = np.isnan(mean)
    groups = Groups.of(measurements.instances, np.logical_not(missing))

    def estimate(values: Floats) -> IntervalEstimate | None:
        return mean_interval(
            values,
            groups,
            confidence=check.confidence,
            generator=check.generator(measurements, "sweep"),
            bounds=check.description.bounds,
        )

    below, above = estimate(mean), None if upper is None else estimate(upper)
    interval = bracket(below, above) if below and above else below
    found = Evidence(
        value=mean_of(mean),
        interval=interval,
        defined=np.logical_not(missing),
        undefined=reasons(("undefined under every reading", missing)),
        values=mean,
        values_label="mean over the readings, per instance",
        upper=upper,
        details=details,
        note="; ".join(notes),
    )
    return found, matrix


def _mean(of: Sequence[Floats]) -> Floats:
    """(n,) means over the readings under which an instance has a value, NaN where it has none."""
    table = np.stack(of)
    counts = np.logical_not(np.isnan(table)).sum(0)
    found: Floats = np.where(counts > 0, np.nansum(table, axis=0) / np.maximum(counts, 1), np.nan)
    return found


def _order(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (-1, text)


def _best(each: dict[str, Evidence], places: Mapping[str, Reading]) -> str | None:
    known = {name: one.value for name, one in each.items() if one.value is not None}
    if not known:
        return None
    top = places[max(known, key=lambda name: known[name])]
    return f"layer {top.layer}, head {top.heads}"
