"""The records of the built-in checks on synthetic measurements."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score

from attnaudit import checks
from attnaudit.checks.evidence import Evidence
from attnaudit.errors import CheckError
from attnaudit.formatting import percentage
from attnaudit.records import CheckRecord
from attnaudit.verdict_text import failure_message
from tests.units.checks.synthetic_measurements import measured, reordered

EVERY = [
    checks.Agreement(at_least=0.3),
    checks.Agreement(at_least=0.3, importance="leave_one_out"),
    checks.Agreement(at_least=0.3, preset="jain_wallace", at="hidden"),
    checks.Agreement(at_least=0.3, importance="input_x_gradient"),
    checks.InfluenceEntropy(at_most=0.8),
    checks.InfluenceEntropy(at_most=0.8, of="gradient"),
    checks.InfluenceEntropy(at_most=0.8, of="leave_one_out"),
    checks.PermutationFragility(at_least=0.05),
    checks.PermutationFragility(at_least=0.05, measure="f1_drop"),
    checks.PermutationFragility(at_least=0.05, draws="distinct"),
    checks.PermutationFragility(at_least=0.05, draws="distinct", measure="f1_drop"),
    checks.TotalEffect(at_least=0.1),
    checks.TotalEffect(at_least=0.1, on="logits"),
    checks.TotalEffect(at_least=0.1, on="standardised"),
    checks.TotalEffect(at_least=0.1, classes="as_sampled"),
    checks.TotalEffect(at_least=0.1, on="standardised", classes="smallest"),
    checks.UniformFragility(at_least=0.05),
    checks.UniformFragility(at_least=0.05, measure="f1_drop"),
    checks.AdversarialDivergence(severity="report"),
    checks.AdversarialDivergence(at_most=0.5, tvd=0.05),
    checks.Comprehensiveness(at_least=0.1),
    checks.Comprehensiveness(at_least=0.3, operator="mask", against="signed_loo"),
    checks.Comprehensiveness(at_least=0.1, measure="decision"),
    checks.Sufficiency(at_least=0.1),
    checks.Sufficiency(at_least=0.3, against="signed_loo", measure="decision"),
    checks.DecisionFlip(at_least=0.05),
    checks.TopTokenErasure(at_least=0.05),
    checks.Pointing(at_least=0.5),
    checks.Polarity(at_most=0.4),
    checks.NormalisedAOPC(at_least=0.5),
    checks.NormalisedAOPC(at_least=0.5, measure="sufficiency", operator="mask"),
    checks.Pointing(at_least=0.5, on="logits", shapley_orders=20),
    checks.Pointing(at_least=0.5, on="logits", measure="share"),
    checks.Pointing(at_least=0.5, classes="as_sampled"),
    checks.TokenProbability(at_most=0.8, among="all"),
    checks.Conicity(at_most=0.8),
    checks.ParameterRandomisation(at_most=0.5),
    checks.ParameterRandomisation(at_least=0.1, of="gradient", measure="jsd"),
]
each = pytest.mark.parametrize("check", EVERY, ids=[check.id for check in EVERY])
BUILTINS = (str, int, float, bool, type(None), list, dict)


def parts(value):
    """Yield a value and everything inside it."""
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    if isinstance(value, msgspec.Struct):
        inner = [getattr(value, name) for name in value.__struct_fields__]
    for item in inner:
        yield from parts(item)


@each
def test_a_record_contains_builtins_only_and_survives_serialisation(check):
    record = check.judge(measured())
    assert {type(part) for part in parts(record) if not isinstance(part, msgspec.Struct | msgspec.UnsetType)} <= set(
        BUILTINS
    )
    plain = msgspec.to_builtins(record)
    json.dumps(plain, allow_nan=False)
    assert msgspec.convert(plain, CheckRecord) == record


@each
def test_a_record_describes_its_check(check):
    m = measured()
    record = check.judge(m)
    assert record.check == check.id
    assert (record.model, record.data, record.seed, record.n) == ("model", "data", 0, len(m))
    assert record.needs == list(check.needs())
    assert record.parameters["at_least"] == check.at_least
    assert all((record.title, record.question, record.why, record.unit, record.statistic))
    assert record.question.endswith("?")
    assert record.token_columns[0] == "attention"
    assert set(record.token_columns) <= m.per_token
    assert record.interval.low <= record.value <= record.interval.high
    assert len(record.worst) == 10
    assert sum(record.distribution.counts) == record.n_defined
    assert f"n={record.n_defined}" in failure_message(record).splitlines()[0]


@each
def test_a_record_depends_neither_on_order_nor_on_repetition_nor_on_other_columns(check):
    m = measured(90, sources=40)
    record = check.judge(m)
    m.scalars["another.column"] = np.zeros(90)
    assert check.judge(m) == record
    other = check.judge(reordered(m, np.random.default_rng(5).permutation(90)))
    assert (other.verdict, other.interval, other.worst) == (record.verdict, record.interval, record.worst)
    assert other.value == pytest.approx(record.value, abs=1e-12)


@each
def test_intervals_of_other_checks_and_seeds_use_other_random_numbers(check):
    m = measured(60)
    assert not np.array_equal(
        check.generator(m, "interval").random(3),
        checks.InformationRanking(at_least=0).generator(m, "interval").random(3),
    )
    first = check.generator(m, "interval").random(3)
    m.seed = 1
    assert not np.array_equal(first, check.generator(m, "interval").random(3))


@each
def test_a_gate_without_defined_instances_is_undefined_and_blocks(check):
    m = measured(40)
    for column in m.scalars.values():
        column[:] = np.nan
    for name, column in m.vectors.items():
        if name != "attention":
            m.vectors[name] = [np.full(len(row), np.nan) for row in column]
    record = check.judge(m)
    assert (record.verdict, record.value, record.interval, record.n_defined) == ("undefined", None, None, 0)
    assert record.blocks is (check.severity == "gate")
    assert sum(record.undefined.values()) == 40
    assert "undefined" in failure_message(record).splitlines()[0]
    reason = max(record.undefined, key=record.undefined.__getitem__)
    assert f"n=0 (40 undefined: {reason}" in failure_message(record).splitlines()[0]


@each
def test_without_instances_the_verdict_is_undefined(check):
    assert check.judge(measured(0)).verdict == "undefined"


def test_agreement_is_the_mean_tau_with_details_and_references():
    m = measured()
    name = "agreement.gradient.meister.inputs"
    m.scalars[f"{name}.tau"][:4] = np.nan
    m.scalars[f"{name}.gradient_loo"][:7] = np.nan
    tau, p = m.scalars[f"{name}.tau"][4:], m.scalars[f"{name}.p_value"][4:]
    record = checks.Agreement(at_least=0.0).judge(m)
    assert record.value == pytest.approx(tau.mean())
    assert record.verdict == "pass"
    assert (record.n, record.n_defined) == (120, 116)
    assert record.details["standard deviation"] == pytest.approx(tau.std(ddof=1))
    assert record.details["share of texts with p ≤ .05 (depends mostly on their length)"] == np.mean(p <= 0.05)
    means = [tau[m.predicted[4:] == c].mean() for c in (0, 1)]
    assert record.details["mean where 'positive' is predicted"] == pytest.approx(means[1])
    floor, gradient_loo = record.references
    assert (floor.name, gradient_loo.name) == ("floor", "gradient_loo")
    assert floor.value == pytest.approx(m.scalars[f"{name}.floor"].mean())
    assert (gradient_loo.value, gradient_loo.n) == (pytest.approx(m.scalars[f"{name}.gradient_loo"][7:].mean()), 113)
    low, high = stats.t.interval(0.95, 115, tau.mean(), stats.sem(tau))
    assert (record.interval.low, record.interval.high) == pytest.approx((low, high), abs=0.1 * (high - low))
    assert record.worst[0].value == tau.min()


def test_agreement_counts_why_instances_are_undefined():
    m = measured(50)
    tau = m.scalars["agreement.gradient.meister.inputs.tau"]
    tau[:3] = np.nan
    m.tokens[0], m.vectors["attention"][0] = ["one"], np.array([1.0])
    m.vectors["attention"][1] = np.full(4, 0.25)
    assert checks.Agreement(at_least=0.3).judge(m).undefined == {
        "a single token": 1,
        "all attention weights are equal": 1,
        "the gradient is the same for all tokens": 1,
    }


def test_a_note_warns_of_detached_gradient_times_input_at_hidden_states():
    record = checks.Agreement(at_least=0.3, preset="jain_wallace", at="hidden").judge(measured())
    assert "contains attention as a factor" in record.note
    assert record.note in failure_message(record)


def test_a_note_says_that_a_very_wide_interval_leaves_the_value_unknown():
    m = measured()
    narrow = checks.InfluenceEntropy(at_most=0.8).judge(m)
    assert "possible values" not in narrow.note
    m.scalars["influence.hidden.entropy"] = np.where(np.arange(len(m)) < 8, np.arange(len(m)) % 2.0, np.nan)
    wide = checks.InfluenceEntropy(at_most=0.8).judge(m)
    share = percentage(wide.interval.high - wide.interval.low)
    assert wide.note.startswith(f"the interval covers {share} of the possible values, so the value is hardly known")
    assert checks.TotalEffect(at_least=0.1).judge(m).note == ""  # its values have no upper limit


def test_influence_reports_the_share_of_the_own_token_and_its_rival():
    m = measured()
    record = checks.InfluenceEntropy(at_most=0.8).judge(m)
    assert record.details["mean share of influence from the state's own token"] == pytest.approx(
        m.scalars["influence.hidden.own_share"].mean()
    )
    assert record.details["mean of the largest share from another token"] == pytest.approx(
        m.scalars["influence.hidden.rival_share"].mean()
    )
    assert record.worst[0].value == m.scalars["influence.hidden.entropy"].max()


def test_permutation_f1_drop_is_the_mean_drop_over_permutations():
    m = measured()
    record = checks.PermutationFragility(at_least=0.0, measure="f1_drop").judge(m)
    permuted = np.stack(m.vectors["permutation.predicted"]).astype(int)
    expected = f1_score(m.labels, m.predicted) - np.mean([f1_score(m.labels, column) for column in permuted.T])
    assert record.value == pytest.approx(expected)
    assert record.references[0].value == pytest.approx(f1_score(m.labels, m.predicted))
    assert record.details["share of decisions changed"] == pytest.approx((permuted != m.predicted[:, None]).mean())


def test_f1_drop_without_labels_is_undefined_and_tvd_is_not():
    m = measured(labelled=False)
    record = checks.UniformFragility(at_least=0.05, measure="f1_drop").judge(m)
    assert (record.verdict, record.undefined) == ("undefined", {"no label": 120})
    assert "add a label column" in record.note
    other = checks.UniformFragility(at_least=0.01).judge(m)
    assert other.value == pytest.approx(m.scalars["uniform.tvd"].mean())
    assert other.details["drop in F1"] is None


def test_the_fragility_chart_has_the_median_by_largest_weight_and_class():
    m = measured(400)
    (chart,) = checks.PermutationFragility(at_least=0.05).judge(m).charts
    peak, tvd = m.scalars["attention.max"], m.scalars["permutation.tvd"]
    inside = (peak >= 0.5) & (peak < 0.75) & (m.predicted == 1)
    assert chart.series[1].name == "predicted positive"
    assert chart.series[1].x == [0.125, 0.375, 0.625, 0.875]
    assert chart.series[1].y[2] == pytest.approx(np.median(tvd[inside]))


def test_single_tokens_are_not_among_the_worst_instances_of_fragility():
    m = measured(50)
    m.scalars["uniform.tvd"][7] = 0.0
    m.tokens[7] = ["one"]
    assert "row-0007" not in [ranked.instance for ranked in checks.UniformFragility(at_least=0.05).judge(m).worst]


def test_adversarial_divergence_is_reported_as_share_of_ln2_and_of_the_maximum_and_as_a_curve():
    m = measured()
    record = checks.AdversarialDivergence(severity="report").judge(m)
    jsd = m.scalars["adversarial.0.01.jsd"]
    assert record.value == pytest.approx(jsd.mean())
    assert record.details["mean JSD / ln 2"] == pytest.approx(jsd.mean() / math.log(2))
    assert record.details["mean share of the largest possible JSD"] == pytest.approx(jsd.mean() / 0.65)
    assert record.details["method"] == "exact"
    assert record.references[0].value == pytest.approx(0.65)
    (line,) = record.charts[0].series
    assert line.x == [0.01, 0.02, 0.05, 0.1, 0.2]
    assert line.y == pytest.approx([m.scalars[f"adversarial.{e:g}.jsd"].mean() for e in line.x])
    assert record.token_columns[1] == "adversarial.0.01.attention"
    assert (record.requirement, record.verdict, record.blocks) == (None, "informational", False)
    assert "no threshold" in failure_message(record)


def test_a_relative_threshold_includes_instances_with_a_divergence_of_0():
    m = measured()
    m.scalars["adversarial.0.01.jsd"][:20] = m.scalars["adversarial.0.01.share"][:20] = 0.0
    relative = checks.AdversarialDivergence(at_most="0.75 * largest_possible").judge(m)
    plain = checks.AdversarialDivergence(at_most=0.75 * 0.65).judge(m)
    assert (relative.value, relative.n_defined, relative.verdict) == (plain.value, plain.n_defined, plain.verdict)
    assert relative.references[0].n == plain.n_defined == len(m)


def test_a_bracketed_divergence_passes_only_below_its_upper_bound():
    m = measured(300)
    for epsilon in ("0.01", "0.02", "0.05", "0.1", "0.2"):
        m.scalars[f"adversarial.{epsilon}.upper"] = m.scalars[f"adversarial.{epsilon}.jsd"] + 0.05
    m.facts["adversarial.method"] = "bracketed"
    record = checks.AdversarialDivergence(at_most=0.53).judge(m)
    assert record.verdict == "inconclusive"
    assert record.interval.high == pytest.approx(m.scalars["adversarial.0.01.upper"].mean(), abs=0.02)
    assert record.interval.low == pytest.approx(m.scalars["adversarial.0.01.jsd"].mean(), abs=0.02)
    assert [line.name for line in record.charts[0].series] == ["mean JSD", "upper bound"]
    m.facts["adversarial.method"] = "exact"
    assert checks.AdversarialDivergence(at_most=0.53).judge(m).verdict == "pass"


def test_a_searched_divergence_says_that_a_pass_is_not_certified():
    m = measured()
    m.facts["adversarial.method"] = "searched"
    assert "a pass is not certified" in failure_message(checks.AdversarialDivergence(at_most=0.6).judge(m))


def test_equal_values_get_an_interval_that_allows_for_unseen_ones():
    m = measured(40)
    m.scalars["uniform.tvd"][:] = 0.25
    assert checks.UniformFragility(at_least=0.2).judge(m).verdict == "pass"
    assert checks.UniformFragility(at_least=0.25).judge(m).verdict == "inconclusive"
    record = checks.UniformFragility(at_least=0.35).judge(m)
    assert failure_message(record).startswith("mean TVD 0.250 [0.227, 0.320], required at least 0.350, n=40")
    assert record.verdict == "fail"
    assert record.distribution.counts.count(0) == len(record.distribution.counts) - 1


def test_control_characters_in_tokens_do_not_reach_the_terminal():
    m = measured(40)
    for i in range(40):
        m.tokens[i] = ["\x1b[2J"] * len(m.tokens[i])
    assert "\x1b" not in failure_message(checks.Agreement(at_least=0.3).judge(m))


def test_a_measure_that_was_not_taken_is_named():
    m = measured()
    del m.scalars["uniform.tvd"]
    with pytest.raises(CheckError, match=r"No number 'uniform.tvd' was measured"):
        checks.UniformFragility(at_least=0.05).judge(m)


@given(n=st.integers(0, 60), missing=st.integers(0, 60), threshold=st.floats(-0.99, 1), seed=st.integers(0, 9))
def test_a_pass_needs_enough_defined_instances_and_the_whole_interval_above(n, missing, threshold, seed):
    m = measured(n, seed=seed)
    m.scalars["agreement.gradient.meister.inputs.tau"][:missing] = np.nan
    record = checks.Agreement(at_least=threshold).judge(m)
    if record.verdict == "pass":
        assert record.n_defined >= max(30, 0.8 * n)
        assert record.interval.low >= threshold
    if record.verdict == "fail":
        assert record.interval.high < threshold
    laxer = dataclasses.replace(checks.Agreement(at_least=threshold), at_least=max(-0.995, threshold - 0.1)).judge(m)
    assert laxer.interval == record.interval
    assert not (record.verdict == "pass" and laxer.verdict != "pass")


def test_copies_that_differ_much_leave_any_number_of_instances_inconclusive():
    m = measured(400)
    near = checks.ParameterRandomisation(at_most=0.5).judge(m)
    assert near.verdict == "pass"
    assert near.interval.method == "studentised bootstrap over sources, and over copies"
    for copy, by in ((1, -0.5), (3, 0.5)):
        m.scalars[f"randomised.attention.tau.{copy}"] = m.scalars["randomised.attention.tau"] + by
    apart = checks.ParameterRandomisation(at_most=0.5).judge(m)
    assert apart.value == near.value
    assert apart.verdict == "inconclusive"
    assert apart.planning is None
    assert "the interval includes the uncertainty from drawing only 3 random copies" in apart.note


SENTENCES = {
    checks.TotalEffect: (
        r"(S|In the texts predicted as '\w+', s)huffling the attention weights over the tokens changes the .* \S+% as "
    ),
    checks.Pointing: r"(On \S+% of the texts, attention points|On average, the effect of a token drawn according to) ",
    checks.PermutationFragility: r"Shuffling the attention weights over the tokens of a text (moves|lowers|raises) ",
    checks.UniformFragility: r"Giving all tokens of a text the same weight (moves|lowers|raises) ",
    checks.Comprehensiveness: r"(On average, e|The gain from e)rasing the most attended tokens (lowers|changes|inst)",
    checks.Sufficiency: r"(On average, k|The gain from k)eeping only the most attended tokens (lowers|changes|inst)",
    checks.Agreement: r"The order of the tokens by attention and their order by .* have a rank correlation of ",
}


@each
def test_a_defined_value_is_explained_in_a_sentence_after_the_headline(check: checks.Check) -> None:
    record = check.judge(measured())
    expected = next((text for kind, text in SENTENCES.items() if isinstance(check, kind)), "")
    if not expected or record.value is None:
        assert record.in_words == ""
        return
    assert re.match(expected, record.in_words), record.in_words
    assert record.in_words.endswith(".")
    assert failure_message(record).splitlines()[1] == record.in_words


def test_the_sentences_state_the_values_that_they_explain() -> None:
    record = checks.Pointing(severity="report").judge(measured())
    precision = record.details[
        "precision: effect of a token drawn according to attention, as a share of the largest effect"
    ]
    assert isinstance(precision, float)
    assert f"according to attention is {precision:.0%}" in record.in_words
    record = checks.TotalEffect(severity="report").judge(measured())
    assert record.value is not None
    assert f" {percentage(record.value)} as much as" in record.in_words
    several = checks.UniformFragility(severity="report", measure="f1_drop").judge(measured())
    assert several.value is not None
    assert f"F1 by {abs(several.value):.3f}" in several.in_words


@pytest.mark.parametrize(("shift", "words"), [(0.2, "20.0 percentage points"), (-0.2, "20.0 percentage points")])
def test_a_gain_over_random_tokens_has_its_direction_in_words(shift: float, words: str) -> None:
    evidence = Evidence(value=shift, interval=None, defined=np.ones(1, dtype=bool))
    needed = checks.Comprehensiveness(severity="report").in_words(evidence)
    enough = checks.Sufficiency(severity="report").in_words(evidence)
    assert f"{words} {'more' if shift > 0 else 'less'}" in needed
    assert f"{words} {'less' if shift > 0 else 'more'}" in enough


@pytest.mark.parametrize("check", [checks.PermutationFragility, checks.UniformFragility])
def test_a_drop_in_f1_names_its_class(check):
    m, reordered = measured(), measured()
    reordered.classes = m.classes[::-1]
    drop = check(measure="f1_drop", at_least=0.01)
    assert drop.judge(m).details["class of the F1"] == "positive"
    assert drop.judge(reordered).details["class of the F1"] == "negative"
    assert "F1 is that of the second class of the model" in drop.judge(m).how_to_read
    three = measured()
    three.classes = ("negative", "neutral", "positive")
    assert "class of the F1" not in drop.judge(three).details
