"""Populations are read entry by entry; errors name the place and the fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnaudit.research.validation.population_reader import PopulationError, dataset_of, read_population

GOOD = {"folder": "one", "kind": "mine", "truth": "faithful", "data": "movie-reviews"}


def population(folder: Path, *rows: Any, text: str | None = None) -> Path:
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("folder"), str) and row["folder"]:
            (folder / row["folder"]).mkdir(exist_ok=True)
    (folder / "population.json").write_text(json.dumps(list(rows)) if text is None else text, encoding="utf-8")
    return folder


def test_four_keys_are_enough_and_the_model_is_then_held_out(tmp_path: Path) -> None:
    (entry,) = read_population(population(tmp_path, GOOD)).entries
    assert (entry.half, entry.encoder, entry.rank_agreement) == ("held_out", "", None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**GOOD, "halff": "tuning"}, "entry 1: unknown key 'halff'. Did you mean 'half'?"),
        ({**GOOD, "truth": "right"}, "entry 1: Invalid enum value 'right' - at `$.truth`"),
        ({k: v for k, v in GOOD.items() if k != "kind"}, "missing required field `kind`"),
        ({**GOOD, "kind": ""}, "folder, kind and data must not be empty"),
        ({**GOOD, "seed": "first"}, "Expected `int`, got `str` - at `$.seed`"),
        ("one", "entry 1: found text, expected an object"),
    ],
)
def test_a_malformed_entry_is_named(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(PopulationError, match=r"population\.json: entry 1") as caught:
        read_population(population(tmp_path, row))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[", "not valid JSON"), ("{}", "found an object, expected a list"), ("[]", "the list is empty")],
)
def test_a_file_that_is_not_a_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PopulationError, match=message):
        read_population(population(tmp_path, text=text))


def test_a_folder_without_a_population_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(PopulationError, match="attnaudit plant --out"):
        read_population(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    population(tmp_path, GOOD)
    (tmp_path / "one").rmdir()
    with pytest.raises(PopulationError, match="entry 1: there is no folder 'one'"):
        read_population(tmp_path)


def test_the_same_folder_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PopulationError, match="entries 1 and 2 both have the folder 'one'"):
        read_population(population(tmp_path, GOOD, GOOD))


def test_two_readings_of_one_folder_are_two_entries(tmp_path: Path) -> None:
    rows = [{**GOOD, "family": "transformer", "reading": reading} for reading in ("", "cls@layer=0,heads=mean")]
    entries = read_population(population(tmp_path, *rows)).entries
    assert [entry.name for entry in entries] == ["one", "one [cls@layer=0,heads=mean]"]
    with pytest.raises(PopulationError, match="entries 1 and 2 both have the folder 'one' and the reading 'cls@layer"):
        read_population(population(tmp_path, rows[1], rows[1]))


def test_a_mechanism_is_the_kind_and_a_share_follows_from_the_truth(tmp_path: Path) -> None:
    rows = [
        GOOD,
        {**GOOD, "folder": "two", "truth": "unfaithful", "mechanism": "bypass"},
        {**GOOD, "folder": "three", "truth": "graded", "share": 0.4},
        {**GOOD, "folder": "four", "truth": "trend"},
    ]
    entries = read_population(population(tmp_path, *rows)).entries
    assert [entry.mechanism for entry in entries] == ["mine", "bypass", "mine", "mine"]
    assert [entry.share for entry in entries] == [1.0, 0.0, 0.4, None]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"truth": "graded"}, "entry 1: a graded model needs a 'share'"),
        ({"truth": "graded", "share": 60}, "entry 1: share is 60; expected a number from 0 to 1"),
        (
            {"truth": "faithful", "share": 0.7},
            "entry 1: the model is labelled faithful, but share is 0.7. Expected at least 0.9",
        ),
        ({"truth": "unfaithful", "share": 0.3}, "entry 1: the model is labelled unfaithful, but share is 0.3"),
    ],
)
def test_a_share_that_contradicts_the_label_is_refused(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(PopulationError) as caught:
        read_population(population(tmp_path, {**GOOD, **row}))
    assert message in str(caught.value)


@pytest.mark.parametrize(("truth", "agreement"), [("faithful", 0.7), ("unfaithful", 0.4)])
def test_a_label_that_rank_agreement_contradicts_is_not_scored(tmp_path: Path, truth: str, agreement: float) -> None:
    found = read_population(population(tmp_path, {**GOOD, "truth": truth, "rank_agreement": agreement}))
    assert found.entries[0].truth == "trend"
    assert found.notes[0].startswith(f"one: the model is labelled {truth}, but its rank agreement is {agreement:.2f}")


def test_data_is_a_file_of_the_population_or_a_registered_name(tmp_path: Path) -> None:
    folder = population(tmp_path, {**GOOD, "data": "mine.csv"}, {**GOOD, "folder": "two"})
    mine, named = read_population(folder).entries
    with pytest.raises(PopulationError, match=r"data 'mine\.csv' is neither a file in the population nor"):
        dataset_of(mine, folder)
    (folder / "mine.csv").write_text("text,label\n")
    assert dataset_of(mine, folder) == str(folder / "mine.csv")
    assert dataset_of(named, folder) == "movie-reviews"
