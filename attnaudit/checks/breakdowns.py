"""The value of a check in parts of the data: by confidence, length, predicted class and label."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.evidence import Mask, number_or_none
from attnaudit.disk_arrays.filed_arrays import from_numbers
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Breakdown, Part

#: Edges of the bins of the largest class probability.
CONFIDENCE_EDGES = (0.0, 0.6, 0.8, 0.95, 0.99, 1.0)
#: Largest number of bins of the text length. All bins have about the same number of texts.
LENGTH_BINS = 4
#: The number of most frequent classes that are listed separately.
MOST_CLASSES = 8

#: (n,) mask of a part of the instances -> the value in this part; None if it is undefined.
ValueOfPart = Callable[[Mask], float | None]


def breakdowns(measurements: Measurements, defined: Mask, value_of: ValueOfPart) -> tuple[Breakdown, ...]:
    """Compute the value of a check separately for parts of the data, such as each predicted class.

    Args:
        measurements: The measurements of n instances.
        defined: (n,) True at the instances with a value. All other instances are left out.
        value_of: Computes the value in a part.

    Returns:
        Up to four breakdowns: by confidence, length, predicted class and label. A breakdown with fewer than two parts
        is left out. If the output is not a decision, the breakdowns by predicted class and label are left out too.
    """
    kinds = {
        "confidence": _by_confidence(measurements),
        "length": _by_length(measurements, defined),
        "predicted class": _by_class(measurements, measurements.predicted),
        "label": _by_class(measurements, measurements.labels),
    }
    if measurements.no_decision:
        del kinds["predicted class"], kinds["label"]
    found = []
    for kind, parts in kinds.items():
        known = [(name, mask & defined) for name, mask in parts]
        records = [
            Part(name=name, n=int(mask.sum()), value=number_or_none(np.nan if value is None else value))
            for name, mask in known
            if mask.any()
            for value in [value_of(mask)]
        ]
        if len(records) > 1:
            found.append(Breakdown(by=kind, parts=records))
    return tuple(found)


def confidence(measurements: Measurements) -> Floats | None:
    """Return the largest class probability of each instance (n,); None if the run has no probabilities."""
    vectors = measurements.vectors.get("probabilities")
    if vectors is None:
        return None
    largest: Floats = from_numbers((np.max(one) if len(one) else np.nan for one in vectors), np.float64)
    return largest


def _by_confidence(measurements: Measurements) -> Iterator[tuple[str, Mask]]:
    largest = confidence(measurements)
    if largest is None:
        return
    for low, high in pairwise(CONFIDENCE_EDGES):
        name = f"below {high:g}" if low == 0 else f"{low:g} or more" if high == 1 else f"{low:g} to {high:g}"
        yield name, (largest >= low) & ((largest < high) | (high == 1))


def _by_length(measurements: Measurements, defined: Mask) -> Iterator[tuple[str, Mask]]:
    lengths = measurements.lengths
    if not defined.any():
        return
    quantiles = np.quantile(lengths[defined], np.arange(1, LENGTH_BINS) / LENGTH_BINS, method="higher")
    edges = [0, *np.unique(quantiles).tolist(), int(lengths.max())]
    for low, high in pairwise(edges):
        mask = (lengths > low) & (lengths <= high)
        if mask.any():
            shortest, longest = int(lengths[mask].min()), int(lengths[mask].max())
            units = measurements.unit_names.units
            yield f"{shortest} {units}" if shortest == longest else f"{shortest} to {longest} {units}", mask


def _by_class(measurements: Measurements, of_instance: np.ndarray) -> Iterator[tuple[str, Mask]]:
    """Yield one part for each of the most frequent classes, and the part "other classes" for the rest."""
    counts = [(int((of_instance == index).sum()), index) for index in range(len(measurements.classes))]
    largest = sorted(counts, key=lambda pair: (-pair[0], pair[1]))[:MOST_CLASSES]
    shown = sorted(index for _, index in largest)
    for index in shown:
        yield measurements.classes[index], of_instance == index
    if len(shown) < len(measurements.classes):
        yield "other classes", (of_instance >= 0) & ~np.isin(of_instance, shown)
