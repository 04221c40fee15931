"""Reading Parquet files: what is read, and the error for each kind of unusable file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnaudit.data import load
from attnaudit.errors import DataError
from tests.units.data.written_files import refused, write_parquet


def test_parquet_columns_do_not_come_from_folder_names(tmp_path: Path) -> None:
    folder = tmp_path / "label=positive"
    folder.mkdir()
    assert load(write_parquet(folder / "rows.parquet", [{"text": "one"}])).instances[0].label is None


def test_parquet_dictionary_and_large_strings(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["one", "two"], pa.large_string()), "label": pa.array(["a", "b"])})
    pq.write_table(table.set_column(1, "label", table["label"].dictionary_encode()), tmp_path / "rows.parquet")
    assert [instance.label for instance in load(tmp_path / "rows.parquet").instances] == ["a", "b"]


def test_unreadable_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 this is not a table")
    refused(path, "not a readable Parquet file", "not a parquet file. Write the file again")


def test_truncated_parquet(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", [{"text": "word " * 100}])
    path.write_bytes(path.read_bytes()[:-40])
    refused(path, "not a readable Parquet file")


def test_parquet_text_that_is_not_utf8(tmp_path: Path) -> None:
    broken = pa.array([b"good", b"caf\xe9"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": broken}), tmp_path / "rows.parquet")
    refused(tmp_path / "rows.parquet", f"{tmp_path / 'rows.parquet'}:2:", "not UTF-8", "0xe9", "offset 3")


def test_parquet_bytes_are_not_text(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "rows.parquet", [{"text": b"one"}])
    refused(path, f"{path}:1:", "column 'text'", "bytes")


def test_a_parquet_cell_that_python_cannot_represent_is_refused(tmp_path: Path) -> None:
    days = pa.array([1, 2**30], type=pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"text": ["one", "two"], "label": days}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet:2: column 'label' contains a date32.*Expected text"):
        load(tmp_path / "rows.parquet")
