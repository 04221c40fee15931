"""Rows that are read when they are needed: the same instances, ids and samples as rows in memory."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.data.draws import open_draws
from attnaudit.data.labels import label_indices
from attnaudit.data.lazy_rows import LazyInstances, load_lazily
from attnaudit.data.sampling import sample
from attnaudit.data.sources import load_file
from attnaudit.errors import DataError
from attnaudit.instances import Instance, by_id, consecutive, ids_of, labels_of

TEXTS = ["good", "bad", "a film", "ünïcode 𝄞", "\ufffd end", "good#2"]
ROW = st.fixed_dictionaries(
    {"text": st.sampled_from(TEXTS)},
    optional={"label": st.sampled_from(["0", "1"]), "source": st.sampled_from(["s", "t"])},
)


def written(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


@given(st.lists(ROW, min_size=1, max_size=30))
def test_lazy_instances_are_those_in_memory_sorted_by_id(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]]
) -> None:
    path = written(tmp_path_factory.mktemp("rows"), rows)
    complete, lazy = load_file(path), load_lazily(path)
    assert list(lazy.instances) == by_id(complete.instances)
    assert lazy.instances[:] == by_id(complete.instances)
    assert [lazy.instances[i] for i in range(len(lazy.instances))] == by_id(complete.instances)
    assert (lazy.classes, lazy.rows) == (complete.classes, complete.rows)
    assert lazy.sha256() == complete.sha256()
    assert lazy.audited_sha256() == complete.audited_sha256()
    assert by_id(lazy.instances) is lazy.instances
    assert list(labels_of(lazy.instances)) == [one.label for one in by_id(complete.instances)]
    assert labels_of(lazy.instances)[1:3] == [one.label for one in by_id(complete.instances)[1:3]]


def test_a_sample_reads_no_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, [{"text": f"text {i}"} for i in range(40)])
    expected, rows = sample(load_file(path), 3, seed=1), load_lazily(path)
    read: list[int] = []

    def counted(self: LazyInstances, places: Sequence[int]) -> list[Instance]:
        read.extend(places)
        return plain(self, places)

    plain = LazyInstances._read
    monkeypatch.setattr(LazyInstances, "_read", counted)
    assert sample(rows, 3, seed=1).instances == expected.instances
    assert len(read) == 3


def test_ignored_columns_are_named_as_in_memory(tmp_path: Path) -> None:
    path = written(tmp_path, [{"text": "good", "split": "test"}, {"text": "bad", "split": "test", "note": ""}])
    complete, lazy = load_file(path), load_lazily(path)
    assert lazy.description == complete.description == "Rows of rows.jsonl. Ignored columns: 'split', 'note'."


def test_consecutive_rows_are_read_when_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, [{"text": f"text {i}"} for i in range(9)])
    expected = by_id(load_file(path).instances)
    rows = load_lazily(path).instances
    with monkeypatch.context() as patch:
        patch.setattr(LazyInstances, "_read", lambda *_: pytest.fail("the rows were read too early"))
        later = consecutive(rows, 6, 12)
        assert len(later) == 3
        assert ids_of(later) == [one.id for one in expected[6:]]
    assert list(later) == expected[6:]
    assert pickle.loads(pickle.dumps(consecutive(rows, 2, 4))) == expected[2:4]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a", "label": "0"}, {"text": "b", "label": "9"}], r"rows.jsonl:3: column 'label': '9' is not one"),
        ([{"text": "a", "label": "0"}, {"text": "b", "labels": ["0"]}], r"rows.jsonl:3: column 'labels' is filled"),
    ],
)
def test_a_label_that_does_not_fit_the_model_is_found_without_the_rows(
    tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        label_indices(load_lazily(written(tmp_path, rows)), ["no", "yes"])


def test_the_labels_of_a_large_data_set_are_compared_without_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = load_lazily(
        written(tmp_path, [{"text": text, "label": "01"[text > "b"]} for text in "abcd"] + [{"text": "e"}])
    )
    expected = [{"0": 0, "1": 1, None: -1}[one.label] for one in rows.instances]
    monkeypatch.setattr(LazyInstances, "_read", lambda *_: pytest.fail("the rows were read"))
    assert label_indices(rows, ["0", "1"]) == expected


def test_a_sample_of_a_large_file_is_the_sample_of_the_same_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, [{"text": f"text {i}", "label": str(i % 2)} for i in range(300)])
    expected = open_draws(path, 3).first(40)
    monkeypatch.setattr("attnaudit.data.sources.LARGE_FILE", 100)
    draws = open_draws(path, 3)
    assert isinstance(draws.first(None).instances, LazyInstances)
    assert list(draws.first(40).instances) == list(expected.instances)
    assert draws.first(40).audited_sha256() == expected.audited_sha256()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"text": "a", "id": "x"}', '{"text": "b", "id": "x"}'], r"rows.jsonl:2: column 'id': 'x' was given before"),
        (['{"text": "a"}', '{"text": ""}'], r"rows.jsonl:2: column 'text'"),
        (['{"text": "a"}', "{"], r"rows.jsonl:2: not valid JSON"),
    ],
)
def test_an_invalid_row_is_found_at_the_start(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_lazily(path)


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [{"text": "a"}, {"text": "b"}])
    rows = load_lazily(path).instances
    path.write_text('{"text": "other"}\n', encoding="utf-8")
    with pytest.raises(DataError, match="changed while it was being read"):
        rows[0]
