"""Validations of a small population of untrained models, which are really measured."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attnaudit.checks import Agreement, Check, UniformFragility
from attnaudit.errors import ReportError
from attnaudit.models import checkpoint_folder
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.validation import audit_population, candidates, validation_report
from attnaudit.research.validation.candidate_policy import read_policy
from attnaudit.research.validation.population_reader import read_population
from attnaudit.research.validation.validate import ValidationOptions, validate

WORDS = ("good", "bad", "fine", "poor", "a", "film", "plot", "the")
CHECKS: tuple[Check, ...] = (UniformFragility(severity="report"), Agreement(severity="report"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model(folder: Path, *, seed: int, peaked: bool) -> None:
    torch.manual_seed(seed)
    architecture = Architecture(encoder="average", embedding_size=6, hidden_size=6, attention_size=6)
    vocabulary = Vocabulary(("<pad>", "<unk>", "<sos>", "<eos>", *WORDS))
    made = PooledClassifier(architecture, vocabulary_size=len(vocabulary), classes=2)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.mul_(10.0 if peaked or "attention" not in name else 0.01)
    checkpoint_folder.save(folder, made, vocabulary, ("negative", "positive"))


@pytest.fixture(autouse=True)
def few_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("UniformFragility", "Agreement")
    monkeypatch.setattr(
        candidates, "CANDIDATE_SPECS", [spec for spec in candidates.CANDIDATE_SPECS if spec.name in names]
    )


@pytest.fixture
def population(tmp_path: Path) -> Path:
    folder = tmp_path / "population"
    folder.mkdir()
    rows, texts = [], ["text,label"]
    for number in range(40):
        # The model knows no number, so texts that differ only in their number would count once.
        words = random.Random(number).choices(WORDS, k=3 + number % 4)
        texts.append(f"{' '.join(words)} {number},{'positive' if number % 2 else 'negative'}")
    (folder / "made.csv").write_text("\n".join(texts) + "\n", encoding="utf-8")
    for seed in range(4):
        for kind, truth in (("peaked", "faithful"), ("flat", "unfaithful")):
            name = f"{kind}-{seed}"
            model(folder / name, seed=seed, peaked=kind == "peaked")
            half = "tuning" if seed < 2 else "held_out"
            rows.append({"folder": name, "kind": kind, "truth": truth, "data": "made.csv", "half": half})
    (folder / "population.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder


def run(population: Path, checks: tuple[Check, ...] = CHECKS) -> tuple[dict[str, object], dict[str, str]]:
    entries = read_population(population).entries
    found, failed = audit_population.audit_population(
        entries, checks, population=population, results=population.parent / "kept", seed=0, max_instances=36
    )
    return dict(found), failed


def test_every_model_is_measured_once_and_kept(population: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, failed = run(population)
    assert len(found) == 8
    assert failed == {}

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(audit_population, "judge_model", refuse)
    assert run(population)[0] == found


def test_a_killed_run_resumes(population: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = run(population)
    kept = sorted((population.parent / "kept").glob("*.json"))
    kept[0].unlink()
    kept[1].write_text(kept[1].read_text(encoding="utf-8")[:100], encoding="utf-8")  # cut off while it was written
    again = []
    judge = audit_population.judge_model
    monkeypatch.setattr(
        audit_population, "judge_model", lambda *given, **named: again.append(1) or judge(*given, **named)
    )
    resumed, _ = run(population)
    assert len(again) == 2
    for name, one in whole.items():
        assert one.checks == resumed[name].checks  # type: ignore[attr-defined]


def test_another_check_measures_only_what_is_new(population: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(population, CHECKS[:1])
    asked: list[list[str]] = []
    judge = audit_population.judge_model

    def note(loaded: object, dataset: object, checks: tuple[Check, ...], **named: object) -> object:
        asked.append([one.id for one in checks])
        return judge(loaded, dataset, checks, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(audit_population, "judge_model", note)
    found, _ = run(population)
    assert asked == [[CHECKS[1].id]] * 8
    assert {one.check for one in found["flat-0"].checks} == {one.id for one in CHECKS}  # type: ignore[attr-defined]


def test_a_model_that_cannot_be_loaded_is_named_and_the_others_are_audited(population: Path) -> None:
    (population / "flat-1" / "model.safetensors").write_bytes(b"no tensors")
    found, failed = run(population)
    assert len(found) == 7
    assert list(failed) == ["flat-1"]
    assert "model.safetensors" in failed["flat-1"]


def test_a_validation_is_written_and_read_back(population: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[check]]\nname = "UniformFragility"\nat_least = 0.05\n', encoding="utf-8")
    calls: list[tuple[int, int, str]] = []
    out = tmp_path / "out"
    validation, _ = validate(
        ValidationOptions(population=population, out=out, policies=[policy], quick=True, invariances=False),
        progress=lambda *call: calls.append(call),
    )
    assert sorted(done for done, _, _ in calls) == list(range(1, 9))
    (family,) = validation.families
    assert family.counts == {
        "faithful held out": 2, "faithful tuning": 2, "unfaithful held out": 2, "unfaithful tuning": 2
    }  # fmt: skip
    held = family.held_out
    assert held is not None
    assert held.sensitivity is not None
    assert (held.sensitivity.hits, held.sensitivity.n) == (2, 2)
    assert held.area is not None
    assert held.area.value == 1.0
    gated = [one for one in family.checks if one.gated]
    assert [(one.check, one.threshold) for one in gated] == [("uniform_fragility.tvd", 0.05)]
    validation_report.write(validation, out)
    assert validation_report.read(out / "validation.json") == validation
    page = (out / "validation.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "http" not in page.replace("http-equiv", "")
    assert "uniform_<wbr>" in page or "uniform_fragility" in page
    assert "| flat | unfaithful | 2 | 100%" in (out / "validation.md").read_text(encoding="utf-8")


def test_models_without_a_half_are_held_out_and_the_policy_is_tried_as_it_is(population: Path, tmp_path: Path) -> None:
    path = population / "population.json"
    rows = [{k: v for k, v in row.items() if k != "half"} for row in json.loads(path.read_text(encoding="utf-8"))]
    path.write_text(json.dumps(rows), encoding="utf-8")
    policy = tmp_path / "policy.toml"
    policy.write_text('[[check]]\nname = "UniformFragility"\nat_least = 0.05\n', encoding="utf-8")
    validation, chosen = validate(
        ValidationOptions(population=population, out=tmp_path / "out", policies=[policy], quick=True, invariances=False)
    )
    (family,) = validation.families
    assert list(chosen) == ["validated_policy.toml"]
    assert chosen["validated_policy.toml"].endswith("\nat_least = 0.05\n")
    assert family.in_turn == []
    assert any("no policy is chosen" in note for note in family.notes)
    assert family.held_out is not None


def test_what_the_tuning_half_chooses_is_a_policy_that_can_be_read(
    population: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uniform weights replace the attention here only because it is cheap; the built-in candidates may gate or not."""
    specs = [
        dataclasses.replace(spec, gates=("pooled attention",) if "tvd" in spec.arguments.values() else (), quick=True)
        for spec in candidates.CANDIDATE_SPECS
    ]
    monkeypatch.setattr(candidates, "CANDIDATE_SPECS", specs)
    validation, chosen = validate(
        ValidationOptions(population=population, out=tmp_path / "out", quick=True, invariances=False)
    )
    (family,) = validation.families
    assert list(chosen) == ["chosen_policy.toml"]
    path = tmp_path / "chosen.toml"
    path.write_text(chosen["chosen_policy.toml"], encoding="utf-8")
    given = read_policy(path)
    assert given.validated_on == ("pooled attention",)
    assert [gate.check for gate in given.gates] == ["uniform_fragility.tvd"]
    assert {gate.check for gate in given.gates} == {one.check for one in family.checks if one.gated}
    assert "# held out: area" in chosen["chosen_policy.toml"]
    assert "# Held out: false alarms on faithful models 0% [0%, 66%], 0 of 2." in chosen["chosen_policy.toml"]
    assert "asks only one question ('used')" in " ".join(family.notes)


def test_each_look_at_the_held_out_half_is_logged(population: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[check]]\nname = "UniformFragility"\nat_least = 0.05\n', encoding="utf-8")
    options = ValidationOptions(
        population=population, out=tmp_path / "out", policies=[policy], quick=True, invariances=False
    )
    looks = [validate(options)[0].families[0].looks for _ in range(2)]
    assert looks == [1, 2]
    lines = (tmp_path / "out" / "looks.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["gates"] for line in lines] == [["uniform_fragility.tvd ≥ 0.05"]] * 2
    (tmp_path / "out" / "looks.jsonl").write_text("no log\n", encoding="utf-8")
    with pytest.raises(ReportError, match=r"looks\.jsonl: cannot be read as the log of how often"):
        validate(options)
