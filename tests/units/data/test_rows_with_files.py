"""Rows that name a file: arrays and pictures instead of texts."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnaudit.data import load
from attnaudit.data.draws import open_draws
from attnaudit.data.row_parsing import InstanceReader
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.seeding import keyed_generator


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two bags, of which one is in a subfolder."""
    (tmp_path / "bags").mkdir()
    np.save(tmp_path / "one.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    np.save(tmp_path / "bags" / "two.npy", np.ones((2, 2), dtype=np.float16))
    return tmp_path


def draws_first(path: Path, seed: int) -> bool:
    """Whether the first line of a file of two lines is drawn first."""
    return bool(keyed_generator(seed, "order of the lines").permutation(np.arange(2, dtype=np.uint32))[0] == 0)


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_paths_are_relative_to_the_data_file(folder: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder / f"rows{suffix}", [{"file": "one.npy", "label": "a"}, {"file": "bags/two.npy", "label": "b"}])
    monkeypatch.chdir(folder / "bags")
    first, second = load(path).instances
    assert (first.file, second.file) == (str(folder / "one.npy"), str(folder / "bags" / "two.npy"))
    assert (first.text, second.text) == ("one.npy", "two.npy")
    assert first.file_sha256 == hashlib.sha256((folder / "one.npy").read_bytes()).hexdigest()


def test_the_hash_of_the_data_covers_contents_and_not_paths(folder: Path) -> None:
    def hashes(data: Dataset) -> tuple[str, str]:
        return data.sha256(), data.audited_sha256()

    rows = [{"file": "one.npy", "label": "a"}]
    before = load(write(folder / "rows.jsonl", rows))
    moved = folder / "elsewhere"
    moved.mkdir()
    (folder / "one.npy").rename(moved / "one.npy")
    after = load(write(moved / "rows.jsonl", rows))
    assert hashes(before) == hashes(after)
    assert before.instances[0].id == after.instances[0].id
    np.save(moved / "one.npy", np.zeros((3, 2), dtype=np.float32))
    changed = load(moved / "rows.jsonl")
    assert not set(hashes(changed)) & set(hashes(before))
    assert changed.instances[0].id != before.instances[0].id


def test_files_with_one_name_have_different_ids(folder: Path) -> None:
    np.save(folder / "bags" / "one.npy", np.zeros((1, 2)))
    rows = [{"file": "one.npy"}, {"file": "bags/one.npy"}]
    ids = {one.file: one.id for one in load(write(folder / "rows.jsonl", rows)).instances}
    reordered = {one.file: one.id for one in load(write(folder / "back.jsonl", rows[::-1])).instances}
    assert ids == reordered
    assert len(set(ids.values())) == 2


def test_only_drawn_files_of_a_lazily_read_file_are_opened(folder: Path) -> None:
    rows = [{"file": "one.npy", "label": "a"}, {"file": "absent.npy", "label": "b"}]
    path = write(folder / "rows.jsonl", rows)
    with pytest.raises(DataError, match=r"absent.npy"):
        load(path)
    first_of_both = next(seed for seed in range(20) if draws_first(path, seed))
    assert open_draws(path, first_of_both, lazily=True).first(1).instances[0].text == "one.npy"
    with pytest.raises(DataError, match=r"absent.npy"):
        open_draws(path, first_of_both, lazily=True).first(2)


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"file": "absent.npy"}, ("there is no file", "absent.npy")),
        ({"file": "ones.npy"}, ("there is no file", "Did you mean 'one.npy'")),
        ({"file": "nowhere/one.npy"}, ("The folder", "does not exist either")),
        ({"file": "rows.jsonl"}, ("the suffix '.jsonl'", ".npy, .safetensors, .pt, .png, .jpg, .jpeg or .wav")),
        ({"file": "bags.npy"}, ("this is a folder",)),
        ({"file": "pipe.npy"}, ("this is a pipe",)),
        ({"file": "../one.npy"}, ("expected a path inside the folder",)),
        ({"file": "/etc/passwd"}, ("expected a path inside the folder",)),
        ({"file": "a\x00b.npy"}, ("column 'file'",)),
        ({"file": "x" * 5000 + ".npy"}, ("column 'file'",)),
        ({"file": "one.npy", "text": "a text"}, ("either a text or a file", "rename this column")),
        ({"file": ""}, ("column 'file'", "no value")),
        ({"file": 3}, ("column 'file'", "expected text")),
        ({"path": "one.npy"}, ("'path'", "rename it to 'file'")),
    ],
)
def test_each_problem_has_one_clear_error(folder: Path, row: dict[str, object], parts: tuple[str, ...]) -> None:
    (folder / "bags.npy").mkdir()
    os.mkfifo(folder / "pipe.npy")
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"file": "one.npy"}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError) as caught:
        load(path)
    for part in (*parts, f"{path}:2: "):
        assert part in str(caught.value)


def test_a_symbolic_link_may_lead_elsewhere(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = tmp_path_factory.mktemp("store")
    (folder / "one.npy").rename(store / "blob.npy")
    (folder / "one.npy").symlink_to(store / "blob.npy")
    path = write(folder / "rows.csv", [{"file": "one.npy"}])
    assert load(path).instances[0].file == str(folder / "one.npy")
    (store / "blob.npy").unlink()
    with pytest.raises(DataError, match=r"symbolic link leads to a file that does not exist"):
        load(path)


def test_an_unreadable_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        if path.suffix == ".npy":
            raise PermissionError(13, "Permission denied")
        return original(path)

    path = write(folder / "rows.csv", [{"file": "one.npy"}])
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"rows.csv:2: column 'file'.*one.npy cannot be read: Permission denied"):
        load(path)


def test_a_file_that_several_rows_name_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    original = Path.read_bytes

    def count(path: Path) -> bytes:
        opened.append(path.name)
        return original(path)

    rows = [{"file": "one.npy", "query": "which?"}, {"file": "one.npy", "query": "how many?"}]
    path = write(folder / "rows.csv", rows)
    monkeypatch.setattr(Path, "read_bytes", count)
    assert len({one.id for one in load(path).instances}) == 2
    assert opened.count("one.npy") == 1


def test_instances_in_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    reader = InstanceReader("mine")
    relative = reader.from_instance(Instance(id="a", text="one", file="one.npy"), 1)
    absolute = reader.from_instance(Instance(id="b", text="one", file=str(folder / "one.npy")), 2)
    assert relative.file == absolute.file == str(folder / "one.npy")
    assert relative.file_sha256 == absolute.file_sha256 != ""
    known = Instance(id="c", text="one", file="one.npy", file_sha256=relative.file_sha256)
    assert reader.from_instance(known, 3).file_sha256 == relative.file_sha256
    with pytest.raises(DataError, match=r"mine:4: column 'file_sha256'.*the hash of the file"):
        reader.from_instance(Instance(id="d", text="one", file="one.npy", file_sha256="0" * 64), 4)
    with pytest.raises(DataError, match=r"no hash, because the row has no file"):
        reader.from_instance(Instance(id="e", text="one", file_sha256="0" * 64), 5)
