"""Rows that are read when they are needed: the same instances, ids and samples as rows in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.data.draws import open_draws
from attnaudit.data.lazy_rows import LazyInstances, load_lazily
from attnaudit.data.sources import load_file
from attnaudit.errors import DataError
from attnaudit.instances import by_id

TEXTS = ["good", "bad", "a film", "ünïcode 𝄞", "\ufffd end", "good#2"]
ROW = st.fixed_dictionaries(
    {"text": st.sampled_from(TEXTS)},
    optional={"label": st.sampled_from(["0", "1"]), "source": st.sampled_from(["s", "t"])},
)


def written(folder: Path, rows: list[dict[str, str]]) -> Path:
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
