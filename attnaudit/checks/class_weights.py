"""The argument `classes` of checks whose statistic can give every class the same weight."""

from __future__ import annotations

from typing import Literal

import numpy as np

from attnaudit.engine.measurements import Measurements
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import Groups

Classes = Literal["balanced", "as_sampled"]
CLASSES = ("balanced", "as_sampled")


def weighted_rows(measurements: Measurements, groups: Groups, classes: Classes) -> WeightedRows:
    """Weight some of the instances.

    Args:
        measurements: The measurements of n instances.
        groups: The instances that a statistic is computed from.
        classes: "balanced" gives each class the same total weight, by label if all n instances have one, and otherwise
            by predicted class. "as_sampled" gives each instance the same weight.
    """
    if classes == "as_sampled":
        return WeightedRows.equal(len(measurements), groups)
    return WeightedRows.balanced(measurements.labels if _labelled(measurements) else measurements.predicted, groups)


def note_on_classes(measurements: Measurements, classes: Classes) -> str:
    """Return a clause that says that predicted classes replace missing labels; "" if they do not."""
    if classes == "as_sampled" or _labelled(measurements):
        return ""
    missing = int(np.count_nonzero(measurements.labels < 0))
    return (
        f"predicted classes have equal weight instead of labels, because {missing} of {len(measurements)} rows have no "
        "label"
    )


def why_no_interval(rows: WeightedRows) -> str:
    """Return a clause that says that a class has too few sources for an interval; "" if none has."""
    if len(rows.groups) < 2 or rows.fewest_sources >= 2:
        return ""
    return (
        "all rows of a class have the same source, but the class has as much weight as the others; add rows of it, or "
        'set classes = "as_sampled"'
    )


def _labelled(measurements: Measurements) -> bool:
    """Return whether every instance has a label."""
    return bool((measurements.labels >= 0).all())
