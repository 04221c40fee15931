"""The kinds with states in context: both truths for every encoder, and one model from its recipe to its record."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from attnaudit.adapters.loading import load_model
from attnaudit.conformance import quick
from attnaudit.data import load
from attnaudit.research.planted import context_attention
from attnaudit.research.planted.context_texts import texts
from attnaudit.research.planted.kind import TrainingInputs, kinds
from attnaudit.research.planted.planted_population import PlantedPlan, build_one, key_of
from attnaudit.research.planted.verify_context import CONTEXT_EXCHANGE

PLAN = PlantedPlan(kind="query_followed", data="made", alignment="additive", seed=0)
CONTEXTUAL = {
    name: kind
    for name, kind in kinds().items()
    if kind.verified_by == "context" or kind.mechanism == "attention in context"
}


def test_every_encoder_has_faithful_and_unfaithful_models() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for kind in CONTEXTUAL.values():
        for seed in range(5):
            inputs = TrainingInputs(
                data="made",
                alignment="additive",
                seed=seed,
                train=texts("single", "train"),
                dev=texts("single", "dev"),
                cues=frozenset({"good"}),
                decoys=frozenset({"fine"}),
                texts=texts("single", "test"),
            )
            found[kind.recipe(inputs).architecture.encoder].add(kind.truth)
    assert found == {name: {"faithful", "unfaithful"} for name in ("bilstm", "cnn", "gru", "mlp", "transformer")}


def test_there_are_twelve_kinds_over_six_mechanisms() -> None:
    assert len(CONTEXTUAL) >= 12
    assert len({kind.mechanism for kind in CONTEXTUAL.values()}) >= 6


@pytest.mark.slow
def test_a_model_with_queries_meets_its_label_and_can_be_audited(tmp_path: Path) -> None:
    record = build_one(tmp_path, PLAN)
    assert record["excluded_because"] == []
    verified = record["verified_by"]
    assert verified["name"] == CONTEXT_EXCHANGE
    assert verified["attended"] >= 0.9
    assert verified["states"] >= 0.9
    assert verified["rest"] <= 0.1
    data = load(str(tmp_path / record["data"]))
    assert {instance.query for instance in data.instances} == {"colour", "size"}
    loaded = load_model(str(tmp_path / record["folder"]))
    assert {one.outcome for one in quick(loaded.adapter, data.instances[:20])} == {"pass"}


def test_other_texts_give_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(PLAN)
    assert before == key_of(PLAN)
    monkeypatch.setattr(context_attention, "texts", lambda _task, part: texts("redundant", part))
    assert key_of(PLAN) != before
