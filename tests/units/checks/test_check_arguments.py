from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.errors import CheckError
from attnaudit.statistics.threshold import Expression
from attnaudit.statistics.vacuous_thresholds import why_vacuous
from tests.strategies import directions

BAD = [
    (lambda: checks.Agreement(at_lest=0.3), "Agreement: unknown argument 'at_lest'. Did you mean 'at_least'"),  # type: ignore[call-arg]
    (lambda: checks.Agreement(0.3), "Agreement: name every argument, as in Agreement(at_least=0.3)."),  # type: ignore[misc]
    (
        lambda: checks.Pointing(at_least=0.3, not_worse_than_baseline_by=0.05),  # type: ignore[call-arg]
        "Pointing: a margin, not_worse_than_baseline_by, can be set only in a policy file, whose [baseline] table says",
    ),
    (lambda: checks.Agreement(), 'Agreement: a gate needs a threshold: give at_least=..., or severity="report".'),
    (lambda: checks.InfluenceEntropy(), "InfluenceEntropy: a gate needs a threshold: give at_most=..."),
    (lambda: checks.Agreement(at_least=0.1, at_most=0.2), "both at_least and at_most are given; remove one of them"),
    (lambda: checks.Agreement(at_least=1.1), "at_least is 1.1; expected a number between -1 and 1"),
    (lambda: checks.Agreement(at_least=-1.5, severity="report"), "at_least is -1.5; expected"),
    (lambda: checks.Agreement(at_least=math.nan), "at_least is nan; expected"),
    (lambda: checks.Agreement(at_least="0.3"), "at_least is '0.3'; expected a number"),
    (lambda: checks.Agreement(at_least=True), "at_least is True; expected a number"),
    (lambda: checks.Agreement(at_least=0.3, importance="grad"), "unknown importance 'grad'. Did you mean 'gradient'?"),
    (lambda: checks.Agreement(at_least=0.3, at="input"), "unknown at 'input'. Did you mean 'inputs'?"),
    (lambda: checks.Agreement(at_least=0.3, preset="meistr"), "unknown preset 'meistr'. Did you mean 'meister'?"),
    (
        lambda: checks.Agreement(at_least=0.3, importance="leave_one_out", preset="meister"),
        "preset and detach apply only to importance='gradient'",
    ),
    (
        lambda: checks.Agreement(at_least=0.3, at="hidden", detach=True),
        "the gradient norm at hidden states is proportional to attention, so τ is 1 by construction",
    ),
    (
        lambda: checks.Agreement(at_least=0.3, preset="jain_wallace", detach=False),
        "with this preset, attention is held constant. Leave detach out, or choose preset 'meister'",
    ),
    (lambda: checks.Agreement(at_least=0.3, detach="no"), "detach is 'no'; expected true or false"),
    (lambda: checks.Agreement(at_least=0.3, severity="gates"), "unknown severity 'gates'. Did you mean 'gate'?"),
    (lambda: checks.Agreement(at_least=0.3, inconclusive="ignore"), "unknown inconclusive 'ignore'"),
    (
        lambda: checks.Agreement(at_least=0.3, confidence=95),
        "confidence is 95; expected a number between 0.5",
    ),
    (
        lambda: checks.InfluenceEntropy(at_least=0.5),
        "with at_least, the check would pass in the very case it warns of; give at_most=...",
    ),
    (lambda: checks.InfluenceEntropy(at_most=0.5, of="states"), "unknown of 'states'"),
    (lambda: checks.InfluenceEntropy(at_most=1.2), "expected a number between 0 and 1"),
    (lambda: checks.PermutationFragility(at_least=-0.1), "expected a number between 0 and 1"),
    (lambda: checks.UniformFragility(at_least=0.1, measure="f1"), "unknown measure 'f1'. Known: 'f1_drop', 'tvd'."),
    (
        lambda: checks.AdversarialDivergence(at_most=0.7),
        "at_most is 0.7; expected a number between 0 and 0.6931",
    ),
    (
        lambda: checks.AdversarialDivergence(at_least=0.1),
        "with at_least, the check would pass in the very case it warns of",
    ),
    (lambda: checks.AdversarialDivergence(severity="report", tvd=0), "tvd is 0; expected more than 0"),
    (lambda: checks.AdversarialDivergence(severity="report", tvd=2), "tvd is 2; expected"),
    (lambda: checks.AdversarialDivergence(severity="report", tvd=None), "tvd is None; expected a number"),
    (lambda: checks.InformationRanking(at_least=2), "expected a number between -1 and 1"),
    (
        lambda: checks.UniformFragility(at_least=0),
        "at_least=0 can never fail, because no value is below 0. Give a higher",
    ),
    (lambda: checks.UniformFragility(at_least=1e-7), "at_least=1e-07 can never fail"),
    (lambda: checks.UniformFragility(at_least=-1, measure="f1_drop"), "no value is below -1"),
    (lambda: checks.Agreement(at_least=-1, severity="report"), "at_least=-1 can never fail"),
    (
        lambda: checks.Agreement(at_least="floor - 2"),
        "at_least='floor - 2' can never fail, because no value is below -1",
    ),
    (lambda: checks.Agreement(at_least="0.5 * (floor + gradient_loo) - 2"), "can never fail"),
    (lambda: checks.AdversarialDivergence(at_most=math.log(2)), "no value is above 0.6931. Give a lower threshold"),
    (lambda: checks.AdversarialDivergence(at_most=0.693147), "at_most=0.693147 can never fail"),
    (lambda: checks.AdversarialDivergence(at_most="largest_possible"), "no value is above 'largest_possible'"),
    (lambda: checks.AdversarialDivergence(at_most="0.1 + 1.0 * largest_possible"), "no value is above"),
    (lambda: checks.AdversarialDivergence(at_most="0.7 - 0 * largest_possible"), "names no reference"),
    (lambda: checks.Conicity(at_most=1), "no value is above 1"),
    (lambda: checks.Conicity(at_most="floor + 1"), "no value is above 1"),
    (lambda: checks.TokenProbability(at_most="whole_text + 1"), "can never fail"),
    (lambda: checks.SeedVariance(at_most="uniform + 0.6931471805599453"), "can never fail"),
    (lambda: checks.ParameterRandomisation(at_most=1), "can never fail"),
    (lambda: checks.ParameterRandomisation(at_least=0, measure="jsd"), "can never fail"),
    (lambda: checks.Sufficiency(at_least=-1e300, against="signed_loo"), "can never fail"),
    (
        lambda: checks.Agreement(at_most=0.5),
        "it warns of; give at_least=...",
    ),
    (
        lambda: checks.PermutationFragility(at_most=0.5),
        "with at_most, the check would pass in the very case",
    ),
    (
        lambda: checks.UniformFragility(at_most=0.5, measure="f1_drop"),
        "with at_most, the check would pass in the very case",
    ),
    (lambda: checks.InformationRanking(at_most=0.5), "with at_most, the check would pass in the very case"),
    (lambda: checks.InformationRanking(at_least=0.5, preset="wne"), "Did you mean 'wen'"),
]


@pytest.mark.parametrize(("declare", "message"), BAD, ids=[message[:50] for _, message in BAD])
def test_invalid_arguments_are_refused(declare, message):
    with pytest.raises(CheckError) as caught:
        declare()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("check", "name"),
    [
        (checks.Agreement(at_least=0.3), "agreement.gradient.meister.inputs"),
        (checks.Agreement(at_least=0.3, at="hidden"), "agreement.gradient.meister.hidden"),
        (checks.Agreement(at_least=0.3, preset="jain_wallace"), "agreement.gradient.jain_wallace.inputs"),
        (checks.Agreement(at_least=0.3, importance="input_x_gradient"), "agreement.input_x_gradient.inputs"),
        (checks.Agreement(at_least=0.3, importance="leave_one_out"), "agreement.leave_one_out.inputs"),
        (checks.InfluenceEntropy(at_most=0.8), "influence_entropy.hidden"),
        (checks.InfluenceEntropy(at_most=0.8, of="gradient"), "influence_entropy.gradient.meister.inputs"),
        (checks.InfluenceEntropy(at_most=0.8, of="leave_one_out"), "influence_entropy.leave_one_out.inputs"),
        (checks.PermutationFragility(at_least=0.05), "permutation_fragility.tvd"),
        (checks.UniformFragility(at_least=0.05, measure="f1_drop"), "uniform_fragility.f1_drop"),
        (checks.AdversarialDivergence(severity="report"), "adversarial_divergence.0.01"),
        (checks.InformationRanking(at_least=0.5), "information_ranking"),
    ],
)
def test_ids(check, name):
    assert check.id == name


def test_needs_name_measures():
    assert checks.Agreement(at_least=0.3).needs() == ("agreement.gradient.meister.inputs",)
    assert checks.InfluenceEntropy(at_most=0.8).needs() == ("influence.hidden",)
    assert checks.InfluenceEntropy(at_most=0.8, of="gradient").needs() == ("entropy.gradient.meister.inputs",)
    assert checks.PermutationFragility(at_least=0.05, measure="f1_drop").needs() == ("permutation",)
    assert checks.UniformFragility(at_least=0.05).needs() == ("uniform",)
    assert checks.InformationRanking(at_least=0.5).needs() == ("ranked_hidden",)
    assert checks.AdversarialDivergence(severity="report", tvd=0.03).needs() == tuple(
        f"adversarial.{e}" for e in ("0.01", "0.02", "0.03", "0.05", "0.1", "0.2")
    )


@pytest.mark.parametrize(
    "declare",
    [
        lambda: checks.UniformFragility(at_least=0.001),
        lambda: checks.UniformFragility(at_least=1),
        lambda: checks.UniformFragility(at_least=0, measure="f1_drop"),
        lambda: checks.Agreement(at_least="floor - 1.9"),
        lambda: checks.Agreement(at_least="floor + 0.5 * (gradient_loo - floor)"),
        lambda: checks.AdversarialDivergence(at_most=0.69),
        lambda: checks.AdversarialDivergence(at_most="0.99 * largest_possible"),
        lambda: checks.Conicity(at_most="floor + 0.2"),
        lambda: checks.Sufficiency(at_least=-1, against="signed_loo"),
        lambda: checks.TrainedAdversary(compare_seeds=2, at_most="2 * seeds"),
    ],
)
def test_thresholds_that_some_value_fails_are_accepted(declare):
    assert declare().threshold is not None


@given(direction=directions, limit=st.floats(-1.5, 1.5), value=st.floats(-1, 1))
def test_a_threshold_is_vacuous_only_if_no_value_fails_it(direction, limit, value):
    fails = value < limit - 1e-5 if direction == "at_least" else value > limit + 1e-5
    assert not (fails and why_vacuous(direction, limit, bounds=(-1.0, 1.0)))
    extreme = -1.0 if direction == "at_least" else 1.0
    extreme_fails = extreme < limit if direction == "at_least" else extreme > limit
    assert extreme_fails or why_vacuous(direction, limit, bounds=(-1.0, 1.0))


@given(a=st.floats(-3, 3), b=st.floats(-3, 3), c=st.floats(-3, 3), direction=directions)
def test_an_expression_is_vacuous_exactly_if_all_of_its_range_is(a, b, c, direction):
    if a == b == 0:
        return
    expression = Expression("e", c, {name: weight for name, weight in (("x", a), ("y", b)) if weight})
    ends = [a * x + b * y + c for x in (-1, 1) for y in (0, 0.5)]
    nearest = max(ends) if direction == "at_least" else min(ends)
    reason = why_vacuous(direction, expression, bounds=(-1.0, 1.0), reference_bounds={"y": (0.0, 0.5)})
    if abs(abs(nearest) - 1) > 1e-4:
        assert bool(reason) == (nearest < -1 if direction == "at_least" else nearest > 1)


def test_numbers_become_python_floats():
    check = checks.Agreement(at_least=np.float32(0.5), confidence=np.float64(0.9))
    assert type(check.at_least) is float
    assert type(check.confidence) is float
    assert type(checks.Agreement(at_least=0).at_least) is float


def test_checks_are_frozen_and_equal_by_value():
    one = checks.Agreement(at_least=0.3)
    assert one == checks.Agreement(at_least=0.3, preset="meister", importance="gradient")
    with pytest.raises(AttributeError):
        one.at_least = 0.5
