"""Building, verifying and listing planted Transformers, and training them to a circuit."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.loading import load_model
from attnaudit.errors import ModelError
from attnaudit.instances import Instance
from attnaudit.research.planted import plant_command
from attnaudit.research.planted_transformers import trained_circuits, transformer_population
from attnaudit.research.planted_transformers.circuit_parts import Family, LabelledReading
from attnaudit.research.planted_transformers.circuit_texts import CLASS_WORDS, build_tokenizer, lexicon, make_rows
from attnaudit.research.planted_transformers.interchange import interchange
from attnaudit.research.planted_transformers.transformer_population import (
    TransformerPlan,
    build_transformers,
    transformer_plans,
    write_lists,
)
from attnaudit.research.validation.population_reader import dataset_of, read_population

PLANS = [
    TransformerPlan(mechanism="several_heads", family="bert", seed=0, parameter=2.0),
    TransformerPlan(mechanism="marked_texts", family="llama", seed=0, parameter=0.4),
]


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("population")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformer_population, "transformer_plans", lambda **_: PLANS)
        records = build_transformers(folder)
    write_lists(folder, records)
    return folder, records


def test_a_population_can_be_read_and_loaded(population: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = population
    entries = read_population(folder).entries
    assert len(entries) == len(records) == 3
    heads, idle, marked = entries
    assert (heads.truth, heads.share, heads.fails) == ("graded", 0.5, ("points",))
    assert (idle.truth, idle.share, idle.folder) == ("unfaithful", 0.0, heads.folder)
    assert marked.truth == "graded"
    assert marked.share == pytest.approx(0.6, abs=0.1)
    assert {entry.family for entry in entries} == {"transformer"}
    assert Path(dataset_of(marked, folder)).is_file()
    assert load_model(str(folder / marked.folder)).adapter.capabilities.mask


@pytest.mark.slow
def test_finished_models_are_kept_and_damaged_ones_built_again(
    population: tuple[Path, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, records = population
    monkeypatch.setattr(transformer_population, "transformer_plans", lambda **_: PLANS)
    notes: list[str] = []
    assert build_transformers(folder, progress=lambda _done, _total, note: notes.append(note)) == records
    assert notes == []
    (folder / PLANS[0].name / "model.safetensors").unlink()
    assert build_transformers(folder, progress=lambda _done, _total, note: notes.append(note)) == records
    assert [note.split(":")[0] for note in notes] == [PLANS[0].name]
    monkeypatch.setattr(transformer_population, "BUILD", transformer_population.BUILD + 1)
    assert transformer_population._finished(folder, PLANS[1]) is None


def test_a_wrong_label_is_excluded_with_the_reason(population: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, records = population
    built = transformer_population._compile(folder, PLANS[0])
    adapter: Any = load_model(str(folder / PLANS[0].name)).adapter
    data = transformer_population.load(str(folder / built.data))
    idle = next(reading for reading in built.readings if reading.truth == "unfaithful")
    lie = LabelledReading(role="lie", layer=idle.layer, heads=idle.heads, truth="faithful")
    record = transformer_population._record(PLANS[0], built, lie, adapter, data, 1.0)
    assert record["excluded_because"] == ["the reading is right on 0% of the texts; expected 90% to 100%"]
    write_lists(folder, [*records, record])
    assert json.loads((folder / "excluded.json").read_text(encoding="utf-8")) == [record]
    assert len(read_population(folder).entries) == len(records)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_training_holds_a_model_to_its_circuit(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_circuits, "STEPS", 70)
    circuit = trained_circuits.TRAINED[0]
    tokenizer = build_tokenizer(lexicon("cues", 2))
    rows = make_rows("cues", classes=2, count=400, seed=0)
    cue_words = frozenset(word for group in CLASS_WORDS[:2] for word in group)
    model = trained_circuits.train_model(circuit, family, rows[60:], cue_words, tokenizer, seed=0)
    instances = [Instance(id=str(i), text=text, label=label) for i, (text, label) in enumerate(rows[:60])]
    adapter: Any = transformer(model, tokenizer)
    shares = {
        reading.role: interchange(adapter, instances, reading.text(family), seed=0).share
        for reading in circuit.readings
    }
    assert shares["mover"] >= 0.9
    assert shares["other_head"] <= 0.1


def run_command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    plant_command.add_arguments(parser)
    return plant_command.run(parser.parse_args(words))


@pytest.mark.slow
def test_the_command_plants_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--out", str(tmp_path), "--family", "transformer", "--quick", "--kind", "sink_on_separator", "--jobs", "1")
    assert run_command(*words) == 0
    assert "sink_on_separator.mover" in capsys.readouterr().out
    assert {entry.truth for entry in read_population(tmp_path).entries} == {"faithful", "unfaithful"}


def test_an_unknown_mechanism_is_named() -> None:
    with pytest.raises(ModelError, match=r"Unknown mechanism of planted Transformers 'last_lair'.*last_layer"):
        transformer_plans(only=["last_lair"])
