"""Ids that are derived from the content are unique, readable, and independent of the order of the rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnaudit.data import load
from attnaudit.instances import Instance
from tests.strategies import with_permutation


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def content(one: Instance) -> tuple[str, str, str | None, str | None, str | None]:
    return one.id, one.text, one.label, one.query, one.source


def test_id_begins_with_the_first_words(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"text": "A Fine, subtle film."}])
    identifier = load(path).instances[0].id
    assert identifier.startswith("a-fine-subtle-")
    assert len(identifier) == len("a-fine-subtle-") + 12


def test_equal_rows_are_numbered(tmp_path: Path) -> None:
    rows = [{"text": "one"}, {"text": "two"}, {"text": "one"}, {"text": "one"}]
    ids = [one.id for one in load(write(tmp_path / "rows.jsonl", rows)).instances]
    assert ids[2] == f"{ids[0]}#2"
    assert ids[3] == f"{ids[0]}#3"
    assert len(set(ids)) == 4


@pytest.mark.parametrize("column", ["label", "query", "source"])
def test_the_id_depends_on_every_column(tmp_path: Path, column: str) -> None:
    rows = [{"text": "one"}, {"text": "one", column: "x"}, {"text": "one", column: "y"}]
    ids = [one.id for one in load(write(tmp_path / "rows.jsonl", rows)).instances]
    assert len({identifier.partition("#")[0] for identifier in ids}) == 3


def test_the_same_value_in_another_column_gives_another_id(tmp_path: Path) -> None:
    rows = [{"text": "one", "label": "x"}, {"text": "one", "query": "x"}]
    ids = [one.id for one in load(write(tmp_path / "rows.jsonl", rows)).instances]
    assert ids[0].partition("#")[0] != ids[1].partition("#")[0]


letters = st.sampled_from(["a", "b", "a b", "…"])
row = st.fixed_dictionaries({"text": letters}, optional={"label": letters, "query": letters})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(with_permutation(st.lists(row, min_size=1, max_size=8)))
def test_ids_and_hash_do_not_depend_on_the_order_of_rows(
    tmp_path: Path, orders: tuple[list[dict[str, str]], list[dict[str, str]]]
) -> None:
    first, second = (load(write(tmp_path / f"{name}.jsonl", rows)) for name, rows in zip("ab", orders, strict=True))
    assert len({one.id for one in first.instances}) == len(orders[0])
    assert sorted(map(content, first.instances), key=str) == sorted(map(content, second.instances), key=str)
    assert first.sha256() == second.sha256()
