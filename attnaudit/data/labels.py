"""Labels of a data set against the classes of a model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnaudit.errors import DataError, nearest
from attnaudit.instances import Dataset

_INDEX = re.compile(r"0|[1-9]\d*", re.ASCII)
_INTEGER = re.compile(r"-?\d+", re.ASCII)


def label_indices(dataset: Dataset, classes: Sequence[str]) -> list[int]:
    """For each instance the index of its label in `classes`, -1 where it is unlabelled.

    Class names match exactly. Where no class name is itself an integer, the label "1" stands for the second class.
    Raises DataError that names the row and the nearest class when a label is neither.
    """
    index = {name: position for position, name in enumerate(classes)}
    if not any(_INTEGER.fullmatch(name) for name in classes):
        index = {str(position): position for position in range(len(classes))} | index
    found: list[int] = []
    for one in dataset.instances:
        if one.label is None:
            found.append(-1)
        elif one.label in index:
            found.append(index[one.label])
        else:
            raise _unknown(one.label, one.where or f"{dataset.name}, id {one.id!r}", classes)
    return found


def _unknown(label: str, where: str, classes: Sequence[str]) -> DataError:
    known = ", ".join(f"{position} '{name}'" for position, name in enumerate(classes))
    if _INDEX.fullmatch(label) or label.startswith("-"):
        mend = "Correct the label, or leave it empty when the row is unlabelled."
    else:
        mend = f"{nearest(label, classes)} Correct the label, or choose the model or data that fits."
    return DataError(f"{where}: column 'label': {label!r} is none of the model's classes ({known}). {mend}")


def require_two_classes(dataset: Dataset, *, labelled: bool = False) -> None:
    """Raise DataError when the labels are all of one class.

    A data set without any label passes (checks that need labels are then undefined), unless `labelled`: training
    needs a label in every row.
    """
    if labelled:
        for one in dataset.instances:
            if one.label is None:
                where = one.where or f"{dataset.name}, id {one.id!r}"
                raise DataError(f"{where}: column 'label' is empty. Training needs a label in every row: add it.")
    classes = {*dataset.classes, *(one.label for one in dataset.instances)} - {None}  # a sample keeps the classes
    if len(classes) == 1:
        other = "add rows of another class" if labelled else "add rows of another class, or drop the labels"
        raise DataError(
            f"{dataset.name} ({dataset.source}): column 'label': every label is '{classes.pop()}'. Expected at least "
            f"two classes: with one, no accuracy or F1 can change. Mend: {other}."
        )
