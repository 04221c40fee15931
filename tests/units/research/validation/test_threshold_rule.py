"""The rule that chooses the policy: deterministic, blind to the held-out half, and sparing with false alarms."""

from __future__ import annotations

import dataclasses
import random
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from attnaudit.checks import (
    Agreement,
    Conicity,
    HeldSufficiency,
    PermutationFragility,
    Sufficiency,
    UniformFragility,
    load_policy,
)
from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.policy_writer import PolicyBase, policy_text
from attnaudit.research.validation.scoring import Gate, JudgedModel, score
from attnaudit.research.validation.threshold_rule import check_area, choose, discriminates, limits, rounded, threshold
from tests.units.research.validation.synthetic_scores import entry, judged, record

USE = Candidate(check=UniformFragility(severity="report"), question="used", direction="at_least", may_gate=True)
NOISE = Candidate(check=PermutationFragility(severity="report"), question="used", direction="at_least", may_gate=True)
POINT = Candidate(check=Sufficiency(severity="report"), question="points", direction="at_least", may_gate=True)
ENOUGH = Candidate(check=HeldSufficiency(severity="report"), question="enough", direction="at_least", may_gate=True)
AGREE = Candidate(check=Agreement(severity="report"), question="points", direction="at_least")
ALL = (USE, NOISE, POINT)


def population(half: str = "tuning", *, shift: Callable[[str], float] = lambda kind: 0.0) -> list[JudgedModel]:
    """Two faithful kinds pass both questions; bypasses and the like fail the first, decoys the second, the rest both;
    one check is noise."""
    rng = np.random.default_rng({"tuning": 1, "held_out": 2}[half])
    middle = {
        "sparse": ("faithful", 0.7, 0.8),
        "unit": ("faithful", 0.6, 0.7),
        "bypass": ("unfaithful", 0.02, 0.75),
        "states": ("unfaithful", 0.05, 0.3),
        "position": ("unfaithful", 0.3, 0.0),
        "avoiding": ("unfaithful", 0.2, 0.1),
        "decoy": ("unfaithful", 0.65, 0.05),
    }
    made = []
    for kind, (truth, use, point) in middle.items():
        for seed in range(6):
            values = {
                USE.check.id: use + 0.03 * rng.normal() + shift(kind),
                POINT.check.id: point + 0.03 * rng.normal() + shift(kind),
                NOISE.check.id: 0.5 + 0.1 * (seed - 2.5),
            }
            made.append(judged(kind, truth, values, half=half, seed=seed))
    return made


def test_checks_that_separate_become_gates_and_noise_does_not() -> None:
    gates = choose(population(), ALL, seed=0)
    assert [(gate.check, gate.question) for gate in gates] == [(USE.check.id, "used"), (POINT.check.id, "points")]


def test_the_chosen_policy_holds_on_models_it_never_saw() -> None:
    gates = choose(population(), ALL, seed=0)
    for one in population("held_out"):
        assert score(one, gates).alarm == (one.entry.truth == "unfaithful"), one.entry.folder


def test_the_rule_never_sees_the_held_out_half() -> None:
    alone = choose(population(), ALL, seed=0)
    turned = population("held_out", shift=lambda kind: -5.0 if kind in ("sparse", "unit") else 5.0)
    assert choose([*population(), *turned], ALL, seed=0) == alone


def test_the_rule_ignores_the_order_of_models_and_checks() -> None:
    models, checks = population(), list(ALL)
    expected = choose(models, checks, seed=0)
    random.Random(4).shuffle(models)
    assert choose(models, checks[::-1], seed=0) == expected


def test_trends_are_never_tuned_on() -> None:
    trends = [judged("tying", "trend", {USE.check.id: -3.0, POINT.check.id: -3.0, NOISE.check.id: 9.0})]
    assert choose([*population(), *trends], ALL, seed=0) == choose(population(), ALL, seed=0)


def test_a_check_whose_value_is_not_invariant_never_becomes_a_gate() -> None:
    """Agreement that separates as well as the erasure check is chosen neither next to it nor without it."""
    models = [
        JudgedModel(
            one.entry, {**one.records, AGREE.check.id: record(AGREE.check.id, one.records[POINT.check.id].value)}
        )
        for one in population()
    ]
    checks = [gate.check for gate in choose(models, [USE, AGREE, POINT], seed=0)]
    assert checks == [USE.check.id, POINT.check.id]
    assert [gate.check for gate in choose(models, [USE, AGREE], seed=0)] == [USE.check.id]
    assert threshold(models, AGREE) is not None


def test_of_two_checks_that_separate_the_one_with_the_larger_gap_is_chosen() -> None:
    """Both have the area 1; the first leaves hardly any room between the groups."""
    tight = {"faithful": 0.30, "unfaithful": 0.28}
    wide = {"faithful": 0.9, "unfaithful": 0.1}
    models = [
        judged(truth, truth, {USE.check.id: tight[truth] + spread, NOISE.check.id: wide[truth] + spread}, seed=seed)
        for truth, sign in (("faithful", 1), ("unfaithful", -1))
        for seed in range(6)
        for spread in [sign * 0.02 * seed]
    ]
    assert [gate.check for gate in choose(models, ALL, seed=0)] == [NOISE.check.id]


def test_a_further_check_becomes_a_gate_if_it_blocks_models_that_would_pass() -> None:
    """Each check of use misses one kind of unused attention."""
    values = {"good": (0.9, 0.9), "hidden from use": (0.95, 0.1), "hidden from noise": (0.1, 0.95)}
    values |= {f"bypass {i}": (0.1, 0.1) for i in range(6)}
    models = [
        judged(
            kind,
            "faithful" if kind == "good" else "unfaithful",
            {USE.check.id: use + 0.005 * seed, NOISE.check.id: noise + 0.005 * seed},
            seed=seed,
        )
        for kind, (use, noise) in values.items()
        for seed in range(6)
    ]
    gates = choose(models, ALL, seed=0)
    assert {gate.check for gate in gates} == {USE.check.id, NOISE.check.id}
    assert all(score(one, gates).alarm for one in models if not one.faithful)


def test_attended_tokens_must_be_enough_if_the_other_gates_let_models_pass() -> None:
    """Its threshold is halfway between the faithful models and those that pass the other gates."""
    collector = {USE.check.id: 0.6, POINT.check.id: 0.75, ENOUGH.check.id: 0.0}
    enough = {"sparse": 0.9, "unit": 0.8, "decoy": 0.7}
    models = [
        JudgedModel(
            one.entry,
            {**one.records, ENOUGH.check.id: record(ENOUGH.check.id, enough.get(one.entry.kind, 0.7) + 0.01)},
        )
        for one in population()
    ]
    collectors = [judged("collector", "unfaithful", collector | {NOISE.check.id: 0.5}, seed=seed) for seed in range(2)]
    gates = choose([*models, *collectors], [*ALL, ENOUGH], seed=0)
    assert [gate.check for gate in gates] == [USE.check.id, POINT.check.id, ENOUGH.check.id]
    low = min(m.records[ENOUGH.check.id].interval.low for m in models if m.faithful)  # type: ignore[union-attr]
    assert gates[-1].threshold == pytest.approx(low / 2, abs=0.02)
    assert not any(score(one, gates).alarm for one in models if one.faithful)
    assert all(score(one, gates).alarm for one in collectors)


def test_nothing_needs_to_be_enough_if_the_other_gates_let_no_model_pass() -> None:
    perfect = [
        JudgedModel(one.entry, {**one.records, ENOUGH.check.id: record(ENOUGH.check.id, float(one.faithful))})
        for one in population()
    ]
    assert choose(perfect, [*ALL, ENOUGH], seed=0) == choose(population(), ALL, seed=0)


def test_a_graded_model_must_not_pass_pointing_if_attention_is_right_on_60_percent_or_less() -> None:
    def with_graded(share: float) -> list[JudgedModel]:
        graded = [
            judged("part", "graded", {USE.check.id: 0.5, POINT.check.id: 0.55}, seed=seed, share=share)
            for seed in range(12)
        ]
        return [*population(), *graded]

    plain = threshold(population(), POINT)
    assert plain is not None
    raised = threshold(with_graded(0.6), POINT)
    assert raised is not None
    assert raised > plain
    assert threshold(with_graded(0.7), POINT) == plain
    assert threshold(with_graded(0.6), USE) == threshold(population(), USE)


def test_a_ratio_of_variances_is_halved_on_the_scale_of_its_root() -> None:
    models = [
        judged(truth, truth, {USE.check.id: value + 0.05}, seed=seed)
        for truth, value in (("faithful", 0.64), ("unfaithful", 0.04))
        for seed in range(4)
    ]
    assert threshold(models, USE) == 0.34
    assert threshold(models, dataclasses.replace(USE, scale="square root")) == 0.25


def test_where_the_groups_overlap_the_faithful_models_decide() -> None:
    """The two highest unfaithful models lie among the faithful ones, and are missed."""
    good = [judged("sparse", "faithful", {USE.check.id: 0.3 + 0.05 * seed}, seed=seed) for seed in range(8)]
    bad = [judged("bypass", "unfaithful", {USE.check.id: 0.01 + 0.05 * seed}, seed=seed) for seed in range(8)]
    found = limits([*good, *bad], USE)
    assert found is not None
    assert (found.opposing, found.faithful) == pytest.approx((0.21, 0.25))
    assert threshold([*good, *bad], USE) == pytest.approx(0.23)
    alarms = [score(one, [Gate(check=USE.check.id, question="used", direction="at_least", threshold=0.23)]).alarm
              for one in (*good, *bad)]  # fmt: skip
    assert (sum(alarms[:8]), sum(alarms[8:])) == (0, 6)


def test_a_check_of_use_is_not_blamed_for_models_that_use_attention_to_look_at_the_wrong_place() -> None:
    looking_away = [
        judged("place", "unfaithful", {USE.check.id: 0.9, POINT.check.id: 0.0, NOISE.check.id: 0.5}, seed=seed)
        for seed in range(30)
    ]
    models = [*population(), *looking_away]
    against_all = check_area(models, USE, seed=0)
    with_questions = [
        JudgedModel(msgspec.structs.replace(one.entry, fails=("points",)), one.records)
        if one.entry.kind == "place"
        else one
        for one in models
    ]
    fair = check_area(with_questions, USE, seed=0)
    assert against_all is not None
    assert fair is not None
    assert not discriminates(against_all)
    assert discriminates(fair)
    assert fair == check_area(population(), USE, seed=0)


def test_nothing_is_chosen_without_both_truths() -> None:
    assert choose([m for m in population() if m.faithful], ALL, seed=0) == []
    assert choose([], ALL, seed=0) == []


def test_a_threshold_lies_between_the_two_and_keeps_away_from_the_faithful() -> None:
    models = population()
    at = threshold(models, USE)
    faithful = [m.records[USE.check.id].interval.low for m in models if m.faithful]  # type: ignore[union-attr]
    bypasses = [m.records[USE.check.id].interval.low for m in models if m.entry.kind == "bypass"]  # type: ignore[union-attr]
    assert at is not None
    assert max(bypasses) < at < min(faithful)
    assert at == float(f"{at:.2g}")


def test_a_threshold_of_the_other_direction_is_its_mirror_image() -> None:
    models = population()
    mirrored = [
        judged(m.entry.kind, m.entry.truth, {POINT.check.id: -(m.records[USE.check.id].value or 0)}) for m in models
    ]
    turned = dataclasses.replace(POINT, direction="at_most")
    up = threshold(models, USE)
    assert up is not None
    assert threshold(mirrored, turned) == -up


def test_a_check_that_is_undefined_on_faithful_models_has_no_threshold() -> None:
    undefined = [judged("sparse", "faithful", {USE.check.id: None}, seed=9 + i) for i in range(3)]
    assert threshold([*population(), *undefined], USE) is None


def test_a_threshold_that_everything_passes_is_none() -> None:
    """Faithful and unfaithful models alike at the very bottom of what a distance can be: nothing is left to require."""
    bottom = [judged("sparse", "faithful", {USE.check.id: 0.04}, seed=i) for i in range(3)]
    assert threshold([*bottom, judged("bypass", "unfaithful", {USE.check.id: 0.0})], USE) is None


def test_one_straggler_in_sixty_on_either_side_does_not_move_the_threshold() -> None:
    good = [judged("sparse", "faithful", {USE.check.id: 0.65}, seed=i) for i in range(59)]
    bad = [judged("bypass", "unfaithful", {USE.check.id: 0.25}, seed=i) for i in range(59)]
    stragglers = [
        judged("states", "unfaithful", {USE.check.id: 0.64}),
        judged("unit", "faithful", {USE.check.id: 0.10}),
    ]
    assert threshold([*good, *bad], USE) == threshold([*good, *bad, *stragglers], USE) == 0.4


def test_attention_without_effect_never_passes() -> None:
    """The opposing limit is at least 0, the value of attention that has no effect."""
    good = [judged("sparse", "faithful", {POINT.check.id: 0.45}, seed=i) for i in range(5)]
    bad = [judged("decoy", "unfaithful", {POINT.check.id: -1.8}, seed=i) for i in range(5)]
    assert threshold([*good, *bad], POINT) == 0.2


def test_rounding_stays_inside_the_gap() -> None:
    assert rounded(0.3456, low=0.2, high=0.4) == 0.35
    assert rounded(0.0876, low=0.042, high=0.15) == 0.088
    assert rounded(0.34567, low=0.3455, high=0.346) == 0.3457
    assert rounded(0.3478, low=0.3455, high=0.3495) == 0.348


def test_no_threshold_is_vacuous() -> None:
    conicity = Candidate(check=Conicity(severity="report"), question="evidence", direction="at_most")
    for candidate in (USE, POINT, AGREE, conicity):
        low, high = candidate.check.bounds
        for gap in (0.5, 1e-3, 3e-7):
            end = low if candidate.direction == "at_least" else high
            sign = 1 if candidate.direction == "at_least" else -1
            models = [
                JudgedModel(entry(truth, truth, seed=seed), {candidate.check.id: record("c", value, reach=0.0)})
                for seed in range(6)
                for truth, value in (("faithful", end + sign * gap), ("unfaithful", end))
            ]
            value = threshold(models, candidate)
            assert gap < 1e-5 or candidate in (POINT, AGREE) or value is not None
            if value is not None:
                gate = dataclasses.replace(candidate.check, severity="gate", **{candidate.direction: value})
                assert gate.threshold == (candidate.direction, value)


def test_a_written_policy_sorts_its_gates_by_question_and_names_its_units() -> None:
    gates = [
        Gate(check=one.check.id, question=one.question, direction="at_least", threshold=0.1)
        for one in (ENOUGH, USE, POINT)
    ]
    content = tomllib.loads(
        policy_text(gates, (*ALL, ENOUGH), [], None, validated_on=[], base=PolicyBase(name="bags", units="vectors"))
    )
    assert list(content["policy"]["questions"]) == ["used", "points", "enough"]
    assert [check["name"] for check in content["check"]] == ["UniformFragility", "Sufficiency", "HeldSufficiency"]
    assert content["policy"]["questions"]["enough"]["asks"] == "Are the attended vectors enough?"


def test_a_written_policy_keeps_what_no_validation_measures(tmp_path: Path) -> None:
    """The head, the remedies and the informational checks come from the base, less the checks that are now gates."""
    base = tmp_path / "base.toml"
    base.write_text(
        '# My policy.\n#\n# Old figures.\n\n[policy]\nname = "mine"\n[policy.questions.used]\nasks = "Used?"\n'
        f'checks = ["{NOISE.check.id}"]\n[[policy.questions.used.remedy]]\ntext = "tie \\"states\\""\n'
        'families = ["pooled attention"]\naccuracy = "0.8 → 0.7"\nwhen = ["undefined"]\n[[check]]\n'
        'name = "PermutationFragility"\nat_least = 0.2\n\n# Evidence: shown.\n\n[[check]]\nname = "Sufficiency"\n'
        'severity = "report"\n\n# A comment.\n[[check]]\nname = "UniformFragility"\nseverity = "report"\n',
        encoding="utf-8",
    )
    gate = Gate(check=USE.check.id, direction="at_least", threshold=0.1, question="used")
    text = policy_text([gate], ALL, [], None, validated_on=[], basis=["New."], base=PolicyBase.of(base))
    assert text.startswith('# My policy.\n#\n# New.\n\n[policy]\nname = "mine"\n')
    (tmp_path / "written.toml").write_text(text, encoding="utf-8")
    written = load_policy(tmp_path / "written.toml")
    assert {check.id: check.severity for check in written} == {USE.check.id: "gate", POINT.check.id: "report"}
    (question,) = written.record.questions
    assert question.remedy == load_policy(base).record.questions[0].remedy
    base.write_text(base.read_text(encoding="utf-8").replace("# Evidence", "# Other checks"), encoding="utf-8")
    again = policy_text([gate], ALL, [], None, validated_on=[], base=PolicyBase.of(base))
    (tmp_path / "written.toml").write_text(again, encoding="utf-8")
    assert [check.id for check in load_policy(tmp_path / "written.toml")] == [USE.check.id, POINT.check.id]
    assert text.endswith('# Evidence: shown.\n\n[[check]]\nname = "Sufficiency"\nseverity = "report"\n')
