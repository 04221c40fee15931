"""Plans and halves, every kind on a small budget, resuming, and the same models every time."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from attnaudit.adapters.loading import load_model
from attnaudit.conformance import quick
from attnaudit.data import load, sample
from attnaudit.errors import ModelError
from attnaudit.models import checkpoint_folder
from attnaudit.research.planted import plant_command, planted_population
from attnaudit.research.planted.kind import kinds
from attnaudit.research.planted.planted_population import DATASETS, PlantedPlan, build, finished, half_of, plans
from attnaudit.research.planted.verify_label import (
    BYPASS_MINIMUM,
    CONFIRMED_MINIMUM,
    FAITHFUL_MINIMUM,
    UNFAITHFUL_MAXIMUM,
)
from attnaudit.research.validation.population_reader import read_population

#: One kind of each way of building and verifying: trained, compiled, on made texts, graded, and without a label.
NAMES = ("unit_evidence", "bypass", "label_everywhere", "sparse_context_free", "evidence_to_one", "needles_bypass")
WANTED = [
    *plans(seeds=1, only=[*NAMES, "right_on_40", "uniform"]),
    PlantedPlan(kind="unit_evidence", data="synthetic", alignment="dot", seed=1),
]


@pytest.fixture(scope="module")
def small() -> Any:
    """A quarter of the synthetic sentences."""
    with pytest.MonkeyPatch.context() as patch:
        whole = planted_population._training_data

        def parts(data: str) -> Any:
            training, dev, cues, decoys = whole(data)
            return sample(training, 1000, 0), sample(dev, 300, 0), cues, decoys

        patch.setattr(planted_population, "_training_data", parts)
        patch.setattr(planted_population, "MADE_INSTANCES", 300)
        yield


@pytest.fixture(scope="module")
def built(small: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("population")
    return folder, build(folder, WANTED)


@pytest.mark.slow
def test_every_kind_reaches_its_label_or_is_reported(built: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = built
    listed = {row["folder"] for row in json.loads((folder / "population.json").read_text(encoding="utf-8"))}
    excluded = json.loads((folder / "excluded.json").read_text(encoding="utf-8"))
    assert listed | {row["folder"] for row in excluded} == {plan.folder for plan in WANTED}
    assert not listed & {row["folder"] for row in excluded}
    assert all(row["excluded_because"] for row in excluded)
    for row in records:
        if row["truth"] == "trend" or row["excluded_because"]:
            continue
        if kinds()[row["kind"]].verified_by == "exchange":
            assert abs(row["verified_by"]["attended"] - row["share"]) <= 0.1
            continue
        if row["truth"] == "faithful":
            assert row["rank_agreement"] >= FAITHFUL_MINIMUM
        else:
            assert row["rank_agreement"] <= UNFAITHFUL_MAXIMUM
        assert row["verified_by"]["value"] >= CONFIRMED_MINIMUM
        if kinds()[row["kind"]].needs_bypass:
            assert row["bypass_share"] >= BYPASS_MINIMUM
    held = Counter(row["truth"] for row in records if not row["excluded_because"])
    assert held["faithful"] >= 2
    assert held["unfaithful"] >= 2
    assert held["graded"] == 1


@pytest.mark.slow
def test_every_model_passes_the_conformance_check_as_model_takes_it(built: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = built
    for row in records:
        instances = load(path if (path := folder / row["data"]).is_file() else DATASETS[row["data"]]).instances[:40]
        loaded = load_model(str(folder / row["folder"]))
        assert {one.outcome for one in quick(loaded.adapter, instances)} == {"pass"}, row["folder"]
        assert loaded.adapter.capabilities.linear_decoder


@pytest.mark.slow
def test_a_row_holds_what_a_validation_reads(built: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = built
    for row in json.loads((folder / "population.json").read_text(encoding="utf-8")):
        assert set(row) == {
            *(
                "folder",
                "kind",
                "mechanism",
                "family",
                "truth",
                "share",
                "encoder",
                "alignment",
                "projection",
                "seed",
                "data",
                "level",
            ),
            *("rank_agreement", "verified_by", "accuracy", "bypass_share", "half", "fails"),
        }
        assert row["half"] in ("tuning", "held_out")
        assert (row["truth"] in ("unfaithful", "graded")) == bool(row["fails"])
    assert [entry.folder for entry in read_population(folder).entries] == [
        row["folder"] for row in records if not row["excluded_because"]
    ]


@pytest.mark.slow
def test_made_texts_are_stored_with_the_population(built: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = built
    (row,) = (row for row in records if row["kind"] == "needles_bypass")
    assert row["data"] == "data/needles_bypass-made-dot-0.csv"
    labels = Counter(instance.label for instance in load(str(folder / row["data"])).instances)
    assert labels["rare"] / labels.total() == pytest.approx(0.1, abs=0.005)


@pytest.mark.slow
def test_a_second_run_builds_nothing(built: tuple[Path, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, records = built

    def never(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(planted_population, "build_one", never)
    assert build(folder, WANTED) == records


@pytest.mark.slow
def test_a_killed_run_resumes_and_gives_the_same_models(
    built: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """A killed run leaves models without a record, and a list that lacks them."""
    folder, _ = built
    wanted = [one for one in WANTED if one.kind in ("bypass", "sparse_context_free", "label_everywhere")]
    whole = build(folder, wanted)
    broken = tmp_path / "broken"
    shutil.copytree(folder / wanted[0].folder, broken / wanted[0].folder)
    shutil.copytree(folder / wanted[1].folder, broken / wanted[1].folder)
    (broken / wanted[1].folder / planted_population.RECORD_FILE).unlink()
    assert finished(broken, wanted[0]) is not None
    assert finished(broken, wanted[1]) is None
    seen: list[str] = []
    again = build(broken, wanted, progress=lambda _done, _total, note: seen.append(note.split(",")[0]))
    assert seen == [one.folder for one in wanted[1:]]
    assert again == whole
    for plan in wanted:
        weights = [(root / plan.folder / checkpoint_folder.WEIGHTS).read_bytes() for root in (folder, broken)]
        assert weights[0] == weights[1], plan.folder


@pytest.mark.slow
def test_a_changed_recipe_is_built_again(
    built: tuple[Path, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = built
    assert finished(folder, WANTED[0]) is not None
    monkeypatch.setattr(planted_population, "BUILD", planted_population.BUILD + 1)
    assert finished(folder, WANTED[0]) is None


def test_the_population_is_large_and_half_of_it_is_held_out() -> None:
    known = [kind for kind in kinds().values() if kind.truth != "trend"]
    sharing = Counter(kind.mechanism for kind in known)
    assert len(known) >= 40
    assert len(sharing) >= 14
    assert max(sharing.values()) <= len(known) / 3
    found = Counter((kinds()[one.kind].truth, half_of(kinds()[one.kind], one.seed)) for one in plans(seeds=6))
    for truth in ("faithful", "unfaithful"):
        assert found[truth, "held_out"] >= 60
        assert found[truth, "tuning"] >= 40


def test_the_quick_plan_is_small_and_has_every_kind() -> None:
    planned = plans(seeds=plant_command.QUICK_SEEDS)
    assert {one.kind for one in planned} == set(kinds())
    assert len(planned) <= 160


def test_a_mechanism_belongs_to_one_half() -> None:
    halves: dict[str, set[str]] = {}
    for kind in kinds().values():
        if kind.truth != "trend":
            halves.setdefault(kind.mechanism, set()).add(kind.half)
    assert {name: found for name, found in halves.items() if len(found) > 1} == {}


def test_half_of_a_kind_or_of_its_seeds() -> None:
    kind = kinds()["bypass"]
    assert half_of(kind, 0) == half_of(kind, 1) == "held_out"
    assert [half_of(dataclasses.replace(kind, half="split"), seed) for seed in (0, 1)] == ["tuning", "held_out"]


def test_no_two_plans_share_a_folder() -> None:
    found = plans(seeds=3)
    assert len({one.folder for one in found}) == len(found)


def test_only_the_kinds_asked_for_are_planned_and_a_wrong_one_names_the_nearest() -> None:
    assert {one.kind for one in plans(seeds=1, only=["bypass"])} == {"bypass"}
    with pytest.raises(ModelError, match="decoys"):
        plans(seeds=1, only=["decoy"])


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    plant_command.add_arguments(parser)
    return plant_command.run(parser.parse_args([*map(str, words)]))


def test_the_command_builds_and_prints_a_table(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = PlantedPlan(kind="bypass", data="synthetic", alignment="dot", seed=0)
    monkeypatch.setattr(planted_population, "plans", lambda **_: [one])
    assert run("--out", tmp_path / "made", "--quick", "--jobs", 1) == 0
    printed = capsys.readouterr()
    assert "bypass" in printed.out
    assert "population.json" in printed.out
    assert "[1/1" in printed.err
    assert (tmp_path / "made" / one.folder / "planted.json").is_file()


@pytest.mark.parametrize("option", ["--seeds", "--jobs"])
def test_a_number_below_one_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="at least 1"):
        run("--out", tmp_path / "made", option, 0)
    assert not (tmp_path / "made").exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        build(tmp_path / "file", [])
