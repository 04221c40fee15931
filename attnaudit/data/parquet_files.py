"""Read Parquet files, one batch of rows at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from attnaudit.data.column_names import Column, check_columns, reject_duplicates
from attnaudit.data.row_parsing import Row
from attnaudit.errors import DataError, refuse_pointer, require_regular_file

#: Number of rows that are read at once.
ROWS_AT_ONCE: Final = 1024
#: The name of a part of a split: train-00000-of-00004.parquet, or train-00000-of-00004-1e3ecfb5a6ab5a3f.parquet.
_PART_OF_SPLIT: Final = re.compile(r"(.+)-(\d+)-of-(\d+)(?:-[0-9a-f]+)?\.parquet", re.IGNORECASE)
#: The ends of the names of data files that are not read from a folder of Parquet files.
_OTHER_DATA: Final = re.compile(r"\.(jsonl|csv|parq|pq)$|\.(jsonl|csv|parq|pq|parquet)\.(gz|zst|bz2|xz|snappy|lz4)$")
#: The names of splits. A split may be a single file, such as test.parquet.
_SPLITS: Final = ("dev", "eval", "test", "train", "val", "valid", "validation")


class ParquetRows:
    """The rows of a Parquet file.

    Args:
        path: The path of the file.
        content: The open file; None to open it by its path.

    Attributes:
        columns: The names of all columns.
        size: The number of bytes of all columns that are used, without compression.

    Raises:
        DataError: The file is not a readable Parquet file, or the names of its columns are invalid.
    """

    def __init__(self, path: Path, content: BinaryIO | None = None) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            # read_table(path) would also read columns from the names of folders such as label=positive.
            self._file: Any = pq.ParquetFile(path if content is None else content)
            self.columns = tuple(map(str, self._file.schema_arrow.names))
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(error) from error
        reject_duplicates(self.columns, str(path))
        check_columns(self.columns, str(path))
        self.used = tuple(name for name in self.columns if name in set(Column))
        self.size = self._uncompressed_size()

    def __len__(self) -> int:
        rows: int = self._file.metadata.num_rows
        return rows

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows. Only some of them are in memory at a time.

        Raises:
            DataError: The file is damaged, or a value cannot be converted. The message names the row.
        """
        import pyarrow as pa

        first = 1
        batches = self._file.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(self.used), use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise self._unreadable(error) from error
            if batch is None:
                return
            cells = {name: _values(batch.column(name), self.path, name, first) for name in self.used}
            for row in range(batch.num_rows):
                yield first + row, {name: values[row] for name, values in cells.items()}
            first += batch.num_rows

    def _uncompressed_size(self) -> int:
        metadata = self._file.metadata
        chunks = (
            metadata.row_group(group).column(column)
            for group in range(metadata.num_row_groups)
            for column in range(metadata.num_columns)
        )
        return sum(
            chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.partition(".")[0] in self.used
        )

    def _unreadable(self, error: Exception) -> DataError:
        first = (str(error).splitlines() or ["unknown"])[0].rstrip(".")
        return DataError(
            f"{self.path}: this is not a readable Parquet file: {first}. Write the file again, for example with "
            "pandas.DataFrame.to_parquet."
        )


def parquet_parts(folder: Path) -> list[Path]:
    """Return the Parquet files in a folder, sorted by name. Together, they are one data set.

    Other files whose names begin with "." or "_", such as _SUCCESS, are left out, as other readers of such folders do.

    Raises:
        DataError: The folder has no Parquet file, contains the parts of several splits, lacks parts of a split, or has
            subfolders or other files whose rows would be missing.
    """
    shown = [path for path in sorted(folder.iterdir()) if not path.name.startswith((".", "_"))]
    parts = [path for path in shown if path.suffix.lower() == ".parquet" and not path.is_dir()]
    if not parts:
        raise DataError(
            f"{folder}: this is a folder without .parquet files. Give the path of a .jsonl, .csv or .parquet file, of "
            "a folder of .parquet files, or of a folder that datasets.Dataset.save_to_disk wrote."
        )
    nested = next((path for path in shown if path.is_dir() and any(path.rglob("*.parquet"))), None)
    if nested is not None:
        raise DataError(
            f"{folder}: the folder contains .parquet files, and so does its subfolder {nested.name}. Expected all "
            "files of the data set in one folder. Move them there, or give the path of one folder."
        )
    _require_no_other_rows(folder)
    splits = {name for path in parts if (name := _split_of(path))}
    if len(splits) > 1:
        raise DataError(
            f"{folder}: the folder contains the parts of several splits ({', '.join(sorted(splits))}). Move the parts "
            "of one split to a folder of their own, and give its path."
        )
    _require_all_parts(folder, parts)
    for path in parts:
        require_regular_file(path, "the data", DataError)
        refuse_pointer(path, "the data", DataError)
    return parts


def _require_no_other_rows(folder: Path) -> None:
    """Require that a folder contains no files with rows that would be left out.

    Raises:
        DataError: The name of a Parquet file with rows begins with "." or "_", or there is a data file with another
            suffix.
    """
    for path in sorted(folder.iterdir()):
        name = path.name.lower()
        hidden = name.startswith((".", "_"))
        if hidden and name.endswith(".parquet") and _has_rows(path):
            raise DataError(
                f"{folder}: the folder contains {path.name}. Files whose names begin with '.' or '_' are not read, so "
                "its rows would be left out. Rename the file, or move it to another folder."
            )
        if not hidden and _OTHER_DATA.search(name):
            raise DataError(
                f"{folder}: the folder contains .parquet files and {path.name}, whose rows would be left out. Convert "
                "this file to a .parquet file with the same columns, or move it to another folder."
            )


def _has_rows(path: Path) -> bool:
    """Return whether a file is a Parquet file with rows. Other programs also write hidden files with this suffix."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return bool(path.is_file() and pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException):
        return False


def _split_of(path: Path) -> str:
    """Return the split to which the name of a file assigns it; "" if the name does not say."""
    if found := _PART_OF_SPLIT.fullmatch(path.name):
        return found[1]
    return path.stem if path.stem.lower() in _SPLITS else ""


def _require_all_parts(folder: Path, parts: list[Path]) -> None:
    """Require that a folder contains each part of a split once, if the names give the number of parts.

    Raises:
        DataError: A part is missing or occurs twice.
    """
    numbered = [found for path in parts if (found := _PART_OF_SPLIT.fullmatch(path.name))]
    if not numbered:
        return
    counts = sorted({int(found[3]) for found in numbered})
    numbers = sorted(int(found[2]) for found in numbered)
    if len(counts) > 1 or numbers != list(range(counts[0])):
        raise DataError(
            f"{folder}: the name of {numbered[0][0]} says that there are {int(numbered[0][3]):,} parts, but the folder "
            f"contains the parts {', '.join(f'{found[2]}-of-{found[3]}' for found in numbered[:4])}"
            f"{' and others' if len(numbered) > 4 else ''}. Expected each part once. Add the missing parts, or move "
            "files of other data to another folder."
        )


def require_equal_columns(parts: list[ParquetRows]) -> None:
    """Require that each column that is used is in all parts of a data set or in none.

    Raises:
        DataError: A part lacks a column of another part.
    """
    first = parts[0]
    for part in parts[1:]:
        for name in sorted({*first.used} ^ {*part.used}):
            has, lacks = (first, part) if name in first.used else (part, first)
            raise DataError(
                f"{lacks.path}: column '{name}' is missing, but {has.path.name} in the same folder has it. Expected "
                "the same columns in all files. Add the column, or move files of other data to another folder."
            )


def _values(column: Any, path: Path, name: str, first: int) -> list[Any]:
    """Convert a column to Python values. Its first value is in row `first`."""
    values: list[Any] = []
    for number, scalar in enumerate(column, start=first):
        try:
            values.append(scalar.as_py())
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}:{number}: column '{name}' is not UTF-8: byte 0x{error.object[error.start]:02x} at offset "
                f"{error.start} of the value. Decode the text correctly and write the file again."
            ) from error
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"{path}:{number}: column '{name}' contains a {scalar.type} that cannot be read ({error}). Expected "
                "text. Write the column as text."
            ) from error
    return values
