"""F1 of predictions against labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def f1(true: ArrayLike, predicted: ArrayLike, classes: int | Sequence[object]) -> float | NDArray[np.float64]:
    """F1 of class 1 for two classes, the macro mean otherwise.

    F1_c = 2 TP / (2 TP + FP + FN). The macro mean is over the classes that occur in `true` or in that set of
    predictions, as in scikit-learn's `f1_score(average="macro")`. NaN (undefined) with no instance, or for two classes
    when class 1 occurs on neither side.

    Shapes: true (n,) class indices; predicted (n,) for one set of predictions, or (n, R) for R sets, such as those
    under R permutations; classes their number or their names. Returns a float, or (R,) float64.
    Raises ValueError for other shapes, fewer than two classes, or an index outside the classes.
    Source: PROTOCOLS' fragility measures (Tutek & Šnajder 2020, §3).

    >>> f1([1, 0, 1, 1], [1, 1, 1, 0], 2)
    0.6666666666666666
    """
    number = classes if isinstance(classes, int) else len(classes)
    if number < 2:
        raise ValueError(f"classes: expected at least 2 but got {number}")
    labels, answers = _indices(true, "true", number), _indices(predicted, "predicted", number)
    if labels.ndim != 1:
        raise ValueError(f"true: expected shape (n,) but got {labels.shape}")
    if answers.ndim not in (1, 2) or len(answers) != len(labels):
        raise ValueError(f"predicted: expected shape ({len(labels)},) or ({len(labels)}, R) but got {answers.shape}")
    several = answers.reshape(len(labels), -1) if len(labels) else answers.reshape(0, *answers.shape[1:] or (1,))
    chosen = [1] if number == 2 else range(number)
    scores = np.stack([_score(labels[:, None] == c, several == c) for c in chosen])
    defined = ~np.isnan(scores)
    total, count = np.where(defined, scores, 0.0).sum(0), defined.sum(0)
    result: NDArray[np.float64] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return float(result[0]) if answers.ndim == 1 else result


def _indices(values: ArrayLike, name: str, classes: int) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise ValueError(f"{name}: expected class indices, integers, but got {array.dtype}")
    array = array.astype(np.int64)
    outside = array[(array < 0) | (array >= classes)]
    if outside.size:
        raise ValueError(f"{name}: expected class indices from 0 to {classes - 1} but got {int(outside.flat[0])}")
    return array


def _score(is_class: NDArray[np.bool_], says_class: NDArray[np.bool_]) -> NDArray[np.float64]:
    hits = (is_class & says_class).sum(0)
    named = is_class.sum(0) + says_class.sum(0)
    return np.where(named > 0, 2 * hits / np.maximum(named, 1), np.nan)
