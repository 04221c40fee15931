"""Data sets of the package `datasets`: folders that `save_to_disk` wrote, and objects that a function returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attnaudit.data.column_names import Column, check_columns
from attnaudit.errors import DataError

#: The file that identifies a saved data set, and the file that identifies several saved splits.
_SAVED, _SAVED_SPLITS = "state.json", "dataset_dict.json"


def is_saved_folder(folder: Path) -> bool:
    """Return whether a folder was written by `save_to_disk`."""
    return any(folder.joinpath(name).is_file() for name in (_SAVED, _SAVED_SPLITS))


def is_of_datasets(produced: object) -> bool:
    """Return whether an object belongs to the package `datasets`, which need not be installed."""
    return type(produced).__module__.partition(".")[0] == "datasets"


def saved_dataset(folder: Path) -> Any:
    """Open a folder that `datasets.Dataset.save_to_disk` wrote. Its rows stay on the disk.

    Raises:
        DataError: `datasets` is not installed, the folder contains several splits, or it is damaged.
    """
    if folder.joinpath(_SAVED_SPLITS).is_file():
        splits = sorted(path.name for path in folder.iterdir() if path.joinpath(_SAVED).is_file())
        fix = f"one of them, such as {folder / splits[0]}" if splits else "the folder of one split"
        raise DataError(f"{folder}: the folder contains several splits ({', '.join(splits)}). Give the path of {fix}.")
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{folder}: this folder was written by Dataset.save_to_disk. Reading it needs the package `datasets`: "
            'pip install "attnaudit[datasets]".'
        ) from error
    try:
        return datasets.load_from_disk(str(folder))
    except Exception as error:
        raise DataError(
            f"{folder}: the data set cannot be read: {type(error).__name__}: {error}. Save it again with "
            "Dataset.save_to_disk."
        ) from error


def rows_of(dataset: Any, name: str) -> Iterator[Mapping[str, object]]:
    """Yield the rows of a `datasets.Dataset` or `datasets.IterableDataset`.

    The values of columns with the type `ClassLabel` are replaced by the names of the classes. Only the columns that are
    used are read.

    Args:
        dataset: The data set.
        name: Its name, for messages.

    Raises:
        DataError: The object contains several splits, the names of its columns are invalid, or a value is no class.
    """
    if isinstance(dataset, dict):
        raise DataError(
            f"{name}: found several splits ({', '.join(map(str, dataset))}). Expected one of them. Return "
            f"one split, for example data[{next(map(repr, dataset), '...')}]."
        )
    features: Mapping[str, Any] = dataset.features or {}
    columns = dataset.column_names
    if columns is not None:
        check_columns(columns, name)
        dataset = dataset.select_columns([column for column in columns if column in set(Column)])
    named = {column: _class_names(feature) for column, feature in features.items() if column in set(Column)}
    decoders = {column: decode for column, decode in named.items() if decode is not None}
    for number, row in enumerate(dataset, start=1):
        try:
            yield {**row, **{column: decode(row[column]) for column, decode in decoders.items()}}
        except (ValueError, IndexError) as error:
            raise DataError(
                f"{name}:{number}: a label is not one of the classes of its column: {error}. Correct the column with "
                "Dataset.cast_column."
            ) from error


def _class_names(feature: Any) -> Callable[[Any], object] | None:
    """Return a function that replaces indices of classes by names; None if the column contains no such indices."""
    inner: Any = getattr(feature, "feature", None)  # of a list of values
    if hasattr(feature, "int2str"):
        # -1 stands for an unknown class.
        return lambda index: None if index is None or index == -1 else str(feature.int2str(index))
    if hasattr(inner, "int2str"):
        return lambda indices: None if indices is None else [str(inner.int2str(index)) for index in indices]
    return None
