"""Populations of readings of Transformers: several entries name one checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attnaudit.checks import Check, TotalEffect
from attnaudit.errors import CheckError
from attnaudit.research.validation import audit_population
from attnaudit.research.validation.candidate_policy import policy_for, read_policy
from attnaudit.research.validation.population_reader import read_population
from attnaudit.research.validation.validate import ValidationOptions, validate
from tests import architectures

READINGS = {"cls@layer=0,heads=0": "faithful", "cls@layer=1,heads=mean": "unfaithful"}
CHECKS: tuple[Check, ...] = (TotalEffect(on="logits", severity="report"),)


@pytest.fixture
def population(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path / "population"
    architectures.save("bert", folder / "small")
    rows = ["text,label"]
    for number in range(24):
        words = architectures.SENTENCES[number % 6].split()
        rows.append(f"{' '.join(words[:4]).replace(',', '')} {number},{'positive' if number % 2 else 'negative'}")
    (folder / "made.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    entries = [
        {"folder": "small", "kind": reading, "truth": truth, "data": "made.csv", "family": "transformer",
         "reading": reading, "mechanism": "one head", "encoder": "bert"}
        for reading, truth in READINGS.items()
    ]  # fmt: skip
    (folder / "population.json").write_text(json.dumps(entries), encoding="utf-8")
    return folder


def test_each_reading_is_measured_and_its_records_keep_the_id_without_the_reading(
    population: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = read_population(population).entries

    def audit() -> dict[str, object]:
        found, failed = audit_population.audit_population(
            entries, CHECKS, population=population, results=population.parent / "kept", seed=0, max_instances=20
        )
        assert failed == {}
        return dict(found)

    found = audit()
    assert set(found) == {f"small [{reading}]" for reading in READINGS}
    records = {name: result.checks[0] for name, result in found.items()}  # type: ignore[attr-defined]
    assert {record.check for record in records.values()} == {"total_effect.logits"}
    assert {record.reading for record in records.values()} == set(READINGS)
    assert len({record.value for record in records.values()}) == 2

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(audit_population, "judge_model", refuse)
    assert audit() == found


@pytest.mark.slow
def test_a_policy_is_validated_on_the_families_that_it_states(population: Path, tmp_path: Path) -> None:
    pooled, transformer = tmp_path / "pooled.toml", tmp_path / "transformer.toml"
    for path, family in ((pooled, "pooled attention, bilstm encoder"), (transformer, "transformer")):
        path.write_text(
            f'[policy]\nvalidated_on = ["{family}"]\n[[check]]\nname = "TotalEffect"\non = "logits"\nat_least = 0.01\n',
            encoding="utf-8",
        )
    options = ValidationOptions(
        population=population, out=tmp_path / "out", policies=[pooled, transformer], quick=True, invariances=False
    )
    validation, _ = validate(options)
    (family,) = validation.families
    assert (family.family, family.policy, family.gates) == (
        "transformer", "transformer.toml", ["total_effect.logits ≥ 0.01"]
    )  # fmt: skip
    assert [score.name for score in family.scores] == [f"small [{reading}]" for reading in READINGS]
    assert policy_for([read_policy(pooled)], "transformer") is None


def test_two_policies_for_one_family_are_refused(population: Path, tmp_path: Path) -> None:
    for name in ("one.toml", "two.toml"):
        (tmp_path / name).write_text('[[check]]\nname = "TotalEffect"\nat_least = 0.01\n', encoding="utf-8")
    policies = [tmp_path / "one.toml", tmp_path / "two.toml"]
    with pytest.raises(CheckError, match="both cover the family 'pooled attention'"):
        validate(ValidationOptions(population=population, out=tmp_path / "out", policies=policies))
