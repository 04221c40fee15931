"""Rows that are drawn in random order, from files and from streams."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnaudit.data import load, sample
from attnaudit.data.draws import CompleteDraws, Draws, FileDraws, StreamDraws, open_draws
from attnaudit.errors import AuditError, DataError
from attnaudit.instances import Instance
from attnaudit.registry import datasets, register_dataset

ROWS = [{"text": f"text number {i}", "label": ("no", "yes")[i % 2]} for i in range(100)]


def jsonl(folder: Path, rows: list[Any], name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def texts(draws: Draws, count: int | None) -> list[str]:
    return [instance.text for instance in draws.first(count).instances]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_known", dict(datasets._known))


def test_the_lines_of_a_file_come_in_an_order_that_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = jsonl(tmp_path, ROWS)
    first = open_draws(path, 0, lazily=True)
    assert isinstance(first, FileDraws)
    order = texts(first, 60)
    assert order != [row["text"] for row in ROWS[:60]]
    assert texts(first, 20) == order[:20]
    again = open_draws(path, 0, lazily=True)
    assert [len(texts(again, n)) for n in (1, 30)] == [1, 30], "the order does not depend on the sizes of the draws"
    assert texts(again, 60) == order
    assert texts(open_draws(path, 1, lazily=True), 60) != order
    assert sorted(texts(first, None)) == sorted(row["text"] for row in ROWS)
    assert [instance.drawn for instance in first.first(3).instances] == [0, 1, 2]
    assert (first.first(3).rows, first.first(3).sample_seed, first.first(None).sample_seed) == (100, 0, None)
    (instance,) = first.first(1).instances
    assert instance.where == f"{path}:{ROWS.index({'text': instance.text, 'label': instance.label}) + 1}"
    assert instance.id == next(one.id for one in load(path).instances if one.text == instance.text)


@pytest.mark.slow
def test_each_line_is_equally_likely_to_come_first(tmp_path: Path) -> None:
    path = jsonl(tmp_path, ROWS[:4])
    counts = {row["text"]: 0 for row in ROWS[:4]}
    for seed in range(400):
        counts[texts(open_draws(path, seed, lazily=True), 1)[0]] += 1
    assert all(60 <= count <= 140 for count in counts.values()), counts


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "not valid JSON"),
        ('{"text": ""}', "column 'text': found a blank text"),
        ('{"txt": "a"}', "column 'text' is missing"),
        ('{"text": "a", "label": 0.5}', "column 'label'"),
        ('{"text": "text number 3", "id": "x"}', "column 'id' is filled here"),
    ],
)
def test_a_broken_line_is_an_error_only_when_it_is_reached(tmp_path: Path, line: str, message: str) -> None:
    path = jsonl(tmp_path, [*ROWS, "", line])
    draws = open_draws(path, 0, lazily=True)
    with pytest.raises(DataError, match=message) as first:
        draws.first(None)
    assert f"{path}:102:" in str(first.value)
    assert 0 < draws.read < 100
    assert len(draws.first(draws.read).instances) == draws.read
    with pytest.raises(DataError, match=message):
        draws.first(draws.read + 1)


def test_only_jsonl_is_read_lazily_and_only_if_asked(tmp_path: Path) -> None:
    path = jsonl(tmp_path, ROWS)
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in ROWS))
    for draws in (open_draws(path, 3), open_draws(tmp_path / "rows.csv", 3, lazily=True)):
        assert isinstance(draws, CompleteDraws)
        dataset = draws.first(None)
        assert draws.first(100) is dataset
        assert draws.first(10) == sample(dataset, 10, 3)
        assert draws.sha256(10) == dataset.audited_sha256()
        assert all(instance.drawn is None for instance in draws.first(10).instances)


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    draws = open_draws(jsonl(tmp_path, ROWS), 0, lazily=True)
    same = open_draws(jsonl(tmp_path, ROWS, "copy.jsonl"), 1, lazily=True)
    other = open_draws(jsonl(tmp_path, ROWS[::-1], "other.jsonl"), 0, lazily=True)
    assert draws.sha256(10) == same.sha256(20) != other.sha256(10)


def test_no_more_rows_of_a_stream_are_read_than_are_drawn(registered: None) -> None:
    yielded = []

    @register_dataset("endless", order="random")
    def endless() -> Iterator[dict[str, str]]:
        """An endless stream."""
        for number in itertools.count():
            yielded.append(number)
            yield {"text": f"text {number}"}

    draws = open_draws("endless", 0)
    assert isinstance(draws, StreamDraws)
    assert texts(draws, 3) == ["text 0", "text 1", "text 2"]
    assert len(yielded) == 3
    assert len(texts(draws, 5)) == len(yielded) == 5
    dataset = draws.first(4)
    assert (dataset.rows, dataset.sample_seed, dataset.description, draws.size) == (
        -1,
        None,
        "An endless stream.",
        None,
    )
    with pytest.raises(DataError, match="--audit-max-instances N"):
        draws.first(None)
    with pytest.raises(DataError, match="every row is needed here"):
        load("endless")


def test_the_hash_of_a_stream_covers_the_audited_rows_in_their_order(registered: None) -> None:
    rows = [Instance(id=f"r{i}", text=f"text {i}") for i in range(10)]
    register_dataset("forwards", order="random")(lambda: iter(rows))
    register_dataset("backwards", order="random")(lambda: iter(rows[::-1]))
    forwards, backwards = open_draws("forwards", 0), open_draws("backwards", 0)
    assert forwards.sha256(10) != backwards.sha256(10)
    assert forwards.sha256(9) != forwards.sha256(10) == forwards.sha256(11)
    assert (forwards.size, forwards.first(11).rows, forwards.first(9).rows) == (10, 10, -1)
    assert len(forwards.first(None).instances) == 10


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a"}, {"text": " "}], "stream:2: column 'text'"),
        ([{"text": "a"}, 3], "stream:2: found 3"),
        ([Instance(id="x", text="a"), Instance(id="x", text="b")], "stream:2: column 'id': 'x' was given before"),
    ],
)
def test_a_broken_row_of_a_stream_ends_it(registered: None, rows: list[Any], message: str) -> None:
    register_dataset("stream", order="random")(lambda: iter(rows))
    draws = open_draws("stream", 0)
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            draws.first(5)
    assert len(draws.first(1).instances) == 1


def test_a_stream_whose_function_fails_names_it(registered: None) -> None:
    @register_dataset("fails", order="random")
    def fails() -> Iterator[dict[str, str]]:
        yield {"text": "a"}
        raise OSError("connection lost")

    draws = open_draws("fails", 0)
    with pytest.raises(DataError, match="fails failed with OSError: connection lost"):
        draws.first(2)
    register_dataset("empty", order="random")(lambda: iter(()))
    with pytest.raises(DataError, match="empty: there are no rows"):
        open_draws("empty", 0).first(1)
    register_dataset("number", order="random")(lambda: 3)
    with pytest.raises(DataError, match="returned int"):
        open_draws("number", 0).first(1)


@pytest.mark.parametrize("ending", [SystemExit(0), GeneratorExit(), KeyboardInterrupt(), pytest.fail.Exception("late")])
def test_a_stream_that_was_ended_from_inside_has_no_end(registered: None, ending: BaseException) -> None:
    @register_dataset("ends", order="random")
    def ends() -> Iterator[dict[str, str]]:
        yield {"text": "a"}
        raise ending

    draws = open_draws("ends", 0)
    first = DataError if isinstance(ending, (SystemExit, GeneratorExit)) else type(ending)
    for error in (first, DataError):
        with pytest.raises(error) as raised:
            draws.first(2)
    assert f"ends failed with {type(ending).__name__}" in str(raised.value)
    assert (draws.size, draws.first(1).rows) == (None, -1)


def test_an_order_must_be_random_and_belong_to_a_function(registered: None) -> None:
    with pytest.raises(AuditError, match="order is 'sorted'"):
        register_dataset("rows", order="sorted")
    with pytest.raises(AuditError, match="is for functions that yield rows"):
        register_dataset("rows", order="random")([])  # type: ignore[arg-type]
