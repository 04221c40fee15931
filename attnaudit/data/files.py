"""Reading JSON Lines, CSV and Parquet into rows; each problem is reported with the place a user can go to."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attnaudit.data.row_parsing import Column, Row, check_columns, shorten
from attnaudit.errors import DataError, nearest

SUFFIXES: Final = (".jsonl", ".csv", ".parquet")
_LARGEST_FIELD: Final = 2**31 - 1  # the largest that the csv module takes on every platform
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a file holds. text_rules: every cell is text (CSV). Row numbers are lines, in Parquet rows, from 1."""

    columns: tuple[str, ...]
    rows: Sequence[Row]
    text_rules: bool = False


def read(path: Path) -> Table:
    """The rows of the file. Raises DataError that names file, row and mend."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file. {_near_files(path)}")
    if path.is_dir():
        raise DataError(f"{path}: this is a folder. Give the path of one {', '.join(SUFFIXES)} file.")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"{path}: the suffix '{path.suffix}' is not known. Expected {', '.join(SUFFIXES)}: convert the file, or "
            "rename it when it already holds one of these."
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}. Check its permissions.") from error
    if not content.removeprefix(_BYTE_ORDER_MARK).strip():
        raise DataError(f"{path}: the file is empty. Expected rows with a column 'text'.")
    if suffix == ".parquet":
        return _read_parquet(path, content)
    text = _decode(content, path)
    return _read_csv(text, path) if suffix == ".csv" else _read_jsonl(text, path)


def _near_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist either: correct the path."
    known = [file.name for file in path.parent.iterdir() if file.suffix.lower() in SUFFIXES]
    return nearest(path.name, known) if known else f"The folder {path.parent} holds no {', '.join(SUFFIXES)} file."


def _decode(content: bytes, path: Path) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}: the file is UTF-16, expected UTF-8. Save it as UTF-8.")
    body = content.removeprefix(_BYTE_ORDER_MARK)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start + len(content) - len(body)
        line = body.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: not UTF-8: byte 0x{body[error.start]:02x} at offset {offset} of the file. "
            "Expected UTF-8: save it as UTF-8 (it may be Latin-1 or Windows-1252 now)."
        ) from error


def _reject_duplicates(columns: Sequence[str], where: str) -> None:
    twice = [name for name, count in Counter(columns).items() if count > 1 and name.strip()]
    if twice:
        names = ", ".join(repr(shorten(name)) for name in twice)
        raise DataError(f"{where}: duplicate columns {names}. Expected each column once: rename or drop one of them.")


class _DuplicateKeyError(Exception):
    """A JSON object names one key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DuplicateKeyError([key for key, _ in pairs])
    return found


def _read_jsonl(text: str, path: Path) -> Table:
    rows: list[Row] = []
    columns: dict[str, None] = {}
    # Not splitlines(): JSON strings may hold U+2028 and its like as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        expected = 'Expected one JSON object a line, such as {"text": "...", "label": "..."}.'
        try:
            found = json.loads(line, object_pairs_hook=_object)
        except _DuplicateKeyError as error:
            _reject_duplicates(error.args[0], where)
            raise DataError(f"{where}: a key is given twice. {expected}") from error
        except json.JSONDecodeError as error:
            hint = " The file looks like one JSON array: write its objects one a line." if line.startswith("[") else ""
            raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}. {expected}{hint}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: this JSON cannot be read: {error}. {expected}") from error
        if not isinstance(found, dict):
            raise DataError(f"{where}: found a JSON {type(found).__name__}, not an object. {expected}")
        check_columns(found, where)
        columns.update(dict.fromkeys(found))
        rows.append((number, found))
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
                f"{where}: not CSV: {error}. Expected fields between commas; a field that holds a comma, a quote or a "
                "line end stands in double quotes, and quotes inside it are doubled."
            ) from error
        if not fields:
            continue
        if columns is None:
            columns = fields
            _check_header(columns, where)
        elif len(fields) != len(columns):
            raise DataError(
                f"{where}: found {len(fields)} fields, expected {len(columns)} as in the header "
                f"({', '.join(shorten(name) for name in columns)}). Put fields that hold commas in double quotes."
            )
        else:
            rows.append((number, {name: _cell(name, value) for name, value in zip(columns, fields, strict=True)}))
    if not rows:
        raise DataError(f"{path}: there is a header, and no row below it. Add rows with a text.")
    return Table(columns=tuple(columns or ()), rows=rows, text_rules=True)


def _check_header(columns: list[str], where: str) -> None:
    _reject_duplicates(columns, where)
    if len(columns) == 1:
        for mark, name in ((";", "semicolons"), ("\t", "tabs")):
            if Column.TEXT in columns[0].split(mark) and mark in columns[0]:
                raise DataError(f"{where}: the columns are separated by {name}. Expected commas: save it with commas.")
    check_columns(columns, where, hint=" The first row must be the header.")


def _cell(column: str, value: str) -> str | None:
    """An empty cell is no value, except where a text is needed: that is reported as blank."""
    return value if value or column == Column.TEXT else None


def _read_parquet(path: Path, content: bytes) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    mend = "Write the file again, for example with pandas.DataFrame.to_parquet."
    try:
        # Not read_table(path): that would also read columns out of folder names such as label=positive.
        file = pq.ParquetFile(io.BytesIO(content))
        names = [str(name) for name in file.schema_arrow.names]
        _reject_duplicates(names, str(path))
        check_columns(names, str(path))
        wanted = [name for name in names if name in set(Column)]
        table = file.read(columns=wanted)
    except (pa.ArrowException, OSError) as error:
        first = (str(error).splitlines() or ["unknown"])[0]
        raise DataError(f"{path}: this is not a readable Parquet file: {first}. {mend}") from error
    cells = {name: _values(table.column(name), path, name) for name in wanted}
    count = int(table.num_rows)
    rows = [(number, {name: cells[name][number - 1] for name in wanted}) for number in range(1, count + 1)]
    if not rows:
        raise DataError(f"{path}: the table has no rows. Add rows with a text.")
    return Table(columns=tuple(names), rows=rows)


def _values(column: Any, path: Path, name: str) -> list[Any]:
    values: list[Any] = []
    for number, scalar in enumerate(column, start=1):
        try:
            values.append(scalar.as_py())
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}:{number}: column '{name}' is not UTF-8: byte 0x{error.object[error.start]:02x} at offset "
                f"{error.start} of the value. Expected UTF-8: write the file again from decoded text."
            ) from error
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"{path}:{number}: column '{name}' holds {scalar.type} that cannot be read ({error}). Expected text: "
                "write the column as text."
            ) from error
    return values
