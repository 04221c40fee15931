"""Compare the labels of a data set with the classes of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat

from attnaudit.data.cell_values import shorten
from attnaudit.errors import DataError, did_you_mean
from attnaudit.instances import Dataset, Instance, have_label_lists, labels_of
from attnaudit.targets import CLASS, PAGE, Target

_INDEX = re.compile(r"0|[1-9]\d*", re.ASCII)
#: The names that Transformers gives to classes without names of their own.
_UNNAMED = re.compile(r"LABEL_\d+", re.ASCII)
_INTEGER = re.compile(r"-?\d+", re.ASCII)
#: Messages list at most this many classes or labels of a model.
_LISTED = 20


def label_indices(
    dataset: Dataset, classes: Sequence[str], target: Target = CLASS, known: Sequence[str] = ()
) -> list[int]:
    """Return the class indices that `class_indices` yields, as a list."""
    return list(class_indices(dataset, classes, target, known))


def class_indices(
    dataset: Dataset, classes: Sequence[str], target: Target = CLASS, known: Sequence[str] = ()
) -> Iterator[int]:
    """Yield the class index of each instance; -1 for instances without a label.

    A label must be equal to a class name. If no class name is an integer, a label may also be a class index, such as
    "1" for the second class. For a model that assigns any number of labels, the target names one label. The class index
    is then 1 if this label applies to the instance, and otherwise 0. If the target is not a decision, all indices are
    -1.

    Args:
        dataset: The instances.
        classes: Class names of the model, in the order of its logits.
        target: The output of the model that the audit explains.
        known: All labels of a model that assigns any number of labels; empty if they are unknown.

    Raises:
        DataError: A label is neither a class name nor a valid index, or the column of the labels does not fit the
            target. The message names the row and the classes.
    """
    if not target.decides:
        yield from repeat(-1, len(dataset.instances))
        return
    if target.kind == "label":
        yield from (_applies(instance, dataset, target, known) for instance in dataset.instances)
        return
    index = {name: position for position, name in enumerate(classes)}
    if not any(_INTEGER.fullmatch(name) for name in classes):
        index = {str(position): position for position in range(len(classes))} | index
    have_lists = have_label_lists(dataset.instances)
    for row, label in enumerate(labels_of(dataset.instances)):
        if label is None:
            if have_lists and dataset.instances[row].labels is not None:
                raise DataError(
                    f"{_place(dataset.instances[row], dataset)}: column 'labels' is filled, but the model assigns one "
                    "label to a text. Write the label in the column 'label'."
                )
            yield -1
        elif label in index:
            yield index[label]
        else:
            raise _unknown_label(label, _place(dataset.instances[row], dataset), classes, target)


def _applies(instance: Instance, dataset: Dataset, target: Target, known: Sequence[str]) -> int:
    """Return 1 if the label of the target applies to an instance, 0 if it does not, and -1 if this is unknown."""
    where = _place(instance, dataset)
    if instance.labels is None:
        if instance.label is not None:
            raise DataError(
                f"{where}: column 'label' is filled, but the model assigns any number of labels to a text. Write all "
                f"labels of the row in the column 'labels'; an empty list means that none applies. See {PAGE}#a-label."
            )
        return -1
    for name in instance.labels:
        if known and name not in known:
            raise DataError(
                f"{where}: column 'labels': {shorten(name)!r} is not one of the model's labels "
                f"({_listed(shorten(one) for one in known)}). {_remedy(name, known)}"
            )
    return int(target.name in instance.labels)


def _place(instance: Instance, dataset: Dataset) -> str:
    return instance.where or f"{dataset.name}, id {shorten(instance.id)!r}"


def _unknown_label(label: str, where: str, classes: Sequence[str], target: Target) -> DataError:
    listed = _listed(f"{position} '{shorten(name)}'" for position, name in enumerate(classes))
    if target.kind == "tag":
        return DataError(
            f"{where}: column 'label': {shorten(label)!r} is not one of the model's tags ({listed}). This model gives "
            "a tag to each word. Write the correct tag of the audited word, or leave the label empty. "
            f"See {PAGE}#a-tag."
        )
    if _INDEX.fullmatch(label) or label.startswith("-"):
        fix = "Correct the label, or leave it empty if the row is unlabelled."
    elif not all(_UNNAMED.fullmatch(name) for name in classes):
        fix = _remedy(label, classes)
    else:
        fix = (
            "The classes of this model have no names of their own. Name them under 'id2label' in its config.json, or "
            "write the index of the class into the column 'label'."
        )
    return DataError(f"{where}: column 'label': {shorten(label)!r} is not one of the model's classes ({listed}). {fix}")


def _listed(names: Iterable[str]) -> str:
    """Return the first names as a list for a message."""
    first = list(islice(names, _LISTED + 1))
    return ", ".join(first[:_LISTED]) + (", ..." if len(first) > _LISTED else "")


def _remedy(label: str, known: Sequence[str]) -> str:
    fix = "Correct the label, or use a model and data that belong together."
    other_case = [f"'{name}'" for name in known if name.casefold() == label.casefold()]
    if other_case:
        return f"Did you mean {' or '.join(other_case)}? Labels are case-sensitive. {fix}"
    return f"{did_you_mean(label, known)} {fix}".lstrip()


def require_two_classes(dataset: Dataset, *, labelled: bool = False) -> None:
    """Refuse a data set with a single class.

    The labels of the instances and the declared classes are counted together. A data set without labels and without
    declared classes is accepted. Checks that need labels are then undefined.

    Args:
        dataset: The data set.
        labelled: Whether to also require a label in every row. Training needs one.

    Raises:
        DataError: There is only one class, or a label is missing although `labelled` is True.
    """
    if labelled:
        for instance in dataset.instances:
            if instance.label is None:
                raise DataError(
                    f"{_place(instance, dataset)}: column 'label' is empty. Training needs a label in every row. Add "
                    "the label."
                )
    # The declared classes also count: a sample may lack a class, but it declares the classes of the full data set.
    classes = {*dataset.classes, *labels_of(dataset.instances)} - {None}
    if len(classes) == 1:
        label = shorten(str(classes.pop()))
        fix = "Add rows of another class" + ("." if labelled else ", or remove the labels.")
        raise DataError(
            f"{dataset.name} ({dataset.source}): column 'label': every label is '{label}'. Expected at least "
            f"two classes, since accuracy and F1 say little about a model if all labels are the same. {fix}"
        )
