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


# --- Folders of Parquet files


def folder_of_two(tmp_path: Path) -> Path:
    write_parquet(tmp_path / "a.parquet", [{"text": "one"}])
    write_parquet(tmp_path / "b.parquet", [{"text": "two"}])
    return tmp_path


def test_other_files_in_a_folder_are_left_out_if_they_have_no_rows(tmp_path: Path) -> None:
    folder = folder_of_two(tmp_path)
    for name in ("_SUCCESS", ".part-0.parquet.crc", "._a.parquet", "README.md", "a.parquet.sha256"):
        (folder / name).write_bytes(b"not a table")
    write_parquet(folder / "_empty.parquet", [])
    assert [instance.text for instance in load(folder).instances] == ["one", "two"]


@pytest.mark.parametrize("name", ["_b.parquet", ".b.parquet"])
def test_a_hidden_file_with_rows_is_refused(tmp_path: Path, name: str) -> None:
    folder = folder_of_two(tmp_path)
    write_parquet(folder / name, [{"text": "three"}])
    refused(folder, f"contains {name}", "its rows would be left out. Rename the file")


@pytest.mark.parametrize("name", ["c.jsonl", "c.csv", "c.parq", "c.pq", "c.parquet.gz", "c.jsonl.gz", "C.PARQUET.ZST"])
def test_a_data_file_with_another_suffix_is_refused(tmp_path: Path, name: str) -> None:
    folder = folder_of_two(tmp_path)
    (folder / name).write_bytes(b"rows")
    refused(folder, f".parquet files and {name}", "move it to another folder")
