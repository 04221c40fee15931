"""The centred logits of the rows of an audit, without the classes that are not possible answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.ragged_columns import RaggedColumn
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.centred_logits import CentredLogits


def stacked(rows: Sequence[Floats]) -> Floats:
    """Stack vectors of the same length L into an (n, L) array. Without vectors, the array has shape (0, 1)."""
    if isinstance(rows, RaggedColumn):
        return rows.stacked()
    return np.reshape(rows, (len(rows), -1)) if len(rows) else np.zeros((0, 1))


def centred_logits(measurements: Measurements, rows: WeightedRows) -> CentredLogits | None:
    """Return the centred logits; None if the logits of `rows` do not vary.

    A single sigmoid logit is expanded to two logits. Classes that are not open in a row are left out.
    """
    logits = stacked(measurements.vector("logits"))
    if logits.shape[1] == 1:
        logits = np.column_stack([np.zeros_like(logits), logits])
    open_classes = None
    if "open_classes" in measurements.vectors:
        open_classes = stacked(measurements.vector("open_classes")) > 0
        open_classes |= ~open_classes.any(1, keepdims=True)  # all logits of such a row are equal
    return CentredLogits.of(logits, rows, open_classes)
