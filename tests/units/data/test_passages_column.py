"""The column `passages`: a list of texts."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnaudit.data import load
from attnaudit.errors import DataError


def _load(path: Path, row: dict[str, object]) -> tuple[str, ...]:
    path.write_text(json.dumps({"text": "a question", **row}) + "\n", encoding="utf-8")
    return load(path).instances[0].passages


def test_lists_in_every_format(tmp_path: Path) -> None:
    passages = ["The sky, is blue.", "Ein „Zitat“"]
    assert _load(tmp_path / "a.jsonl", {"passages": passages}) == tuple(passages)
    assert _load(tmp_path / "b.jsonl", {"passages": None}) == ()
    pq.write_table(pa.table({"text": ["a question"], "passages": [passages]}), tmp_path / "c.parquet")
    assert load(tmp_path / "c.parquet").instances[0].passages == tuple(passages)
    cell = json.dumps(passages).replace('"', '""')
    (tmp_path / "d.csv").write_text(f'text,passages\na question,"{cell}"\n', encoding="utf-8")
    assert load(tmp_path / "d.csv").instances[0].passages == tuple(passages)


def test_passages_and_their_order_change_the_id_and_the_hash(tmp_path: Path) -> None:
    hashes, ids = set(), set()
    for number, passages in enumerate((["a", "b"], ["b", "a"], ["a b"], None)):
        path = tmp_path / f"{number}.jsonl"
        _load(path, {"passages": passages})
        hashes.add(load(path).sha256())
        ids.add(load(path).instances[0].id)
    assert len(hashes) == len(ids) == 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a", ""], "column 'passages': found a blank passage at place 2"),
        (["a", "  \n"], "found a blank passage at place 2"),
        (["a", 3], "found int"),
        ("no list", "found text that is no JSON list"),
        ({"a": 1}, "found an object"),
        ("[" * 100_000, "found text that is no JSON list \\(maximum recursion depth"),
        ("[" + "9" * 5000 + "]", "found text that is no JSON list \\(Exceeds the limit"),
        ("null", "found null, expected a list of passages"),
        ([["a"]], "found a list \\(\\['a'\\]\\) at place 1"),
        (float("nan"), "found float \\(nan\\)"),
    ],
)
def test_invalid_cells(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        _load(tmp_path / "a.jsonl", {"passages": value})
