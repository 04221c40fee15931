"""Read JSON Lines, CSV and Parquet files into rows.

Errors name the file. Errors in a single row also give the number of the row.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attnaudit.data.cell_values import shorten
from attnaudit.data.column_names import Column, check_columns, reject_duplicates
from attnaudit.data.parquet_files import ParquetRows
from attnaudit.data.row_parsing import Row
from attnaudit.errors import DataError, nearest, refuse_pointer, require_regular_file
from attnaudit.formatting import plural

SUFFIXES: Final = (".jsonl", ".csv", ".parquet")
#: The suffixes as a phrase, for messages.
SUFFIX_LIST: Final = ".jsonl, .csv or .parquet"
_LARGEST_FIELD: Final = 2**31 - 1  # the largest limit that the csv module accepts on every platform
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_ENCODED: Final = "the file is encoded in {}. Save it as UTF-8."
#: The first bytes of a file -> why it cannot be read as text, and the fix. The marks of UTF-32 come first, because one
#: of them begins with a mark of UTF-16.
_OTHER_FORMATS: Final = {
    b"\x1f\x8b": "the file is compressed with gzip. Decompress it first, for example with gunzip.",
    b"PK\x03": "the file is a zip archive, such as an Excel workbook. Extract it, or export it as CSV in UTF-8.",
    b"PAR": "the file is a Parquet file. Give it the suffix .parquet.",
    b"\xff\xfe\x00": _ENCODED.format("UTF-32"),
    b"\x00\x00\xfe": _ENCODED.format("UTF-32"),
    b"\xff\xfe": _ENCODED.format("UTF-16"),
    b"\xfe\xff": _ENCODED.format("UTF-16"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The contents of a file.

    Attributes:
        columns: Names of the columns.
        rows: One pair per row: a number for messages, and the cells. In text files, the number is the row's first line.
            In Parquet files, it is the number of the row. Both are counted from 1.
        all_text: Whether every cell is text or None, as in CSV.
    """

    columns: tuple[str, ...]
    rows: Sequence[Row]
    all_text: bool = False


def require_data_file(path: Path) -> str:
    """Require a file of a supported format, and return its suffix in lower case.

    Raises:
        DataError: There is no such file, or it has another suffix.
    """
    if not path.exists():
        raise DataError(f"{path}: there is no such file. {_near_files(path)}")
    if path.is_dir():
        raise DataError(f"{path}: this is a folder. Give the path of a {SUFFIX_LIST} file.")
    require_regular_file(path, "the data", DataError)
    refuse_pointer(path, "the data", DataError)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"{path}: the suffix '{path.suffix}' is not supported. Expected {SUFFIX_LIST}. Convert the file, "
            "or rename it if it already has one of these formats."
        )
    return suffix


def read(path: Path) -> Table:
    """Read a data file into a table.

    Args:
        path: A .jsonl, .csv or .parquet file.

    Raises:
        DataError: The file cannot be read, or its contents are invalid. The message names the file, the row if the
            error is in a single row, and the fix.
    """
    suffix = require_data_file(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    if not content.removeprefix(BYTE_ORDER_MARK).strip():
        raise empty(path)
    if suffix == ".parquet":
        return _read_parquet(path, content)
    text = _decode(content, path)
    return _read_csv(text, path) if suffix == ".csv" else _read_jsonl(text, path)


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a file that the operating system cannot read."""
    return DataError(f"{path}: the file cannot be read: {error.strerror or error}. Check its permissions.")


def empty(path: Path) -> DataError:
    """Return the error for a file without rows."""
    return DataError(
        f"{path}: the file is empty. Expected rows with a column 'text' or 'file'. Give another file, or add rows."
    )


def _near_files(path: Path) -> str:
    """Return a hint for a path that does not exist.

    The hint names similar data files, or says that the folder does not exist or contains no data file.
    """
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist either. Correct the path."
    names = [file.name for file in path.parent.iterdir() if file.suffix.lower() in SUFFIXES]
    return nearest(path.name, names) if names else f"The folder {path.parent} contains no {SUFFIX_LIST} file."


def refuse_other_formats(start: bytes, path: Path) -> None:
    """Refuse a file that is compressed, or encoded in UTF-16 or UTF-32, instead of a text file in UTF-8.

    Args:
        start: The first three bytes of the file, or more.
        path: The path of the file.

    Raises:
        DataError: The file has another format. The message names it.
    """
    for beginning, problem in _OTHER_FORMATS.items():
        if start.startswith(beginning):
            raise DataError(f"{path}: {problem}")
    if len(start) > 1 and 0 in start[:2]:
        raise DataError(f"{path}: {_ENCODED.format('UTF-16')}")


def not_utf8(error: UnicodeDecodeError, where: str, offset: int) -> DataError:
    """Return the error for text that is not UTF-8.

    Args:
        error: The error that the decoder raised.
        where: The file and the line.
        offset: The position of the decoded text in the file, in bytes.
    """
    return DataError(
        f"{where}: the file is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {offset + error.start} of "
        "the file. The file may be encoded in Latin-1 or Windows-1252: save it as UTF-8."
    )


def _decode(content: bytes, path: Path) -> str:
    refuse_other_formats(content, path)
    body = content.removeprefix(BYTE_ORDER_MARK)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise not_utf8(error, f"{path}:{line}", len(content) - len(body)) from error


class _DuplicateKeyError(Exception):
    """Raised when a JSON object contains a key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from the pairs of a JSON object.

    A duplicate key raises _DuplicateKeyError. Without this function, `json` would silently keep only the last value.
    """
    content = dict(pairs)
    if len(content) < len(pairs):
        raise _DuplicateKeyError([key for key, _ in pairs])
    return content


#: Decoder of the lines of a JSON Lines file.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object)


def parse_line(line: str, where: str) -> dict[str, Any]:
    """Read one line of a JSON Lines file.

    Args:
        line: The line.
        where: The file and the line, for messages.

    Raises:
        DataError: The line is not a JSON object, or the object has no text, a duplicate key or a misspelt key.
    """
    expected = 'Expected one JSON object per line, such as {"text": "...", "label": "..."}.'
    try:
        content = _DECODER.decode(line)
    except _DuplicateKeyError as error:
        reject_duplicates(error.args[0], where)
        raise DataError(f"{where}: the object contains a key twice. {expected}") from error
    except json.JSONDecodeError as error:
        is_array = line.startswith("[") or (error.msg == "Extra data" and line.rstrip().endswith((",", "]")))
        hint = " The file looks like one JSON array: write each object on a separate line." if is_array else ""
        raise DataError(f"{where}: not valid JSON: {error.msg} at column {error.colno}. {expected}{hint}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: this JSON cannot be read: {error}. {expected}") from error
    if not isinstance(content, dict):
        names = {list: "an array", str: "a string", bool: "a Boolean", type(None): "null"}
        raise DataError(f"{where}: found {names.get(type(content), 'a number')}. {expected}")
    check_columns(content, where)
    return content


def _read_jsonl(text: str, path: Path) -> Table:
    rows: list[Row] = []
    columns: dict[str, None] = {}
    # splitlines() would also split at U+2028 and similar characters, which JSON strings may contain.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        content = parse_line(line, f"{path}:{number}")
        columns.update(dict.fromkeys(content))
        rows.append((number, content))
    return Table(columns=tuple(columns), rows=rows)


def _read_csv(text: str, path: Path) -> Table:
    limit = csv.field_size_limit(_LARGEST_FIELD)
    try:
        return _parse_csv(text, path)
    finally:
        csv.field_size_limit(limit)


def _parse_csv(text: str, path: Path) -> Table:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] | None = None
    rows: list[Row] = []
    while True:
        number = reader.line_num + 1
        where = f"{path}:{number}"
        try:
            fields = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise DataError(
                f"{where}: the file is not valid CSV: {error}. Expected fields separated by commas. Put a field that "
                "contains a comma, a quote or a line break in double quotes, and double the quotes inside it."
            ) from error
        if not fields:
            continue
        if columns is None:
            columns = fields
            _check_header(columns, where)
        elif len(fields) != len(columns):
            raise DataError(
                f"{where}: found {plural(len(fields), 'field')}, expected {len(columns)} as in the header "
                f"({', '.join(shorten(name) for name in columns)}). Put fields that contain commas in double quotes."
            )
        else:
            rows.append((number, {name: _cell(name, value) for name, value in zip(columns, fields, strict=True)}))
    if not rows:
        raise DataError(f"{path}: the file has a header but no rows. Add at least one row.")
    return Table(columns=tuple(columns or ()), rows=rows, all_text=True)


def _check_header(columns: list[str], where: str) -> None:
    reject_duplicates(columns, where)
    if len(columns) == 1:
        for separator, name in ((";", "semicolons"), ("\t", "tabs")):
            if separator in columns[0] and {Column.TEXT, Column.FILE} & set(columns[0].split(separator)):
                raise DataError(
                    f"{where}: the columns are separated by {name} instead of commas. Save the file with commas."
                )
    check_columns(columns, where, hint=" The first row must be the header.")


def _cell(column: str, value: str) -> str | None:
    """Return the cell, or None if it is empty.

    In the column `text`, an empty cell stays "". It is then reported as a blank text.
    """
    return value if value or column == Column.TEXT else None


def _read_parquet(path: Path, content: bytes) -> Table:
    file = ParquetRows(path, io.BytesIO(content))
    if len(file) == 0:
        raise DataError(f"{path}: the table has no rows. Add at least one row.")
    return Table(columns=file.columns, rows=list(file))
