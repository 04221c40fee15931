from __future__ import annotations

import math

import numpy as np
import pytest

from attnaudit import checks
from attnaudit.errors import CheckError

BAD = [
    (lambda: checks.Agreement(), 'Agreement: a gate needs a threshold: give at_least=..., or severity="report".'),
    (lambda: checks.InfluenceEntropy(), "InfluenceEntropy: a gate needs a threshold: give at_most=..."),
    (lambda: checks.Agreement(at_least=0.1, at_most=0.2), "both at_least and at_most are given; keep one"),
    (lambda: checks.Agreement(at_least=1.1), "at_least=1.1 is impossible, expected a number between -1 and 1"),
    (lambda: checks.Agreement(at_least=-1.5, severity="report"), "at_least=-1.5 is impossible"),
    (lambda: checks.Agreement(at_least=math.nan), "at_least=nan is impossible"),
    (lambda: checks.Agreement(at_least="0.3"), "at_least is '0.3', expected a number"),
    (lambda: checks.Agreement(at_least=True), "at_least is True, expected a number"),
    (lambda: checks.Agreement(at_least=0.3, importance="grad"), "unknown importance 'grad'. Did you mean 'gradient'?"),
    (lambda: checks.Agreement(at_least=0.3, at="input"), "unknown at 'input'. Did you mean 'inputs'?"),
    (lambda: checks.Agreement(at_least=0.3, preset="meistr"), "unknown preset 'meistr'. Did you mean 'meister'?"),
    (
        lambda: checks.Agreement(at_least=0.3, importance="leave_one_out", preset="meister"),
        "preset and detach belong to importance='gradient'",
    ),
    (
        lambda: checks.Agreement(at_least=0.3, at="hidden", detach=True),
        "the detached gradient norm at hidden states is proportional to attention, so τ is 1 by construction",
    ),
    (
        lambda: checks.Agreement(at_least=0.3, preset="jain_wallace", detach=False),
        "that preset has attention held constant. Leave detach out, or choose preset 'meister'",
    ),
    (lambda: checks.Agreement(at_least=0.3, detach="no"), "detach is 'no', expected true or false"),
    (lambda: checks.Agreement(at_least=0.3, severity="gates"), "unknown severity 'gates'. Did you mean 'gate'?"),
    (lambda: checks.Agreement(at_least=0.3, inconclusive="ignore"), "unknown inconclusive 'ignore'"),
    (
        lambda: checks.Agreement(at_least=0.3, confidence=95),
        "confidence=95 is impossible, expected a number between 0.5",
    ),
    (lambda: checks.InfluenceEntropy(at_least=0.5), "at_least would reward what this check warns of; give at_most=..."),
    (lambda: checks.InfluenceEntropy(at_most=0.5, of="states"), "unknown of 'states'"),
    (lambda: checks.InfluenceEntropy(at_most=1.2), "expected a number between 0 and 1"),
    (lambda: checks.PermutationFragility(at_least=-0.1), "expected a number between 0 and 1"),
    (lambda: checks.UniformFragility(at_least=0.1, measure="f1"), "unknown measure 'f1'. Known: 'f1_drop', 'tvd'."),
    (
        lambda: checks.AdversarialDivergence(at_most=0.7),
        "at_most=0.7 is impossible, expected a number between 0 and 0.6931",
    ),
    (lambda: checks.AdversarialDivergence(at_least=0.1), "at_least would reward what this check warns of"),
    (lambda: checks.AdversarialDivergence(severity="report", tvd=0), "tvd=0 is impossible, expected more than 0"),
    (lambda: checks.AdversarialDivergence(severity="report", tvd=2), "tvd=2 is impossible"),
    (lambda: checks.AdversarialDivergence(severity="report", tvd=None), "tvd is None, expected a number"),
    (lambda: checks.InformationRanking(at_least=2), "expected a number between -1 and 1"),
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
