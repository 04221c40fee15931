"""Thresholds relative to references: how they are read, and how a check is held against one."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnaudit import checks
from attnaudit.errors import CheckError
from attnaudit.statistics.threshold import parse
from attnaudit.verdict_text import failure_message
from tests.units.checks.synthetic_measurements import measured

KNOWN = ("floor", "gradient_loo")


@pytest.mark.parametrize(
    ("text", "constant", "weights"),
    [
        ("floor + 0.2", 0.2, {"floor": 1.0}),
        ("gradient_loo - .1", -0.1, {"gradient_loo": 1.0}),
        ("floor + 0.5 * (gradient_loo - floor)", 0.0, {"floor": 0.5, "gradient_loo": 0.5}),
        ("  -(2*floor-1e-1)  ", 0.1, {"floor": -2.0}),
        ("0.9 * gradient_loo", 0.0, {"gradient_loo": 0.9}),
        ("gradient_loo * 3 * 0.5 + floor - floor", 0.0, {"gradient_loo": 1.5}),
    ],
)
def test_what_an_expression_means(text, constant, weights):
    found = parse(text, KNOWN)
    assert found.constant == pytest.approx(constant)
    assert dict(found.weights) == pytest.approx(weights)
    assert found.text == text.strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flor + 0.2", "unknown reference 'flor'. Did you mean 'floor'?"),
        ("floor +", "invalid syntax (character"),
        ("floor 0.2", "invalid syntax (character"),
        ("floor * gradient_loo", "a product of two references is not allowed (character 1)"),
        ("floor / 2", "'floor / 2' is not allowed (character 1)"),
        ("0.2 + floor ** 2", "'floor ** 2' is not allowed (character 7)"),
        ("(floor + 0.2", "'(' was never closed (character 1)"),
        ("floor)", "unmatched ')' (character 6)"),
        ("floor # + 0.2", "'#' is not allowed (character 7)"),
        ("__import__('os')", "'__import__('os')' is not allowed (character 1)"),
        ("system + floor", "unknown reference 'system'"),
        ("1e999 * floor", "a number that is too large"),
        ("1e308 * 10 * floor", "a number that is too large"),
        ("floor.mean", "'floor.mean' is not allowed (character 1)"),
        ("floor if floor else 1", "is not allowed (character 1)"),
        ("floor < 1", "'floor < 1' is not allowed"),
        ("True * floor", "'True' is not allowed"),
        ("2j * floor", "'2j' is not allowed"),
        ("'a' * floor", "is not allowed"),
        ("+floor", "'+floor' is not allowed"),
        ("floor\0", "(character 1)"),
        ("(" * 100 + "floor" + ")" * 95, "(character"),
        ("-" * 196 + "floor", "characters; expected at most"),
        ("0.2 + 0.1", "names no reference"),
        ("floor - floor", "names no reference"),
        ("", "invalid syntax (character"),
        ("floor" + " " * 300, "the threshold has 305 characters"),
        ("+".join(["floor"] * 50), "characters; expected at most 200"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(CheckError) as caught:
        parse(text, KNOWN)
    assert message in str(caught.value)


@given(st.text(alphabet="floorgradient0129.e+-*/()[]{}, '\"\\\n\tx_:=", max_size=40))
def test_nothing_but_a_check_error_comes_out(text):
    with contextlib.suppress(CheckError):
        parse(text, KNOWN)


numbers = st.floats(0, 10).map(lambda x: f"{x:.3f}")
terms = st.recursive(
    st.one_of(numbers, st.sampled_from(KNOWN)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(numbers, inner).map(lambda t: f"{t[0]} * {t[1]}"),
        inner.map(lambda t: f"-{t}"),
    ),
    max_leaves=6,
)


@given(terms, st.floats(-1, 1), st.floats(-1, 1))
def test_an_expression_is_worth_what_python_makes_of_it(text, floor, gradient_loo):
    try:
        found = parse(text, KNOWN)
    except CheckError as error:
        assert "names no reference" in str(error) or "characters" in str(error)  # noqa: PT017
        return
    value = found.of({"floor": np.array([floor]), "gradient_loo": np.array([gradient_loo])})[0]
    expected = eval(text, {"__builtins__": {}}, {"floor": floor, "gradient_loo": gradient_loo})
    assert value == pytest.approx(expected, abs=1e-6, rel=1e-6)
    low, high = found.range(-1, 1)
    assert low - 1e-6 <= value <= high + 1e-6


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: checks.Agreement(at_least="flor + 0.2"),
            "Agreement: at_least: 'flor + 0.2': unknown reference 'flor'",
        ),
        (
            lambda: checks.Agreement(at_least="floor + 3"),
            "at_least='floor + 3' is impossible: the threshold lies between 2 and 4",
        ),
        (lambda: checks.Agreement(at_least="0.3"), "at_least is '0.3'; expected a number. Write it without quotes"),
        (lambda: checks.UniformFragility(at_least="floor"), "this check has no reference that is measured"),
        (lambda: checks.InformationRanking(at_least="floor + 0.2"), "this check has no reference that is measured"),
        (
            lambda: checks.AdversarialDivergence(at_least="largest_possible"),
            "with at_least, the check would pass in the very case",
        ),
    ],
)
def test_declarations_that_cannot_be_meant(make, words):
    with pytest.raises(CheckError) as caught:
        make()
    assert words in str(caught.value)


COLUMN = "agreement.gradient.meister.inputs"


def with_floor(shift, n=400, noise=0.05):
    """τ and floor that go up and down together: τ - floor is `shift` on average, and nearly the same everywhere."""
    m = measured(n)
    random = np.random.default_rng(1)
    floor = random.uniform(-0.5, 0.5, n)
    m.scalars[f"{COLUMN}.floor"] = floor
    m.scalars[f"{COLUMN}.tau"] = floor + shift + noise * random.normal(size=n)
    return m


def test_the_interval_is_that_of_the_paired_difference():
    m = with_floor(0.25)
    record = checks.Agreement(at_least="floor + 0.2").judge(m)
    difference = m.scalar(f"{COLUMN}.tau") - m.scalar(f"{COLUMN}.floor")
    low, high = stats.t.interval(0.95, 399, difference.mean(), stats.sem(difference))
    number = float(m.scalar(f"{COLUMN}.floor").mean()) + 0.2
    assert record.requirement.value == pytest.approx(number)
    assert record.requirement.expression == "floor + 0.2"
    width = high - low
    expected = (low + number - 0.2, high + number - 0.2)
    assert (record.interval.low, record.interval.high) == pytest.approx(expected, abs=0.1 * width)
    assert record.verdict == "pass"
    assert "paired difference from floor + 0.2" in record.interval.method
    apart = checks.Agreement(at_least=round(number, 6)).judge(m)
    assert apart.interval.high - apart.interval.low > 4 * (record.interval.high - record.interval.low)
    assert "required at least" in failure_message(record)
    assert "(floor + 0.2)" in failure_message(record).splitlines()[0]


def test_a_random_reference_widens_where_it_is_unrelated():
    m = measured(400)
    fixed = checks.Agreement(at_least=0.3).judge(m)
    relative = checks.Agreement(at_least="floor").judge(m)
    assert relative.interval.high - relative.interval.low > 1.2 * (fixed.interval.high - fixed.interval.low)


def test_instances_without_a_reference_are_counted_and_left_out():
    m = with_floor(0.25, n=100)
    m.scalars[f"{COLUMN}.gradient_loo"][:15] = np.nan
    record = checks.Agreement(at_least="0.5 * floor + 0.1 * gradient_loo").judge(m)
    assert (record.n, record.n_defined) == (100, 85)
    assert record.undefined == {"a reference of the threshold is undefined": 15}
    assert record.value == pytest.approx(m.scalar(f"{COLUMN}.tau")[15:].mean())
    m.scalars[f"{COLUMN}.gradient_loo"][:30] = np.nan
    assert checks.Agreement(at_least="gradient_loo").judge(m).verdict == "undefined"
    m.scalars[f"{COLUMN}.gradient_loo"][:] = np.nan
    assert checks.Agreement(at_least="gradient_loo").judge(m).verdict == "undefined"


def test_a_bracketed_value_is_held_by_its_upper_bound():
    m = measured(200)
    check = checks.AdversarialDivergence(at_most="0.97 * largest_possible")
    exact = check.judge(m)
    m.facts["adversarial.method"] = "bracketed"
    m.scalars["adversarial.0.01.upper"] = m.scalars["adversarial.0.01.jsd"] + 0.05
    bracketed = check.judge(m)
    assert bracketed.interval.low == pytest.approx(exact.interval.low)
    assert bracketed.interval.high == pytest.approx(exact.interval.high + 0.05, abs=2e-3)


def test_the_references_of_thresholds_are_measured_for_each_instance():
    measurements = measured(60)
    for check in (checks.Agreement(at_least=0.1), checks.AdversarialDivergence(severity="report")):
        evidence = check.evidence(measurements)
        assert set(check.threshold_references) == set(evidence.reference_values)
        for name, values in evidence.reference_values.items():
            reference = next(one for one in evidence.references if one.name == name)
            assert reference.value == pytest.approx(float(np.nanmean(values)))
