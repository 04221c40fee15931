"""Planted models of units: their parts are as designed, and the rule finds the truth of their readings."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from attnaudit.conformance import full
from attnaudit.research.planted_units.planted_pool import PlantedHead, PlantedPool, two_logits
from attnaudit.research.planted_units.truth_rule import judged
from attnaudit.research.planted_units.unit_audits import audit_units
from attnaudit.research.planted_units.unit_codes import UnitRole, UnitSpace, UnitTask, code_names, code_of, draw_row
from attnaudit.research.planted_units.unit_kinds import KINDS, Arrangement, UnitPlan, unit_plans
from attnaudit.research.planted_units.unit_models import PlantedUnits, build_units


def planted(kind: str, arrangement: Arrangement, seed: int = 1, marked: float = 0.0) -> PlantedUnits:
    return build_units(UnitPlan(kind=kind, arrangement=arrangement, seed=seed, marked=marked))


@pytest.mark.parametrize(
    ("kind", "arrangement", "truth", "fails"),
    [
        ("key_attended", "heads", ["faithful"], [()]),
        ("chosen_by_mark", "bag", ["faithful"], [()]),
        ("mean_bypass", "bag", ["unfaithful"], [("used",)]),
        ("max_bypass", "heads", ["unfaithful"], [("used", "points")]),
        ("collector", "bag", ["unfaithful"], [("points",)]),
        ("shifted", "heads", ["unfaithful"], [("points",)]),
        ("uniform_weights", "heads", ["unfaithful"], [("used",)]),
        ("second_decides", "hops", ["unfaithful", "faithful"], [("used", "points"), ()]),
        ("asked_by_first", "hops", ["faithful"], [()]),
        ("looks_without_moving", "heads", ["unfaithful", "unfaithful"], None),
    ],
)
def test_the_rule_finds_the_truth(kind: str, arrangement: Arrangement, truth: list[str], fails: list | None) -> None:
    built = planted(kind, arrangement)
    found = [built.truth(reading) for reading in built.variant.readings]
    assert [one.truth for one in found] == truth
    assert fails is None or [one.fails for one in found] == fails


@pytest.mark.parametrize(("count", "share"), [(1, 0.25), (3, 0.75)])
def test_a_mean_of_heads_is_right_on_the_share_of_heads_that_decide(count: int, share: float) -> None:
    found = planted(f"{count}_of_4_heads", "heads").truth("own@heads=mean")
    assert (found.truth, found.share, found.fails) == ("graded", share, ("points",))


def test_a_mean_of_heads_has_no_label_if_the_wrong_heads_decide() -> None:
    built = planted("2_of_4_heads", "heads")
    heads = (PlantedHead(looks="decoy", gain=0.0),) * 2 + (PlantedHead(looks="key"),) * 2
    model = PlantedPool(replace(built.variant.design, heads=heads), built.space, seed=0)
    found = replace(built, model=model).truth("own@heads=mean")
    assert found.truth == ""
    assert found.reason == "the heads that should decide do not decide, or other heads do"


def test_the_branch_of_the_predicted_class_is_right_only_where_it_decides() -> None:
    kinds = ("branches", "branches_bypassed", "branches_at_decoys")
    found = [planted(kind, "heads").truth("own@heads=predicted") for kind in kinds]
    assert [one.truth for one in found] == ["faithful", "unfaithful", "unfaithful"]
    assert [one.fails for one in found] == [(), ("used",), ("used", "points")]


@pytest.mark.parametrize("arrangement", ["heads", "bag_heads"])
def test_the_head_of_the_explained_label_is_right_where_it_decides(arrangement: Arrangement) -> None:
    built = planted("label_heads", arrangement)
    found = {built.variant.role(reading): built.truth(reading) for reading in built.variant.readings}
    heads = len(built.variant.design.heads)
    assert {role: (one.truth, one.fails) for role, one in found.items()} == {
        "own": ("faithful", ()),
        "other": ("unfaithful", ("used", "points")),
        "mean": ("graded", ("points",)),
    }
    assert found["mean"].share == 1 / heads
    bypassed = planted("labels_bypassed", arrangement)
    assert next(bypassed.truth(reading).fails for reading in bypassed.variant.readings) == ("used",)


def test_the_labels_of_a_row_are_those_whose_key_units_have_positive_evidence() -> None:
    task = UnitTask(classes=3, least=24, most=24, several_labels=True)
    row = draw_row(task, 0b101, random.Random(0))
    assert sorted((unit.label, unit.level) for unit in row if unit.role == "key") == [(0, 1.0), (1, -1.0), (2, 1.0)]
    built = planted("label_heads", "bag_heads")
    label = built.variant.label
    assert label is not None
    assert built.adapter.capabilities.target.name == f"class {label}"
    assert [f"class {label}" in (one.labels or ()) for one in built.dataset.instances] == [
        bool(applies) for applies in built.rows.labels
    ]


@pytest.mark.slow
def test_attention_that_learns_the_labels_is_faithful_and_taught_attention_is_not() -> None:
    assert planted("trained_attention", "bag").truth("").truth == "faithful"
    assert planted("taught_decoys", "bag").truth("").fails == ("used", "points")


def test_the_share_of_a_graded_model_is_that_of_the_rows_without_a_marker() -> None:
    built = planted("marked_rows", "bag", marked=0.5)
    found = built.truth("")
    assert found.truth == "graded"
    assert found.share == pytest.approx(float((~built.rows.marked).double().mean()), abs=0.02)


@pytest.mark.parametrize(
    ("kind", "arrangement"), [("mean_bypass", "bag"), ("first_decides", "hops"), ("sink", "heads")]
)
def test_the_adapter_runs_the_same_model(kind: str, arrangement: Arrangement) -> None:
    built = planted(kind, arrangement)
    trace = built.adapter.run(built.adapter.collate(built.dataset.instances))
    plain = built.model.run(built.rows.vectors, built.rows.mask, hops=arrangement == "hops")
    assert torch.allclose(trace.logits, plain.logits, atol=1e-4)
    weights = torch.cat([rows[:, :, 0] for rows in trace.attention.values()], dim=1)
    assert torch.allclose(weights, torch.stack(plain.weights, dim=1), atol=1e-5)


@pytest.mark.parametrize(("kind", "arrangement"), [("second_decides", "hops"), ("key_attended", "heads")])
def test_the_adapter_keeps_the_contract(kind: str, arrangement: Arrangement) -> None:
    built = planted(kind, arrangement)
    assert [one for one in full(built.adapter, built.dataset.instances[:4]) if one.outcome == "fail"] == []


def test_a_model_is_the_same_each_time() -> None:
    first, second = (planted("key_attended", "bag", seed=3) for _ in range(2))
    assert torch.equal(first.rows.vectors, second.rows.vectors)
    assert first.dataset == second.dataset
    other = planted("key_attended", "bag", seed=4)
    assert other.rows.vectors.shape != first.rows.vectors.shape or not torch.equal(
        other.rows.vectors, first.rows.vectors
    )


def test_the_encoder_reads_the_code_of_a_vector() -> None:
    space = UnitSpace(3, 20, 0.0, seed=5)
    unit = UnitRole("key", label=2, level=2.0)
    (vector,) = space.vectors([unit], seed=1)
    assert torch.allclose(vector @ space.rotation.T, code_of(unit, 3), atol=1e-5)
    assert code_of(unit, 3)[list(code_names(3)).index("evidence.2")] == 2.0


def test_only_the_key_units_have_evidence_for_the_label() -> None:
    task = UnitTask(classes=3, least=20, most=30)
    row = draw_row(task, 2, random.Random(0))
    assert {unit.label for unit in row if unit.role == "key"} == {2}
    assert 20 <= len(row) <= 30
    assert row[-1].role == "plain"


def test_a_row_needs_room_for_its_units() -> None:
    with pytest.raises(ValueError, match="no room"):
        draw_row(UnitTask(classes=2, least=8, most=8), 0, random.Random(0))


def test_readings_without_a_label() -> None:
    half = torch.arange(10) < 5
    everywhere = torch.ones(10, dtype=torch.bool)
    assert judged(everywhere, half, 1.0).truth == "graded"
    reason = "it is right on 0% of the rows, but it is used on 50% and points at what matters on 50%"
    assert judged(half, ~half, 1.0).reason == reason
    assert judged(everywhere, everywhere, 0.5).truth == ""


def test_an_audit_of_hops_gives_each_reading_its_own_verdict() -> None:
    wrong, right = audit_units(UnitPlan(kind="second_decides", arrangement="hops", seed=2), half="tuning")
    assert (wrong.entry.truth, right.entry.truth) == ("unfaithful", "faithful")
    value = {one.entry.truth: {record.check: record.value for record in one.records} for one in (wrong, right)}
    assert value["faithful"]["pointing.logits"] > 0.9 > 0.1 > value["unfaithful"]["pointing.logits"]
    assert (
        value["faithful"]["total_effect.standardised"] > 0.3 > 0.05 > value["unfaithful"]["total_effect.standardised"]
    )


def test_the_smallest_effect_finds_the_class_that_is_predicted_by_default() -> None:
    """In rows of this class, other weights give the same decision. The mean over the rows hides it."""
    plan = UnitPlan(kind="trained_attention", arrangement="bag", seed=128)
    checks = ("total_effect.standardised", "total_effect.standardised.smallest")
    (audited,) = audit_units(plan, half="held_out", only=checks)
    assert (audited.entry.truth, audited.entry.share, audited.entry.fails) == ("graded", 0.5, ("used",))
    mean, smallest = audited.records
    assert (mean.check, smallest.check) == checks
    assert mean.value == pytest.approx(0.82, abs=0.01)
    assert smallest.value == pytest.approx(0.018, abs=0.005)
    assert smallest.in_words.startswith("In the bags predicted as 'class 1', shuffling the attention weights")


def test_every_kind_is_planned_with_every_seed() -> None:
    plans = unit_plans(("bag", "hops", "heads"), (7, 8))
    assert {plan.kind for plan in plans} == {kind.name for kind in KINDS}
    assert len({plan.name for plan in plans}) == len(plans)
    assert {plan.seed for plan in plans} == {7, 8}


def test_one_logit_becomes_two() -> None:
    assert two_logits(torch.tensor([[2.0]])).tolist() == [[0.0, 2.0]]
