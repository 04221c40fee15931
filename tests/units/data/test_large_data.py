"""Folders of Parquet files, data sets of the package `datasets`, and data that do not fit in memory."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets as hf
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnaudit.data.draws import open_draws
from attnaudit.data.lazy_rows import LazyInstances
from attnaudit.data.sampling import sample
from attnaudit.data.sources import load
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance, by_id
from attnaudit.registry import datasets, register_dataset

ROWS: list[dict[str, Any]] = [
    {"text": f"text {i % 70}", "label": ("negative", "positive")[i % 2], "source": f"s{i % 9}"} for i in range(100)
]


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_known", dict(datasets._known))


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnaudit.data.sources.LARGE_FILE", 100)


def write_parts(folder: Path, *parts: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(parts):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"part-{number}.parquet")
    return folder


def same(found: Dataset, expected: Dataset) -> None:
    def content(dataset: Dataset) -> list[tuple[object, ...]]:
        return [(one.id, one.text, one.label, one.source) for one in by_id(dataset.instances)]

    assert content(found) == content(expected)
    assert found.audited_sha256() == expected.audited_sha256()
    assert (found.classes, found.rows) == (expected.classes, expected.rows)


@pytest.fixture
def expected(tmp_path: Path) -> Dataset:
    """The same rows in one file, in memory."""
    path = tmp_path / "one.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return load(path)


def test_a_folder_of_parquet_files_is_one_data_set(tmp_path: Path, expected: Dataset) -> None:
    folder = write_parts(tmp_path / "parts", ROWS[:30], ROWS[30:])
    (folder / "_SUCCESS").touch()
    (folder / ".part.parquet.crc").touch()
    found = load(folder)
    same(found, expected)
    assert (found.name, found.instances[30].where) == ("parts", f"{folder / 'part-1.parquet'}:1")


def test_rows_outside_memory_are_the_rows_in_memory(tmp_path: Path, expected: Dataset, small_memory: None) -> None:
    folder = write_parts(tmp_path / "parts", ROWS[:30], ROWS[30:])
    hf.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))

    @register_dataset("generated")
    def generated() -> Iterator[dict[str, Any]]:
        yield from ROWS

    for name in (folder, tmp_path / "one.parquet", tmp_path / "saved", "generated"):
        draws = open_draws(name, 5)
        dataset = draws.first(None)
        assert isinstance(dataset.instances, LazyInstances), name
        same(dataset, expected)
        same(draws.first(17), sample(expected, 17, seed=5))


def test_sources_of_rows_outside_memory_are_in_files(tmp_path: Path, small_memory: None) -> None:
    rows = [dict(row, id=str(i), source=row["source"] if i % 3 else None) for i, row in enumerate(ROWS)]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    instances = load(path, in_memory=False).instances
    assert isinstance(instances, LazyInstances)
    stored = instances.sources
    assert stored is not None
    assert stored.names[:] == sorted({str(row["source"]) for row in rows if row["source"]})
    found = [None if code < 0 else stored.names[code] for code in stored.codes.tolist()]
    assert found == [one.source for one in instances]
    pq.write_table(pa.Table.from_pylist(rows).drop_columns("source"), path)
    without = load(path, in_memory=False).instances
    assert isinstance(without, LazyInstances)
    assert without.sources is None


@pytest.mark.slow
def test_a_generator_of_large_rows_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnaudit.data.sources.LARGE_FILE", 1_000_000)

    @register_dataset("large")
    def large() -> Iterator[dict[str, str]]:
        for i in range(800):
            yield {"text": f"{i} " + "word " * 2_500, "label": str(i % 2)}

    tracemalloc.start()
    try:
        drawn = open_draws("large", 0).first(3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(drawn.instances), drawn.rows) == (3, 800)
    assert peak < 6_000_000, peak  # the texts have 10 MB


def test_labels_of_hugging_face_data_are_names(tmp_path: Path) -> None:
    features = hf.Features(
        {"text": hf.Value("string"), "label": hf.ClassLabel(names=["sad", "happy"]), "other": hf.Value("int64")}
    )
    rows = [
        {"text": "one", "label": 1, "other": 3},
        {"text": "two", "label": 0, "other": 4},
        {"text": "three", "label": None, "other": 5},
        {"text": "four", "label": -1, "other": 5},
    ]
    table = hf.Dataset.from_list(rows, features=features)
    table.save_to_disk(str(tmp_path / "saved"))

    @register_dataset("returned")
    def returned() -> hf.Dataset:
        return table

    @register_dataset("streamed")
    def streamed() -> hf.IterableDataset:
        return table.to_iterable_dataset()

    for name in (tmp_path / "saved", "returned", "streamed"):
        assert [one.label for one in load(name).instances] == ["happy", "sad", None, None]


def test_several_labels_of_hugging_face_data_are_names(tmp_path: Path) -> None:
    features = hf.Features({"text": hf.Value("string"), "labels": hf.List(hf.ClassLabel(names=["a", "b", "c"]))})
    rows = [{"text": "one", "labels": [0, 2]}, {"text": "two", "labels": []}]
    hf.Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    assert [one.labels for one in load(tmp_path / "saved").instances] == [("a", "c"), ()]


def test_files_of_a_saved_data_set_are_in_its_folder(tmp_path: Path, small_memory: None) -> None:
    rows = [{"file": f"array-{i}.npy", "label": str(i % 2)} for i in range(4)]
    hf.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    for i, row in enumerate(rows):
        np.save(tmp_path / "saved" / row["file"], np.full((2, 2), i, dtype=np.float32))
    for in_memory in (True, False):
        found = load(tmp_path / "saved", in_memory=in_memory)
        assert sorted(one.text for one in found.instances) == [row["file"] for row in rows]
    hf.Dataset.from_list([{"file": str(tmp_path / "saved" / "array-0.npy")}]).save_to_disk(str(tmp_path / "absolute"))
    for in_memory in (True, False):
        refused(tmp_path / "absolute", "column 'file'", in_memory=in_memory)


@pytest.mark.parametrize("labels", [(["x"], ["x"]), (["x", "y"], [])])
def test_several_labels_of_a_text_are_no_classes_in_memory_or_outside(
    labels: tuple[list[str], ...], tmp_path: Path, small_memory: None
) -> None:
    folder = write_parts(tmp_path / "parts", [{"text": f"text {i}", "labels": labels[i % 2]} for i in range(20)])
    outside = load(folder, in_memory=False)
    assert isinstance(outside.instances, LazyInstances)
    assert outside.classes == load(folder).classes == ()


def refused(name: str | Path, *fragments: str, in_memory: bool = True) -> None:
    with pytest.raises(DataError) as caught:
        load(name, in_memory=in_memory)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_folders_that_are_no_single_data_set_are_refused(tmp_path: Path) -> None:
    splits = tmp_path / "splits"
    splits.mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        pq.write_table(pa.Table.from_pylist(ROWS[:3]), splits / f"{name}.parquet")
    refused(splits, "several splits (test, train)", "Move the parts of one split")
    (splits / "test-00000-of-00001.parquet").unlink()
    assert load(splits).rows == 6
    (splits / "train-00001-of-00002.parquet").rename(tmp_path / "second.parquet")
    refused(splits, "says that there are 2 parts, but the folder contains the parts 00000-of-00002. Expected each part")
    (tmp_path / "second.parquet").rename(splits / "train-00001-of-00002-1e3ecfb5a6ab5a3f.parquet")
    assert load(splits).rows == 6
    pq.write_table(pa.Table.from_pylist(ROWS[:3]), splits / "test.parquet")
    refused(splits, "several splits (test, train)")
    (splits / "test.parquet").unlink()
    write_parts(splits / "more", ROWS[:2])
    refused(splits, "and so does its subfolder more")
    refused(write_parts(tmp_path / "empty"), "folder without .parquet files")
    hf.DatasetDict({"test": hf.Dataset.from_list(ROWS[:3])}).save_to_disk(str(tmp_path / "both"))
    refused(tmp_path / "both", "several splits (test)", f"such as {tmp_path / 'both' / 'test'}")

    @register_dataset("splits")
    def returned() -> hf.DatasetDict:
        return hf.DatasetDict({"test": hf.Dataset.from_list(ROWS[:3])})

    refused("splits", "several splits (test)", "data['test']")


def test_parts_with_other_columns_are_refused(tmp_path: Path) -> None:
    folder = write_parts(tmp_path / "parts", ROWS[:2], [{"text": "a", "label": "positive"}])
    refused(folder, "part-1.parquet: column 'source' is missing, but part-0.parquet")


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_invalid_row_of_a_part_names_its_file(tmp_path: Path, small_memory: None, *, in_memory: bool) -> None:
    folder = write_parts(tmp_path / "parts", ROWS[:2], [ROWS[0], {**ROWS[0], "text": " "}])
    refused(folder, "part-1.parquet:2: column 'text'", in_memory=in_memory)
    given = [{"text": "a", "id": "x"}, {"text": "b", "id": "y"}]
    folder = write_parts(tmp_path / "ids", given, [{"text": "c", "id": "x"}])
    refused(folder, "part-1.parquet:1: column 'id': 'x' was given before, in", in_memory=in_memory)


def test_a_damaged_saved_data_set_is_refused(tmp_path: Path) -> None:
    hf.Dataset.from_list(ROWS[:3]).save_to_disk(str(tmp_path / "saved"))
    next((tmp_path / "saved").glob("*.arrow")).write_bytes(b"nothing")
    refused(tmp_path / "saved", "cannot be read", "Save it again")


def test_the_error_of_a_generator_names_the_function(small_memory: None) -> None:
    @register_dataset("breaks")
    def breaks() -> Iterator[dict[str, str]]:
        yield from ROWS
        raise RuntimeError("connection lost")

    for in_memory in (True, False):
        with pytest.raises(DataError, match=re.escape("failed with RuntimeError: connection lost")):
            load("breaks", in_memory=in_memory)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_a_data_set_of_dicts_and_instances_is_refused(small_memory: None, in_memory: bool, first: int) -> None:
    kinds: list[object] = [{"text": "a text", "id": "twin"}, Instance(id="twin", text="another text")]
    register_dataset("mixed")(lambda: [kinds[first], kinds[1 - first]] * 20)
    with pytest.raises(DataError, match=r"mixed:\d+: found .* Expected a Dataset, or an iterable of"):
        load("mixed", in_memory=in_memory)
