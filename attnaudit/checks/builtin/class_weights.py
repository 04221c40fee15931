"""The argument `classes` of checks whose statistic can give every class the same weight."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Integers
from attnaudit.checks.evidence import join_remarks
from attnaudit.checks.sequential import NotYet, rows_in_order
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.independent_units import balanced_units
from attnaudit.statistics.statistic_sequences import unbet_units

Classes = Literal["balanced", "as_sampled"]
CLASSES = ("balanced", "as_sampled")


def weighted_rows(measurements: Measurements, groups: Groups, classes: Classes) -> WeightedRows:
    """Return the weights of instances, by class.

    Args:
        measurements: The measurements of n instances.
        groups: The instances that a statistic is computed from.
        classes: "balanced" gives each class the same total weight. The classes are the labels if all n instances have
            one, and otherwise the predicted classes. "as_sampled" gives each instance the same weight. If the output is
            not a decision, "balanced" does the same.
    """
    if classes == "as_sampled" or measurements.no_decision:
        return WeightedRows.equal(len(measurements), groups)
    return WeightedRows.balanced(_classes(measurements), groups)


def units_of_rows(
    measurements: Measurements, defined: NDArray[np.bool_], classes: Classes, *, rows_per_class: int
) -> Integers | str:
    """Divide rows (instances) into units with equally many rows of each class, for a confidence sequence.

    Args:
        measurements: The measurements of n instances.
        defined: (n,) True at the instances that have a value.
        classes: "balanced" needs the label of every instance. With "as_sampled", all instances count as one class.
        rows_per_class: The number of rows of each class in a unit.

    Returns:
        (U, C, rows_per_class) indices of instances, in random order. The confidence sequence does not bet on the first
        units (see `unbet_units`), and U is larger than the number of these units. If the rows cannot be divided into
        enough units, the reason is returned instead, as a clause. Additional instances add units at the end and do not
        change the existing units.
    """
    if measurements.no_decision:
        classes = "as_sampled"
    if classes == "balanced" and not (measurements.labels >= 0).all():
        return "rows have no label, and predicted classes are known only after measuring"
    order = rows_in_order(measurements, defined)
    own = measurements.labels if classes == "balanced" else filled(len(measurements), 0, np.int64)
    number = len(measurements.classes) if classes == "balanced" else 1
    if len(np.unique(own[order])) < number:
        return NotYet("a class of the model has no row")
    units = balanced_units(own, order, rows_per_class)
    return units if len(units) > unbet_units(units) else NotYet("there are too few rows of a class")


def note_on_classes(measurements: Measurements, classes: Classes) -> str:
    """Return a remark on balanced classes if the target has no classes, a class has no row, or labels are missing.

    Otherwise, return "".
    """
    if classes == "as_sampled":
        return ""
    if measurements.no_decision:
        return f"the texts, not the classes, have equal weight, because {measurements.no_decision}"
    remarks = []
    missing = int(np.count_nonzero(measurements.labels < 0))
    if missing:
        remarks.append(
            f"the predicted classes, not the labels, have equal weight, because {missing} of {len(measurements)} rows "
            "have no label"
        )
    present = set(np.unique(_classes(measurements)).tolist())
    absent = [f"'{name}'" for index, name in enumerate(measurements.classes) if index not in present]
    if absent:
        it = "this class is" if len(absent) == 1 else "these classes are"
        remarks.append(
            f"no row {'is predicted' if missing else 'has the label'} {' or '.join(absent)}, so {it} left out; with "
            "rows of every class, the value would be different"
        )
    return join_remarks(remarks)


def why_no_interval(measurements: Measurements, rows: WeightedRows) -> str:
    """Return why there is no interval: all rows of a class have the same source. Return "" if this is not the case."""
    if len(rows.groups) < 2 or rows.fewest_sources >= 2:
        return ""
    present = np.unique(_classes(measurements)[rows.groups.rows])
    alone = [f"'{measurements.classes[one]}'" for one, sources in zip(present, rows.sources_of_classes) if sources < 2]
    classes, have = ("class", "has") if len(alone) == 1 else ("classes", "have")
    return (
        f"all rows of the {classes} {' or '.join(alone)} have the same source, but the {classes} {have} as much weight "
        "as any other"
    )


def _classes(measurements: Measurements) -> Integers:
    """Return the (n,) classes that are balanced: the labels if every instance has one, otherwise the predictions."""
    return measurements.labels if (measurements.labels >= 0).all() else measurements.predicted
