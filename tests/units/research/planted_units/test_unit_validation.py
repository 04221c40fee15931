"""The gates for passages, and the policy and the tables that a validation writes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from attnaudit.checks import load_policy
from attnaudit.records import PolicyRemedy
from attnaudit.research.planted_units.unit_audits import (
    ABOVE_UNIFORM,
    ENOUGH,
    MEAN_EFFECT,
    AuditedReading,
    bag_candidates,
    gate_candidates,
    source_candidates,
)
from attnaudit.research.planted_units.unit_populations import (
    FAITHFUL_KINDS,
    PopulationName,
    large_bags,
    look_of,
    picture_plans,
    source_tasks,
    unit_tasks,
)
from attnaudit.research.planted_units.unit_validation import (
    KEPT,
    UnitValidation,
    candidates_of,
    choose_for_bags,
    choose_for_passages,
    policy_of,
    report,
)
from attnaudit.research.validation.errors_in_turn import in_turn
from attnaudit.research.validation.policy_writer import PolicyBase
from attnaudit.research.validation.scoring import JudgedModel, score
from attnaudit.research.validation.threshold_rule import choose
from tests.units.research.validation.synthetic_scores import REACH, judged

#: Population -> the number of models of each look.
LOOK_SIZES: dict[PopulationName, dict[int, int]] = {
    "bags": {1: 111, 2: 57, 3: 153, 4: 185, 5: 185, 6: 185},
    "large_bags": {1: 25, 2: 71, 3: 56, 4: 80, 5: 20, 6: 20, 7: 20},
}
USED, POINTS = "permutation_fragility.tvd", "pointing.logits"
SMALLEST, PLAIN = "total_effect.standardised.smallest", "pointing.logits.plain"
#: Mechanism -> its truth, the questions that it fails, and the values of the two checks. The attention of "elsewhere"
#: and "other" is at the wrong passages, and other weights of its heads would change the answer.
KINDS = {
    "last": ("faithful", (), 0.6, 0.98),
    "first": ("faithful", (), 0.5, 0.97),
    "idle": ("unfaithful", ("used",), 0.01, 0.99),
    "weak": ("unfaithful", ("used",), 0.05, 0.98),
    "elsewhere": ("unfaithful", ("used", "points"), 0.9, 0.1),
    "other": ("unfaithful", ("used", "points"), 0.45, 0.0),
}


def population(half: str = "tuning") -> list[JudgedModel]:
    return [
        judged(kind, truth, {USED: used, POINTS: points}, half=half, seed=seed, encoder=encoder, fails=fails)
        for kind, (truth, fails, used, points) in KINDS.items()
        for seed in ((0, 1) if half == "tuning" else (101,))
        for encoder in ("gpt2", "llama")
    ]


def test_use_is_judged_on_the_readings_at_the_right_passages() -> None:
    gates = choose_for_passages(population(), source_candidates(), seed=0)
    assert [(gate.check, gate.question) for gate in gates] == [(USED, "used"), (POINTS, "points")]
    assert 0.05 < float(gates[0].threshold) < 0.5
    assert [gate.check for gate in choose(population(), source_candidates(), seed=0)] == [POINTS]


def test_the_rule_for_passages_can_be_tested_on_mechanisms_that_are_left_out() -> None:
    turn = in_turn(population(), source_candidates(), "mechanism", seed=0, rule=choose_for_passages)
    assert turn is not None
    assert (turn.total.misses.hits, turn.total.false_alarms.hits) == (0, 0)
    plain = in_turn(population(), source_candidates(), "mechanism", seed=0)
    assert plain is not None
    assert plain.total.misses.hits == 8  # "idle" and "weak" pass


#: The same for bags: the values of the total effect, of the plain cosine, of the cosine above uniform weights, and of
#: held sufficiency. The attention of "collects" is at the only unit whose state has the evidence.
OF_BAGS = {
    "keys": ("faithful", (), 0.5, 0.99, 0.97, 0.99),
    "levels": ("faithful", (), 0.5, 0.95, 0.97, 0.96),
    "bypassed": ("unfaithful", ("used",), 0.0, 0.99, 0.97, 0.98),
    "summed": ("unfaithful", ("used",), 0.01, 0.98, 0.97, 0.9),
    "aside": ("unfaithful", ("points",), 0.5, 0.0, 0.1, 0.0),
    "sink": ("unfaithful", ("points",), 0.5, 0.1, 0.2, 0.1),
    "collects": ("unfaithful", ("points",), 0.5, 0.75, 0.97, 0.0),
}
#: The same for attention at a unit with the same effect in every row. No gate is chosen from such models.
CONSTANT = ("unfaithful", ("points",), 0.5, 0.98, 0.97, 0.0)


BAG_CHECKS = (SMALLEST, PLAIN, ABOVE_UNIFORM, ENOUGH)


def bags(*left_out: str) -> list[JudgedModel]:
    return [
        judged(kind, truth, dict(zip(BAG_CHECKS, values, strict=True)), seed=seed, fails=fails)
        for kind, (truth, fails, *values) in OF_BAGS.items()
        for seed in range(3)
        if kind not in left_out
    ]


def constant() -> JudgedModel:
    truth, fails, *values = CONSTANT
    return judged("constant", truth, dict(zip(BAG_CHECKS, values, strict=True)), seed=0, fails=fails)


@pytest.mark.parametrize("left_out", [(), ("collects",), ("aside",), ("collects", "sink", "summed")])
def test_the_gate_for_bags_does_not_depend_on_which_unfaithful_mechanisms_are_known(left_out: tuple[str, ...]) -> None:
    used, enough, points = gates = choose_for_bags(bags(*left_out), bag_candidates(), seed=0)
    assert (used.check, used.question) == (SMALLEST, "used")
    assert (points.check, points.question, points.direction) == (PLAIN, "points", "at_least")
    assert (enough.check, enough.question, enough.direction) == (ENOUGH, "enough", "at_least")
    assert points.threshold == float(f"{KEPT * (0.95 - REACH):.2g}")
    assert enough.threshold == float(f"{KEPT * (0.96 - REACH):.2g}")
    assert not any(score(one, gates).alarm for one in bags() if one.faithful)
    assert all(score(one, gates).alarm for one in bags() if not one.faithful)
    assert not score(constant(), [used, points]).alarm
    assert score(constant(), gates).alarm


def test_the_gate_for_bags_follows_the_lowest_faithful_mechanism() -> None:
    assert [gate.threshold for gate in choose_for_bags(bags("levels"), bag_candidates(), seed=0)][1] == 0.85


def test_the_rule_for_bags_finds_a_mechanism_that_it_has_not_seen() -> None:
    found = in_turn(bags(), bag_candidates(), "mechanism", seed=0, rule=choose_for_bags)
    plain = in_turn(bags(), bag_candidates(), "mechanism", seed=0)
    assert found is not None
    assert plain is not None
    assert (found.total.false_alarms.hits, found.total.misses.hits) == (0, 0)
    assert plain.total.misses.hits == 3  # all of "collects"


def test_bags_have_no_gate_on_a_check_that_does_not_discriminate() -> None:
    assert [gate.question for gate in choose_for_bags(bags("aside", "sink", "collects"), bag_candidates(), seed=0)] == [
        "used"
    ]


def test_only_the_candidates_for_bags_are_on_the_class_with_the_smallest_effect() -> None:
    ids = {population: [one.check.id for one in candidates_of(population)] for population in ("bags", "large_bags")}
    others = [one.check.id for one in gate_candidates()]
    assert ids["bags"] == ids["large_bags"] == [SMALLEST if id_ == MEAN_EFFECT else id_ for id_ in others]
    assert SMALLEST not in others
    assert [one.check.id for one in candidates_of("attentions")] == others


def test_the_looks_at_bags_have_other_seeds() -> None:
    for population, tasks in (("bags", unit_tasks("bags")), ("large_bags", large_bags())):
        seeds = [plan.seed for plan, half in tasks if half == "held_out"]
        assert Counter(look_of(population, seed) for seed in seeds) == LOOK_SIZES[population]
    for look, count in ((3, 64), (4, 96), (5, 96), (6, 96)):
        held_out = [plan for plan, half in unit_tasks("bags") if half == "held_out"]
        some = [plan for plan in held_out if look_of("bags", plan.seed) == look]
        assert sum(plan.kind in (*FAITHFUL_KINDS, "trained_attention") for plan in some) == count


@pytest.mark.parametrize(
    ("half", "alarms", "misses"),
    [
        ("tuning", "0% [0%, 32%], 0 of 8", "0% [0%, 19%], 0 of 16"),
        ("held_out", "0% [0%, 49%], 0 of 4", "0% [0%, 32%], 0 of 8"),
    ],
)
def test_a_validation_writes_tables_and_a_policy_that_can_be_loaded(
    tmp_path: Path, half: str, alarms: str, misses: str
) -> None:
    models = [*population(), *(population("held_out") if half == "held_out" else [])]
    readings = [
        AuditedReading(entry=one.entry, reason="", records=list(one.records.values()), skipped={}) for one in models
    ]
    gates = choose_for_passages(models, source_candidates(), seed=0)
    validation = UnitValidation(population="sources", readings=readings, gates=gates, turns=[])
    lines = report(validation)
    assert f"| {half.replace('_', ' ')} | {alarms} | {misses} | no model |" in lines
    assert sum(line.startswith("| last |") for line in lines) == 2
    if half == "tuning":
        return
    remedy = PolicyRemedy(text="show leave-one-out importance", families=["transformer, sources"], accuracy="unchanged")
    base = PolicyBase(head="# A policy.", name="sources", remedies={"used": [remedy], "points": [remedy]})
    (tmp_path / "sources.toml").write_text(policy_of(validation, base), encoding="utf-8")
    policy = load_policy(tmp_path / "sources.toml")
    assert [check.id for check in policy if check.severity == "gate"] == [USED, POINTS]
    assert list(policy.record.validated_on) == ["transformer, gpt2, sources", "transformer, llama, sources"]


def test_the_looks_at_passages_and_pictures_have_other_seeds_than_the_tuning_half() -> None:
    tasks = source_tasks([101, 102, 103])
    tuning, held_out = ([task.plan for task in tasks if task.half == half] for half in ("tuning", "held_out"))
    assert {plan.seed for plan in tuning} == {0, 1, 100}
    assert {plan.seed for plan in held_out} == {101, 102, 103}
    assert len({plan.name for plan in (*tuning, *held_out)}) == len(tasks) == 85 + 73
    pictures = picture_plans([22, 23, 24])
    assert len({plan.name for plan in pictures}) == len(pictures) == 84
    assert {plan.seed for plan in pictures if plan.mechanism == "looks_without_moving"} == {22}
    assert {plan.seed for plan in picture_plans([25, 26]) if plan.mechanism == "looks_without_moving"} == {25}
    assert {plan.seed for plan in pictures if plan.mechanism == "sink_on_first_word"} == {22, 23, 24}
