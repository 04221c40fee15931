"""Corpora from synthetic files that are laid out as --data-root expects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from attnaudit.data import load
from attnaudit.errors import DataError
from attnaudit.research.reproduction import prepare_corpora
from attnaudit.research.reproduction.corpora import CORPORA, corpus
from attnaudit.research.reproduction.prepare_corpora import Prepared, prepare


def put(root: Path, path: str, rows: list[dict[str, object]]) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / path)


def texts(prepared: Prepared, part: str) -> list[str]:
    return [one.text for one in load(prepared.path(part)).instances]


def sentence(length: int, word: str = "w") -> str:
    return " ".join([word] * length)


def sst(root: Path) -> None:
    rows: list[dict[str, object]] = [
        {"text": sentence(n, part), "label": n % 2, "split": part}
        for part in ("train", "dev", "test")
        for n in range(4, 12)
    ]
    put(root, "sst/sst_binary_jain_wallace.parquet", rows)


def test_sst_keeps_lengths_strictly_between_five_and_the_longest_of_the_part(tmp_path: Path) -> None:
    sst(tmp_path)
    made = prepare(corpus("sst"), tmp_path, tmp_path / "out")
    assert [len(text.split()) for text in texts(made, "train")] == [6, 7, 8, 9, 10]
    assert made.rows == {"train": 5, "dev": 5, "test": 5}
    assert load(made.path("test")).classes == ("negative", "positive")
    assert load(made.path("test")).instances[0].id == "test-19"  # the row of the file


def test_20news_reads_the_body_and_draws_its_test_part_from_all_texts(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"body": f"{sentence(8)} {i}", "text": "From: me", "label": f"rec.sport.{name}", "split": part}
        for part, count in (("train", 40), ("test", 6))
        for i in range(count)
        for name in ("baseball", "hockey")
    ]
    rows += [{"body": " ", "text": "x", "label": "rec.sport.hockey", "split": "test"}]
    rows += [{"body": sentence(500), "text": "x", "label": "rec.sport.hockey", "split": "test"}]
    put(tmp_path, "20news/baseball_hockey_bydate.parquet", rows)
    made = prepare(corpus("20news"), tmp_path, tmp_path / "out")
    assert made.rows == {"train": 67, "dev": 7, "test": 18}  # 46 texts of each class, 9 of each in the test part
    drawn = load(made.path("test"))
    assert {label: sum(i.label == label for i in drawn.instances) for label in drawn.classes} == {
        "baseball": 9,
        "hockey": 9,
    }
    assert {i.id.partition("-")[0] for i in drawn.instances} == {"train", "test"}  # the parts of the file are pooled
    assert not {i.id for i in drawn.instances} & {i.id for i in load(made.path("train")).instances}
    drawn = {one.id for one in load(made.path("dev")).instances}
    assert not drawn & {one.id for one in load(made.path("train")).instances}
    assert set(load(made.path("test")).classes) == {"baseball", "hockey"}
    assert not any("From" in text for text in texts(made, "train"))


def test_ag_news_takes_both_parts_from_one_file_and_keeps_two_topics(tmp_path: Path) -> None:
    parts = ["train"] * 40 + ["test"] * 20
    rows: list[dict[str, object]] = [
        {"label": str(1 + i % 4), "text": f"text {i}", "split": part} for i, part in enumerate(parts)
    ]
    put(tmp_path, "agnews/agnews_pas10k_lowercased.parquet", rows)
    made = prepare(corpus("agnews"), tmp_path, tmp_path / "out")
    assert made.rows == {"train": 18, "dev": 2, "test": 10}
    assert texts(made, "test") == [f"text {i}" for i in range(40, 60, 2)]
    assert load(made.path("test")).classes == ("Business", "World")


def test_a_revised_corpus_outdates_only_the_rows_that_use_it() -> None:
    agnews, sst = corpus("agnews"), corpus("sst")
    assert agnews.rules != replace(agnews, revision=agnews.revision + 1).rules
    assert sst.rules == replace(sst, revision=1).rules == "1 5 longest"  # the measured rows of SST stay valid


def test_snli_is_trained_on_dev_and_its_hypotheses_are_queries(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"premise": f"p {i}", "hypothesis": f"h {i}", "label": ("entailment", "neutral", "-")[i % 3], "split": part}
        for part in ("dev", "test")
        for i in range(30)
    ]
    put(tmp_path, "snli/snli_dev_test_pairs.parquet", rows)
    made = prepare(corpus("snli"), tmp_path, tmp_path / "out")
    assert made.rows == {"train": 18, "dev": 2, "test": 20}
    first = load(made.path("test")).instances[0]
    assert (first.text, first.query, first.label) == ("p 0", "h 0", "entailment")


def test_a_question_is_the_query_and_the_answer_the_label(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"story": f"Mary went to the {a}. {i}", "question": "Where is Mary?", "answer": a, "split": part}
        for part in ("train", "test")
        for i in range(10)
        for a in ("garden", "office")
    ]
    put(tmp_path, "babi/qa1_en10k_original.parquet", rows)
    made = prepare(corpus("babi-1"), tmp_path, tmp_path / "out")
    first = load(made.path("test")).instances[0]
    assert (first.query, first.label) == ("Where is Mary?", "garden")


def test_a_missing_file_is_named_with_its_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        prepare(corpus("imdb"), tmp_path, tmp_path / "out")
    assert str(tmp_path / "imdb" / "aclimdb_50k.parquet") in str(caught.value)
    assert "text, label, split" in str(caught.value)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    put(tmp_path, "imdb/aclimdb_50k.parquet", [{"review": "x", "label": "0", "split": "train"}])
    with pytest.raises(DataError, match="column 'text' is missing"):
        prepare(corpus("imdb"), tmp_path, tmp_path / "out")


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "imdb").mkdir()
    (tmp_path / "imdb" / "aclimdb_50k.parquet").write_text("text,label", encoding="utf-8")
    with pytest.raises(DataError, match=r"aclimdb_50k\.parquet: cannot be read as Parquet"):
        prepare(corpus("imdb"), tmp_path, tmp_path / "out")


def test_prepared_parts_are_kept_until_the_file_changes(tmp_path: Path) -> None:
    sst(tmp_path)
    first = prepare(corpus("sst"), tmp_path, tmp_path / "out")
    written = first.path("train").stat().st_mtime_ns
    assert prepare(corpus("sst"), tmp_path, tmp_path / "out") == first
    assert first.path("train").stat().st_mtime_ns == written
    path = "sst/sst_binary_jain_wallace.parquet"
    rows = pyarrow.parquet.read_table(tmp_path / path).to_pylist()
    put(tmp_path, path, [{**row, "text": f"{row['text']} more"} for row in rows])
    assert prepare(corpus("sst"), tmp_path, tmp_path / "out").sha256 != first.sha256


def test_the_embedded_corpus_needs_no_root(tmp_path: Path) -> None:
    made = prepare(corpus("movie-reviews"), None, tmp_path, quick=True)
    assert made.rows == {"train": 400, "dev": 100, "test": 60}


@pytest.mark.parametrize(("longest", "lengths"), [(8, {6, 7, 8}), (100, {6, 7, 8, 9, 10}), (5, {6, 7})])
def test_a_quick_run_reads_short_texts(
    longest: int, lengths: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_corpora, "QUICK", {"train": 2, "dev": 2, "test": 2})
    monkeypatch.setattr(prepare_corpora, "QUICK_WORDS", longest)
    sst(tmp_path)
    made = prepare(corpus("sst"), tmp_path, tmp_path / "out", quick=True)
    assert made.rows == {"train": 2, "dev": 2, "test": 2}
    assert {len(text.split()) for part in made.rows for text in texts(made, part)} <= lengths


def test_a_quick_run_keeps_a_class_of_long_texts(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"text": sentence(length + i % 7, part), "label": label, "split": part}
        for part in ("train", "dev", "test")
        for label, length in ((0, 8), (1, 2 * prepare_corpora.QUICK_WORDS))
        for i in range(1000)
    ]
    put(tmp_path, "sst/sst_binary_jain_wallace.parquet", rows)
    made = prepare(corpus("sst"), tmp_path, tmp_path / "out", quick=True)
    for part, count in made.rows.items():
        labels = [one.label for one in load(made.path(part)).instances]
        assert min(labels.count("negative"), labels.count("positive")) > 0.4 * count


def test_an_unknown_corpus_is_reported_with_the_nearest_name() -> None:
    with pytest.raises(DataError, match="Did you mean 'imdb'"):
        corpus("imbd")


def test_every_corpus_is_named_like_its_key() -> None:
    assert all(name == one.name for name, one in CORPORA.items())


def test_a_run_that_ends_between_the_files_leaves_no_card_of_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sst(tmp_path)
    first = prepare(corpus("sst"), tmp_path, tmp_path / "out")
    path = "sst/sst_binary_jain_wallace.parquet"
    old = (tmp_path / path).read_bytes()
    rows = pyarrow.parquet.read_table(tmp_path / path).to_pylist()
    put(tmp_path, path, [{**row, "text": f"{row['text']} more"} for row in rows])
    written = prepare_corpora._write

    def killed(to: Path, content: bytes) -> None:
        if to.name == "dev.jsonl":
            raise KeyboardInterrupt
        written(to, content)

    monkeypatch.setattr(prepare_corpora, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus("sst"), tmp_path, tmp_path / "out")
    monkeypatch.undo()
    (tmp_path / path).write_bytes(old)
    again = prepare(corpus("sst"), tmp_path, tmp_path / "out")
    assert again == first
    assert not any("more" in text for text in texts(again, "train"))


def test_a_row_without_text_is_named(tmp_path: Path) -> None:
    sst(tmp_path)
    path = "sst/sst_binary_jain_wallace.parquet"
    rows = pyarrow.parquet.read_table(tmp_path / path).to_pylist()
    put(tmp_path, path, [*rows[:3], {**rows[3], "text": None}, *rows[4:]])
    with pytest.raises(DataError, match=r"sst_binary_jain_wallace\.parquet:4: the row cannot be read"):
        prepare(corpus("sst"), tmp_path, tmp_path / "out")
