"""The records of the erasure, state and randomisation checks on synthetic measurements."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from attnaudit import checks
from attnaudit.checks.policies.policy import from_tables, to_table
from attnaudit.errors import CheckError
from attnaudit.verdict_text import failure_message
from tests.units.checks.synthetic_measurements import measured

ERASURE = pytest.mark.parametrize(
    ("kind", "name", "sign"),
    [(checks.Comprehensiveness, "comprehensiveness", 1), (checks.Sufficiency, "sufficiency", -1)],
)


@ERASURE
@pytest.mark.parametrize("measure", ["probability", "decision"])
@pytest.mark.parametrize("operator", ["deletion", "mask"])
def test_the_value_is_the_gain_over_random_orders_and_signed_leave_one_out_is_a_reference(
    kind, name, sign, operator, measure
):
    m = measured()
    record = kind(at_least=0.0, operator=operator, measure=measure).judge(m)
    column = f"{name}.{operator}" + (".decision" if measure == "decision" else "")
    orders = ("attention", "random", "loo", "shuffled")
    attention, random, loo, shuffled = (m.scalars[f"{column}.{order}"] for order in orders)
    assert record.value == pytest.approx(sign * (attention - random).mean())
    floor, signed_loo = record.references
    assert (floor.name, floor.value) == ("floor", pytest.approx(sign * (shuffled - random).mean()))
    assert (signed_loo.name, signed_loo.value) == ("signed_loo", pytest.approx(sign * (loo - random).mean()))
    assert record.details["mean AOPC, order of attention"] == pytest.approx(attention.mean())
    assert record.worst[0].value == pytest.approx((sign * (attention - random)).min())
    assert record.verdict == "pass"


@ERASURE
def test_against_signed_leave_one_out_the_value_is_a_ratio_of_means_that_ignores_scale(kind, name, sign):
    m = measured()
    check = kind(at_least=0.2, against="signed_loo")
    record = check.judge(m)
    random = m.scalars[f"{name}.deletion.random"]
    gain, best = (sign * (m.scalars[f"{name}.deletion.{order}"] - random) for order in ("attention", "loo"))
    assert record.value == pytest.approx(gain.mean() / best.mean())
    assert (record.references[1].name, record.references[1].value) == ("signed_loo", 1.0)
    assert record.interval.low < record.value < record.interval.high
    for column in [c for c in m.scalars if c.startswith(f"{name}.deletion")]:
        m.scalars[column] = 0.1 * m.scalars[column]
    assert check.judge(m).value == pytest.approx(record.value)
    assert check.judge(m).interval.low == pytest.approx(record.interval.low)


@ERASURE
def test_there_is_no_share_of_a_leave_one_out_order_that_gains_nothing(kind, name, sign):
    m = measured()
    m.scalars[f"{name}.deletion.loo"] = m.scalars[f"{name}.deletion.random"].copy()
    record = kind(at_least=0.2, against="signed_loo").judge(m)
    assert (record.verdict, record.value) == ("undefined", None)
    assert "gains nothing over a random order" in failure_message(record)


@ERASURE
@pytest.mark.parametrize("operator", ["deletion", "mask"])
def test_a_note_says_that_the_other_operator_gives_another_verdict(kind, name, sign, operator):
    m = measured()
    other = {"deletion": "mask", "mask": "deletion"}[operator]
    m.scalars[f"{name}.{other}.attention"] = m.scalars[f"{name}.{other}.random"].copy()
    record = kind(at_least=0.1, operator=operator).judge(m)
    assert record.verdict == "pass"
    names = {"deletion": "deletion", "mask": "mask substitution"}
    expected = f"the verdict depends on the erasure operator: pass with {names[operator]}, fail with {names[other]}"
    assert record.note == expected
    assert f"note: {expected}." in failure_message(record).splitlines()
    assert kind(at_least=0.1, operator=other).judge(m).verdict == "fail"


@ERASURE
def test_equal_verdicts_and_checks_without_a_threshold_get_no_note_on_the_operator(kind, name, sign):
    m = measured()
    assert kind(at_least=0.1).judge(m).note == ""
    m.scalars[f"{name}.mask.attention"] = m.scalars[f"{name}.mask.random"].copy()
    assert kind(severity="report").judge(m).note == ""


@ERASURE
def test_without_a_mask_token_only_deletion_is_judged_and_mask_is_undefined(kind, name, sign):
    m = measured()
    m.facts["erasure.mask"] = "not possible"
    for column in [c for c in m.scalars if c.startswith(f"{name}.mask")]:
        m.scalars[column][:] = np.nan
    record = kind(at_least=0.1).judge(m)
    assert record.verdict == "pass"
    assert record.note == "the model's adapter names no mask token, so only deletion was used"
    other = kind(at_least=0.1, operator="mask").judge(m)
    assert (other.verdict, other.blocks) == ("undefined", True)
    assert other.undefined == {"the model's adapter names no mask token": 120}


@ERASURE
def test_undefined_instances_have_a_reason_and_the_curve_leaves_them_out(kind, name, sign):
    m = measured(50)
    for column in [c for c in m.scalars if c.startswith(name)]:
        m.scalars[column][:3] = np.nan
    for column in [c for c in m.vectors if c.startswith(name)]:
        m.vectors[column][:3] = [np.full(5, np.nan)] * 3
    m.tokens[0] = ["one"]
    record = kind(at_least=0.0).judge(m)
    assert record.undefined == {"a single token": 1, "all attention weights are equal": 2}
    (chart,) = record.charts
    assert [line.name for line in chart.series] == ["attention", "random order", "signed leave-one-out"]
    assert chart.series[0].x == [1, 5, 10, 20, 50]
    assert chart.series[0].y == pytest.approx(np.mean(m.vectors[f"{name}.deletion.attention.curve"][3:], axis=0))


def test_decision_flip_is_the_share_spared_compared_with_random_order():
    m = measured()
    record = checks.DecisionFlip(at_least=0.1).judge(m)
    gain = m.scalars["flip.random"] - m.scalars["flip.attention"]
    assert record.value == pytest.approx(gain.mean())
    best = m.scalars["flip.random"] - m.scalars["flip.attention_x_gradient"]
    assert record.references[1].value == pytest.approx(best.mean())
    m.scalars["flip.attention"][:30] = 1.0
    details = checks.DecisionFlip(at_least=0.1).judge(m).details
    assert details["share of decisions that never flip (order: attention)"] == pytest.approx(30 / 120)


def test_the_reason_why_no_weight_can_be_removed_is_counted():
    m = measured(50)
    for column in ("flip.attention", "top_token.attention"):
        m.scalars[column][:3] = np.nan
    m.tokens[0] = ["one"]
    m.scalars["attention.max"][:2] = 1.0
    expected = {"a single token": 1, "one token holds all attention": 1, "all attention weights are equal": 1}
    assert checks.DecisionFlip(at_least=0.1).judge(m).undefined == expected
    assert checks.TopTokenErasure(at_least=0.1).judge(m).undefined == expected


def test_top_token_erasure_is_the_excess_over_another_token_and_the_best_token_is_its_reference():
    m = measured(40)
    n = 4
    m.tokens = [["w"] * n for _ in range(40)]
    moved = np.random.default_rng(0).random((40, n)) < 0.3
    m.scalars["top_token.attention"] = moved[:, 0].astype(float)
    m.scalars["top_token.random"] = moved[:, 1:].mean(1)
    m.scalars["top_token.any"] = moved.any(1).astype(float)
    record = checks.TopTokenErasure(at_least=0.0).judge(m)
    assert record.value == pytest.approx((moved[:, 0] - moved[:, 1:].mean(1)).mean())
    best = [np.sort(row)[::-1] for row in moved.astype(float)]
    assert record.references[1].value == pytest.approx(np.mean([row[0] - row[1:].mean() for row in best]))


def test_per_token_probability_counts_correct_predictions():
    m = measured()
    correct = m.labels == m.predicted
    record = checks.TokenProbability(at_most=0.7).judge(m)
    assert record.value == pytest.approx(m.scalars["token_probability"][correct].mean())
    assert (record.n, record.n_defined) == (correct.sum(), correct.sum())
    assert record.note == f"measured on the {correct.sum()} of 120 instances that are predicted correctly"
    assert record.note in failure_message(record)
    assert {ranked.instance for ranked in record.worst} <= {i for i, c in zip(m.ids, correct, strict=True) if c}
    among_all = checks.TokenProbability(at_most=0.7, among="all").judge(m)
    assert among_all.value == pytest.approx(m.scalars["token_probability"].mean())
    assert among_all.references[0].value == 0.5


def test_per_token_probability_without_labels_is_undefined_and_names_the_remedy():
    record = checks.TokenProbability(at_most=0.7).judge(measured(labelled=False))
    assert (record.verdict, record.n) == ("undefined", 0)
    assert "add a label column, or use among='all'" in failure_message(record)


def test_conicity_has_orthogonal_states_as_floor():
    m = measured()
    record = checks.Conicity(at_most=0.9).judge(m)
    assert record.value == pytest.approx(m.scalars["conicity"].mean())
    assert record.references[0].value == pytest.approx((m.lengths**-0.5).mean())
    assert record.worst[0].value == m.scalars["conicity"].max()


def occurrences(m, embeddings, states, first=None):
    m.tables["retained.frequent.embeddings"] = np.asarray(embeddings, dtype=np.int64)
    m.tables["retained.frequent.states"] = np.asarray(states, dtype=np.int64)
    m.tables["retained.frequent.instances"] = np.arange(len(embeddings)) % len(m)
    m.tables["retained.frequent.first"] = np.arange(len(embeddings)) if first is None else first
    m.facts["retained.frequent.sizes"] = "some"
    return m


def test_information_retained_is_corrected_for_chance():
    random = np.random.default_rng(0)
    e = random.integers(0, 20, 1200)
    noisy = np.where(random.random(1200) < 0.5, e, random.integers(0, 20, 1200))
    record = checks.InformationRetained(at_least=0.05).judge(occurrences(measured(), e, noisy))
    information, entropy = mutual_info_score(e, noisy), mutual_info_score(e, e)
    assert record.details["mutual information of embedding and state, plug-in estimate, nats"] == pytest.approx(
        information
    )
    assert record.details["entropy of the embeddings, nats"] == pytest.approx(entropy)
    null = record.details["the same with shuffled states, nats"]
    expected = np.mean([mutual_info_score(e, random.permutation(noisy)) for _ in range(50)])
    assert null == pytest.approx(expected, rel=0.05)
    assert record.value == pytest.approx((information - null) / (entropy - null))
    assert record.verdict == "pass"
    assert record.interval.low < record.value < record.interval.high


def test_copies_of_occurrences_do_not_change_the_information_retained():
    random = np.random.default_rng(2)
    e = random.integers(0, 12, 900)
    noisy = np.where(random.random(900) < 0.5, e, random.integers(0, 12, 900))
    check = checks.InformationRetained(at_least=0.05)
    once = check.judge(occurrences(measured(60), e, noisy))
    # The 60 copies of each instance follow the last of the 60 instances, with the same sources.
    m = measured(120)
    m.sources = [f"source {row % 60:04d}" for row in range(120)]
    again = occurrences(m, np.tile(e, 2), np.tile(noisy, 2), first=np.tile(np.arange(900), 2))
    again.tables["retained.frequent.instances"] = np.concatenate([np.arange(900) % 60, 60 + np.arange(900) % 60])
    again = check.judge(again)
    assert (again.value, again.n_defined) == (once.value, 120)
    assert [one.n for one in again.references] == [900, 900]
    assert (again.interval.low, again.interval.high) == pytest.approx((once.interval.low, once.interval.high), abs=0.01)


@pytest.mark.parametrize(("states", "value"), [(lambda e, r: e, 1.0), (lambda e, r: r.permutation(e), 0.0)])
def test_information_retained_is_one_for_the_embedding_itself_and_zero_for_chance(states, value):
    random = np.random.default_rng(1)
    e = random.integers(0, 15, 900)
    record = checks.InformationRetained(at_least=0.5).judge(occurrences(measured(60), e, states(e, random)))
    assert record.value == pytest.approx(value, abs=0.02)
    assert record.references[0].value == pytest.approx(0.0, abs=0.02)
    assert record.verdict == ("pass" if value else "fail")


@pytest.mark.parametrize(
    ("embeddings", "note"),
    [([], "too few occurrences to cluster"), ([3] * 200, "all embeddings fall into one cluster")],
)
def test_information_retained_is_undefined_without_occurrences(embeddings, note):
    record = checks.InformationRetained(at_least=0.5).judge(occurrences(measured(50), embeddings, embeddings))
    assert (record.verdict, record.value) == ("undefined", None)
    assert note in failure_message(record)


def test_parameter_randomisation_reports_both_measures_and_the_agreement_of_two_copies():
    m = measured()
    record = checks.ParameterRandomisation(at_most=0.5).judge(m)
    assert record.value == pytest.approx(m.scalars["randomised.attention.tau"].mean())
    assert record.references[0].value == pytest.approx(m.scalars["randomised.attention.tau.floor"].mean())
    assert record.details["mean JSD, nats"] == pytest.approx(m.scalars["randomised.attention.jsd"].mean())
    assert record.verdict == "pass"
    assert record.worst[0].value == m.scalars["randomised.attention.tau"].max()


@pytest.mark.parametrize(
    ("check", "name"),
    [
        (checks.Comprehensiveness(at_least=0.1), "comprehensiveness.deletion.random"),
        (checks.Sufficiency(at_least=0.1, operator="mask", against="signed_loo"), "sufficiency.mask.signed_loo"),
        (checks.Sufficiency(at_least=0.1, measure="decision"), "sufficiency.deletion.random.decision"),
        (checks.DecisionFlip(at_least=0.1), "decision_flip"),
        (checks.TopTokenErasure(at_least=0.1), "top_token_erasure"),
        (checks.TokenProbability(at_most=0.5), "token_probability"),
        (checks.TokenProbability(at_most=0.5, among="all"), "token_probability.all"),
        (checks.Conicity(at_most=0.5), "conicity"),
        (checks.InformationRetained(at_least=0.5, words="sampled"), "information_retained.sampled"),
        (
            checks.ParameterRandomisation(at_least=0.1, of="gradient", measure="jsd"),
            "parameter_randomisation.gradient.jsd",
        ),
    ],
)
def test_ids_and_tables(check, name):
    assert check.id == name
    assert from_tables([to_table(check)], where="policy.toml") == [check]


def test_needs_name_measures():
    assert checks.Comprehensiveness(at_least=0.1).needs() == ("comprehensiveness.deletion", "comprehensiveness.mask")
    assert checks.Sufficiency(at_least=0.1, operator="mask").needs() == ("sufficiency.deletion", "sufficiency.mask")
    assert checks.DecisionFlip(at_least=0.1).needs() == ("flip",)
    assert checks.TopTokenErasure(at_least=0.1).needs() == ("top_token",)
    assert checks.InformationRetained(at_least=0.1).needs() == ("retained.frequent",)
    assert checks.ParameterRandomisation(at_most=0.1).needs() == ("randomised",)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: checks.Comprehensiveness(), "Comprehensiveness: a gate needs a threshold: give at_least=..."),
        (
            lambda: checks.Comprehensiveness(at_most=0.1),
            "with at_most, the check would pass in the very case it warns of",
        ),
        (lambda: checks.Comprehensiveness(at_least=0.1, operator="masks"), "unknown operator 'masks'"),
        (lambda: checks.Sufficiency(at_least=0.1, against="loo"), "unknown against 'loo'"),
        (lambda: checks.Sufficiency(at_least=0.1, measure="tvd"), "unknown measure 'tvd'"),
        (lambda: checks.Sufficiency(at_least=1.1), "expected a number between -1 and 1"),
        (lambda: checks.DecisionFlip(at_most=0.1), "with at_most, the check would pass in the very case it warns of"),
        (lambda: checks.TopTokenErasure(at_least=2), "expected a number between -1 and 1"),
        (
            lambda: checks.TokenProbability(at_least=0.5),
            "with at_least, the check would pass in the very case it warns of",
        ),
        (lambda: checks.TokenProbability(at_most=0.5, among="wrong"), "unknown among 'wrong'"),
        (lambda: checks.Conicity(at_least=0.5), "with at_least, the check would pass in the very case it warns of"),
        (lambda: checks.InformationRetained(at_least=0.5, words="all"), "unknown words 'all'"),
        (
            lambda: checks.ParameterRandomisation(at_least=0.5),
            "with measure='tau' and at_least, the check would pass in the very case it warns of; give at_most=...",
        ),
        (
            lambda: checks.ParameterRandomisation(at_most=0.5, measure="jsd"),
            "with measure='jsd' and at_most, the check would pass in the very case it warns of; give at_least=...",
        ),
        (lambda: checks.ParameterRandomisation(at_most=0.5, of="loo"), "unknown of 'loo'"),
    ],
)
def test_invalid_arguments_are_refused(declare, message):
    with pytest.raises(CheckError) as caught:
        declare()
    assert message in str(caught.value)
