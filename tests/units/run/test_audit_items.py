"""Values of --model and --data are resolved without loading anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnaudit.errors import AuditError, DataError, ModelError
from attnaudit.run.audit_items import resolve_datasets, resolve_models


def test_a_registered_name_a_folder_and_a_factory_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "mine.py").touch()
    targets = resolve_models(["demo", "best", "mine:make"], base=tmp_path)
    assert [target.id for target in targets] == ["demo", "best", "mine.make"]
    assert [target.source for target in targets] == ["demo", str(tmp_path.resolve() / "best"), "mine:make"]


def test_folders_with_the_same_name_get_as_many_parents_as_needed(tmp_path: Path) -> None:
    for name in ("a/run/best", "b/run/best", "c/other/best"):
        (tmp_path / name).mkdir(parents=True)
    targets = resolve_models(["a/run/best", "b/run/best", "c/other/best"], base=tmp_path)
    assert [target.id for target in targets] == ["a/run/best", "b/run/best", "other/best"]


def test_the_same_folder_twice_is_one_model(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    assert len(resolve_models(["best", "best/", "./best"], base=tmp_path)) == 1


def test_a_name_that_is_registered_and_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    with pytest.raises(ModelError) as caught:
        resolve_models(["demo"], base=tmp_path)
    assert str(caught.value) == (
        "--model demo: this is both a registered model and a folder. Write --model ./demo for the folder. For the "
        "registered model, rename the folder."
    )
    (folder,) = resolve_models(["./demo"], base=tmp_path)
    assert Path(folder.source) == tmp_path.resolve() / "demo"
    (tmp_path / "demo").rmdir()
    (named,) = resolve_models(["demo"], base=tmp_path)
    assert named.source == "demo"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_data_set_that_is_registered_and_a_path_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "movie-reviews"
    path.mkdir() if kind == "folder" else path.touch()
    with pytest.raises(
        DataError, match=rf"both a registered data set and a {kind}\. Write --data \./movie-reviews for"
    ):
        resolve_datasets(["movie-reviews"], base=tmp_path)


def test_a_pipe_is_not_a_data_set(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(
        DataError, match=r"rows\.csv: this is a pipe, expected a regular file with the data\. Write the"
    ):
        resolve_datasets(["rows.csv"], base=tmp_path)


def test_similar_folders_are_suggested(tmp_path: Path) -> None:
    for name in ("best", "bset-logs"):  # only the first one holds a checkpoint
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "best" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"Did you mean '[^']*best'\?"):
        resolve_models(["runs/bset"], base=tmp_path)


def test_files_with_the_same_name_in_two_folders_are_distinguished(tmp_path: Path) -> None:
    for name in ("a/reviews.csv", "b/reviews.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    targets = resolve_datasets(["movie-reviews", "a/reviews.csv", "b/reviews.jsonl"], base=tmp_path)
    assert [target.id for target in targets] == ["movie-reviews", "a/reviews", "b/reviews"]


def test_files_that_differ_only_in_their_suffix_keep_it(tmp_path: Path) -> None:
    for name in ("rows.csv", "rows.jsonl", "a/rows.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    targets = resolve_datasets(["rows.csv", "rows.jsonl"], base=tmp_path)
    assert [target.id for target in targets] == ["rows.csv", "rows.jsonl"]
    assert len({target.id for target in resolve_datasets(["rows.csv", "rows.jsonl", "a/rows.csv"], base=tmp_path)}) == 3


def test_two_factories_with_the_same_id_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(AuditError, match=r"a\.b:c and a:b\.c: both would be called 'a\.b\.c'"):
        resolve_models(["a.b:c", "a:b.c"], base=tmp_path)


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_value_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ModelError, match="--model: the value is empty"):
        resolve_models([value], base=tmp_path)
    with pytest.raises(DataError, match="--data: the value is empty"):
        resolve_datasets([value], base=tmp_path)


def test_a_folder_is_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (item,) = resolve_datasets(["texts"], base=tmp_path)
    assert item.source == str(tmp_path / "texts")


def test_a_name_that_is_too_long_and_a_name_that_is_not_utf8_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"--model .*: cannot be accessed \(File name too long\)"):
        resolve_models(["x" * 300], base=tmp_path)
    path = tmp_path / os.fsdecode(b"caf\xe9.csv")
    try:
        path.write_text("text\none\n", encoding="utf-8")
    except OSError:
        pytest.skip("this file system holds names in UTF-8 alone")
    with pytest.raises(AuditError, match="the name of this file is not valid UTF-8, so the reports cannot contain it"):
        resolve_datasets([path.name], base=tmp_path)


def test_only_folders_with_data_are_suggested_for_data(tmp_path: Path) -> None:
    (tmp_path / "reviews").mkdir()
    (tmp_path / "reviews" / "part.parquet").touch()
    (tmp_path / "reviewed").mkdir()
    with pytest.raises(DataError) as caught:
        resolve_datasets(["reviewz"], base=tmp_path)
    assert "reviews" in str(caught.value)
    assert "reviewed" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        (["best", "best[toxic]"], ["best", "best[toxic]"]),
        (["best[toxic]", "best"], ["best[toxic]", "best"]),
        (["best[toxic]", "./best[toxic]", "best[insult]"], ["best[toxic]", "best[insult]"]),
    ],
)
def test_a_folder_with_and_without_a_label_is_two_models(tmp_path: Path, given: list[str], ids: list[str]) -> None:
    (tmp_path / "best").mkdir()
    models = resolve_models(given, base=tmp_path)
    assert [model.id for model in models] == ids
    assert [model.source for model in models] == [str(tmp_path.resolve() / name) for name in ids]


def test_a_folder_that_lists_labels_is_one_model_for_each_of_them(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    text = '[target]\nkind = "label"\nlabels = ["toxic", "insult"]\n'
    (tmp_path / "best" / "attnaudit.toml").write_text(text, encoding="utf-8")
    for given in (["best"], ["best", "best[insult]"]):
        assert [model.id for model in resolve_models(given, base=tmp_path)] == ["best[toxic]", "best[insult]"]
    assert [model.id for model in resolve_models(["best[rude]", "best"], base=tmp_path)] == [
        "best[rude]",
        "best[toxic]",
        "best[insult]",
    ]


def test_a_label_and_a_folder_with_the_same_id_are_refused(tmp_path: Path) -> None:
    for name in ("a/best", "b/best[toxic]"):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(AuditError, match=r"both would be called 'best\[toxic\]'"):
        resolve_models(["a/best[toxic]", "b/best[toxic]"], base=tmp_path)
