"""The F1 score of predictions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnaudit.arrays import Floats, Integers


def f1(true: ArrayLike, predicted: ArrayLike, classes: int | Sequence[object]) -> float | Floats:
    """Return the F1 score of class 1 if there are two classes, and the macro F1 score otherwise.

    The F1 score of a class is 2 TP / (2 TP + FP + FN). The macro F1 score is the mean of these scores over the classes
    that occur in `true` or in `predicted`, as in scikit-learn's `f1_score(average="macro")`. Tutek & Šnajder 2020, §3,
    measure fragility by the drop in F1.

    Args:
        true: (n,) class indices.
        predicted: (n,) class indices, or (n, R) class indices for R sets of predictions, such as those under R
            permutations.
        classes: The number of classes, or their names.

    Returns:
        A float, or an array (R,) for R sets of predictions. It is NaN if there are no instances or, with two classes,
        if class 1 occurs neither in `true` nor in `predicted`.

    Raises:
        ValueError: Shapes do not fit, there are fewer than two classes, or a value is not the index of a class.

    Examples:
        >>> f1([1, 0, 1, 1], [1, 1, 1, 0], 2)
        0.6666666666666666
    """
    number = classes if isinstance(classes, int) else len(classes)
    if number < 2:
        raise ValueError(f"classes: expected at least 2 but got {number}")
    labels, predictions = _indices(true, "true", number), _indices(predicted, "predicted", number)
    if labels.ndim != 1:
        raise ValueError(f"true: expected shape (n,) but got {labels.shape}")
    if predictions.ndim not in (1, 2) or len(predictions) != len(labels):
        raise ValueError(
            f"predicted: expected shape ({len(labels)},) or ({len(labels)}, R) but got {predictions.shape}"
        )
    columns = predictions.shape[1:] or (1,)
    several = predictions.reshape(len(labels), *columns)
    scored = [1] if number == 2 else range(number)
    scores = np.stack([_score(labels[:, None] == c, several == c) for c in scored])
    defined = ~np.isnan(scores)
    total, count = np.where(defined, scores, 0.0).sum(0), defined.sum(0)
    result: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return float(result[0]) if predictions.ndim == 1 else result


def _indices(values: ArrayLike, name: str, classes: int) -> Integers:
    """Convert class indices to int64.

    Raises:
        ValueError: The values are not integers, or a value is not the index of a class.
    """
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


def _score(is_class: NDArray[np.bool_], predicted_class: NDArray[np.bool_]) -> Floats:
    """Return the F1 score (R,) of one class.

    Args:
        is_class: (n, 1) True where the label is this class.
        predicted_class: (n, R) True where the prediction is this class.

    Returns:
        (R,) scores; NaN where the class occurs neither in the labels nor in the predictions.
    """
    hits = (is_class & predicted_class).sum(0)
    total = is_class.sum(0) + predicted_class.sum(0)
    return np.where(total > 0, 2 * hits / np.maximum(total, 1), np.nan)
