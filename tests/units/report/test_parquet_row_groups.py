"""Row groups that are read one by one equal those that pyarrow reads with the whole index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit.report.parquet_row_groups import RowGroups, only_value, statistics_of

TABLE = pa.table(
    {
        "name": pa.array(["a", "a", None, "ü" * 300, "", "b"] * 10),
        "number": pa.array([1, 2, -3, None, 2**40, 0] * 10, pa.int64()),
        "flag": pa.array([True, None, False] * 20),
        "places": pa.array([[[0.5, 1.0], []], None, []] * 20, pa.list_(pa.list_(pa.float32()))),
        "tokens": pa.array([["a", None], None] * 30, pa.list_(pa.string())),
        "constant": pa.array(["same"] * 60),
    }
).replace_schema_metadata({"key": "value", "long": "x" * 1_000})


def write(path: Path, rows: int, **options: Any) -> Path:
    pq.write_table(TABLE.slice(0, rows), path, **options)
    return path


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 60),
    st.sampled_from([1, 3, 16, 17, 60]),
    st.sampled_from(["1.0", "2.4", "2.6"]),
    st.sampled_from(["none", "zstd"]),
    st.booleans(),
    st.booleans(),
)
def test_row_groups_equal_those_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    size: int,
    version: Any,
    compression: Any,
    statistics: bool,
    indexed: bool,
) -> None:
    path = write(
        tmp_path_factory.mktemp("groups") / "file.parquet",
        rows,
        row_group_size=size,
        version=version,
        compression=compression,
        write_statistics=statistics,
        write_page_index=indexed,
        store_decimal_as_integer=indexed,
    )
    expected, found = pq.ParquetFile(path), RowGroups(path)
    assert (len(found), found.rows) == (expected.num_row_groups, rows)
    assert found.schema.equals(expected.schema_arrow, check_metadata=True)
    groups = 0
    for number, group in enumerate(found):
        assert group.num_row_groups == 1
        assert group.read_row_group(0).equals(expected.read_row_group(number))
        assert group.metadata.row_group(0).to_dict() == expected.metadata.row_group(number).to_dict()
        assert group.metadata.num_rows == expected.metadata.row_group(number).num_rows
        groups += 1
    assert groups == len(found)


def test_the_only_value_of_a_column_is_known_from_the_statistics(tmp_path: Path) -> None:
    for group in RowGroups(write(tmp_path / "file.parquet", 12, row_group_size=2)):
        assert only_value(group, "constant") == "same"
        assert statistics_of(group, "tokens.list.element").null_count == 2
        assert statistics_of(group, "unknown") is None
    first, second, *_ = RowGroups(write(tmp_path / "file.parquet", 12, row_group_size=2))
    assert (only_value(first, "name"), only_value(second, "number")) == ("a", "-3")
    assert only_value(first, "number") is None
    (group,) = RowGroups(write(tmp_path / "without.parquet", 12, write_statistics=False))
    assert only_value(group, "constant") is None


def test_columns_are_read_as_dictionaries(tmp_path: Path) -> None:
    path = write(tmp_path / "file.parquet", 12)
    for group in RowGroups(path, dictionaries=["constant"]):
        assert pa.types.is_dictionary(group.read_row_group(0).schema.field("constant").type)


def test_files_that_are_no_parquet_files_are_refused(tmp_path: Path) -> None:
    content = write(tmp_path / "file.parquet", 60, row_group_size=10).read_bytes()
    path = tmp_path / "damaged.parquet"
    for damaged in (b"", b"PAR1", content[:-1], content[:500], b"PAR1" + content[-400:], bytes(100)):
        path.write_bytes(damaged)
        with pytest.raises(pa.ArrowInvalid, match=r"the file is too short|does not end as|is damaged"):
            RowGroups(path)
    with pytest.raises(FileNotFoundError):
        RowGroups(tmp_path / "absent.parquet")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_index_is_an_error_or_gives_row_groups(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Nothing else may be raised, and no damaged file may make the program wait forever."""
    path = write(tmp_path_factory.getbasetemp() / "damage.parquet", 60, row_group_size=10)
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[-8:-4], "little")
    place = len(content) - 8 - data.draw(st.integers(1, size))
    content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        for group in RowGroups(path):
            assert group.num_row_groups == 1
    except (pa.ArrowException, OSError, UnicodeDecodeError):  # the last one is raised by pyarrow for names of columns
        pass


@pytest.mark.slow
def test_an_index_with_negative_numbers_is_an_error_or_gives_row_groups(tmp_path: Path) -> None:
    """The lowest bit of an integer is its sign."""
    path = tmp_path / "file.parquet"
    pq.write_table(TABLE.select(["number"]), path)
    content = path.read_bytes()
    signs = []
    for place in range(len(content) - 8 - int.from_bytes(content[-8:-4], "little"), len(content) - 8):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            groups = RowGroups(path)
            signs.append(groups.rows < 0)
            for group in groups:
                signs.append(group.metadata.num_rows < 0)
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            pass
    assert sum(signs) >= 2  # the number of all rows, and that of the rows of the group


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "file.parquet", 60, row_group_size=10)
    groups = RowGroups(path)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(pa.ArrowInvalid, match="changed while it was being read"):
        list(groups)
