"""Planted models that answer from passages: their rows, and the truth of their readings."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.research.planted_transformers.circuit_texts import CLASS_WORDS, MARKER
from attnaudit.research.planted_transformers.planted_sources import (
    PlantedSources,
    SourcePlan,
    build_sources,
    source_plans,
)
from attnaudit.research.planted_transformers.source_audits import SourceTask, audit_sources
from attnaudit.research.planted_transformers.source_circuits import source_rows
from attnaudit.research.planted_transformers.source_truth import source_truth


def planted(mechanism: str, family: str, parameter: float = 0.0) -> PlantedSources:
    return build_sources(SourcePlan(mechanism=mechanism, family=family, seed=0, parameter=parameter))  # type: ignore


@pytest.mark.parametrize(
    ("mechanism", "family", "truth", "fails"),
    [
        ("last_layer", "gpt2", ["faithful", "unfaithful", "unfaithful"], None),
        ("looks_without_moving", "llama", ["unfaithful"], [("used",)]),
        ("idle_passage", "gpt2", ["unfaithful", "unfaithful"], [("points",), ("used", "points")]),
        ("collecting_passage", "llama", ["unfaithful", "unfaithful"], [("points",), ("used",)]),
        ("from_question", "gpt2", ["unfaithful", "unfaithful"], [("used", "points")] * 2),
        ("first_passage", "gpt2", ["faithful", "unfaithful"], [(), ("used", "points")]),
        ("two_passages", "llama", ["faithful", "unfaithful", "unfaithful"], None),
    ],
)
def test_the_rule_finds_the_truth(mechanism: str, family: str, truth: list[str], fails: list | None) -> None:
    built = planted(mechanism, family)
    found = [source_truth(built, reading) for reading in built.readings]
    assert [(one.truth, one.reason) for one in found] == [(one, "") for one in truth]
    assert fails is None or [one.fails for one in found] == fails


def test_a_mean_of_heads_is_right_on_the_share_of_heads_that_decide() -> None:
    built = planted("several_heads", "gpt2", 3.0)
    (mean, *_) = built.readings
    found = source_truth(built, mean)
    assert (found.truth, found.share) == ("graded", 0.75)
    wrong = source_truth(built, replace(mean, parts=(min(set(range(4)) - set(mean.parts or ())),)))
    assert (wrong.truth, wrong.reason) == ("", "the heads that should decide do not decide, or other heads do")


def test_a_reading_whose_truth_contradicts_its_circuit_has_no_label() -> None:
    built = planted("last_layer", "llama")
    right, idle, *_ = built.readings
    found = source_truth(built, replace(idle, truth="faithful"))
    assert (found.truth, found.reason) == ("", "the rule says unfaithful, right on 0%, not faithful")
    found = source_truth(built, replace(right, truth="unfaithful"))
    assert (found.truth, found.reason) == ("", "the rule says faithful, right on 100%, not unfaithful")


def test_the_rule_runs_the_model_that_is_audited() -> None:
    built = planted("middle_layer", "gpt2")
    adapter = built.adapter()
    with torch.no_grad():
        logits = adapter.run(adapter.collate(built.dataset.instances)).logits[:, 0]
    assert float((logits > 0).double().mean()) == 1.0  # the answer is more probable than all other strings together
    assert source_truth(built, built.readings[0]).accuracy == 1.0


def test_one_passage_has_the_cue_words_of_the_answer() -> None:
    rows = source_rows("idle", classes=3, count=9, passages=4, marked=0.0, generator=random.Random(0))
    for row in rows:
        cues = [bool(set(text.split()) & set(CLASS_WORDS[row.label])) for text in row.passages]
        assert sum(cues) == 1
        assert sum(MARKER in text.split() for text in row.passages) == 1
        assert MARKER not in row.passages[cues.index(True)].split()


def test_held_out_models_have_other_seeds_and_further_mechanisms() -> None:
    tuning, held_out = source_plans("tuning", (0, 1)), source_plans("held_out", (100,))
    assert {plan.seed for plan in tuning} == {0, 1}
    assert {plan.mechanism for plan in tuning} < {plan.mechanism for plan in held_out}
    assert len({plan.name for plan in [*tuning, *held_out]}) == len(tuning) + len(held_out)


@pytest.mark.slow
def test_an_audit_of_passages_separates_the_readings() -> None:
    plan = SourcePlan(mechanism="last_layer", family="gpt2", seed=0)
    right, idle, _ = audit_sources(SourceTask(plan=plan, half="tuning"))
    assert (right.entry.truth, idle.entry.truth, right.entry.encoder) == ("faithful", "unfaithful", "gpt2")
    assert right.skipped == idle.skipped == {}
    values = [{record.check: record.value for record in one.records} for one in (right, idle)]
    assert set(values[0]) == {"permutation_fragility.tvd", "pointing.logits"}
    assert all(values[0][check] > values[1][check] + 0.1 for check in values[0])
