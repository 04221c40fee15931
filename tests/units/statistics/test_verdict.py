from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.records import Interval, Requirement, Rounding
from attnaudit.statistics.verdict import blocks, decide
from tests.strategies import directions


def interval(low, high):
    return Interval(low=low, high=high, confidence=0.95, method="m")


def required(direction, value):
    return Requirement(direction=direction, value=value)


def verdict(direction, threshold, low, high, n=100, n_defined=100, n_different=None):
    return decide(
        value=(low + high) / 2,
        interval=interval(low, high),
        requirement=required(direction, threshold),
        n=n,
        n_defined=n_defined,
        n_different=n_different,
    )[0]


@pytest.mark.parametrize(
    ("direction", "threshold", "expected"),
    [
        ("at_least", 0.19, "pass"),
        ("at_least", 0.20, "pass"),
        ("at_least", 0.21, "inconclusive"),
        ("at_least", 0.40, "inconclusive"),
        ("at_least", 0.41, "fail"),
        ("at_most", 0.41, "pass"),
        ("at_most", 0.40, "pass"),
        ("at_most", 0.39, "inconclusive"),
        ("at_most", 0.20, "inconclusive"),
        ("at_most", 0.19, "fail"),
    ],
)
def test_threshold_against_the_interval_from_20_to_40_hundredths(direction, threshold, expected):
    assert verdict(direction, threshold, 0.2, 0.4) == expected


@given(direction=directions, threshold=st.floats(-1, 1), n=st.integers(30, 10**6), n_different=st.integers(1, 29))
def test_fewer_than_30_different_instances_decide_nothing_however_often_they_are_repeated(
    direction, threshold, n, n_different
):
    given = verdict(direction, threshold, 0.2, 0.4, n=n, n_defined=n, n_different=n_different)
    assert given == "inconclusive"


@pytest.mark.parametrize(
    ("n", "n_defined", "expected"),
    [
        (100, 100, "pass"),
        (100, 80, "pass"),
        (100, 79, "undefined"),
        (100, 0, "undefined"),
        (30, 30, "pass"),
        (29, 29, "inconclusive"),
        (36, 29, "inconclusive"),
        (37, 29, "undefined"),
        (1, 1, "inconclusive"),
        (0, 0, "undefined"),
    ],
)
def test_how_many_must_be_defined(n, n_defined, expected):
    assert verdict("at_least", 0.1, 0.2, 0.4, n, n_defined) == expected


def test_no_value_is_undefined():
    found = decide(value=None, interval=None, requirement=required("at_least", 0.1), n=100, n_defined=100)
    assert found == ("undefined", "the statistic is undefined on this data")


def test_no_interval_is_inconclusive():
    found, why = decide(value=0.9, interval=None, requirement=required("at_least", 0.1), n=100, n_defined=100)
    assert found == "inconclusive"
    assert "too few independent sources" in why


def test_nothing_required_is_never_a_pass():
    found, why = decide(value=0.9, interval=interval(0.8, 1.0), requirement=None, n=100, n_defined=100)
    assert (found, why) == ("undefined", "the threshold is undefined on this data")
    found, why = decide(
        value=0.9, interval=interval(0.8, 1.0), requirement=None, n=100, n_defined=100, severity="report"
    )
    assert found == "informational"
    assert why == "there is no threshold, so the value is reported but not judged"


@pytest.mark.parametrize(
    ("verdict_name", "severity", "rule"),
    list(
        itertools.product(("pass", "fail", "inconclusive", "undefined"), ("gate", "report"), ("fail", "warn", "pass"))
    ),
)
def test_what_blocks(verdict_name, severity, rule):
    expected = {
        "pass": False,
        "fail": severity == "gate",
        "undefined": severity == "gate",
        "inconclusive": severity == "gate" and rule == "fail",
    }[verdict_name]
    assert blocks(verdict_name, severity=severity, inconclusive=rule) is expected


numbers = st.floats(-1, 1)


@given(low=numbers, high=numbers, threshold=numbers, direction=directions)
def test_pass_and_fail_mean_that_the_whole_interval_is_on_one_side(low, high, threshold, direction):
    low, high = sorted((low, high))
    found = verdict(direction, threshold, low, high)
    good = [x >= threshold if direction == "at_least" else x <= threshold for x in (low, high)]
    assert found == ("pass" if all(good) else "inconclusive" if any(good) else "fail")


@given(low=numbers, high=numbers, first=numbers, second=numbers)
def test_a_stricter_threshold_never_gives_a_better_verdict(low, high, first, second):
    low, high = sorted((low, high))
    lax, strict = sorted((first, second))
    order = ["fail", "inconclusive", "pass"]
    assert order.index(verdict("at_least", strict, low, high)) <= order.index(verdict("at_least", lax, low, high))
    assert order.index(verdict("at_most", lax, low, high)) <= order.index(verdict("at_most", strict, low, high))


@given(low=numbers, high=numbers, threshold=numbers, direction=directions)
def test_the_reason_says_on_which_side_the_interval_is(low, high, threshold, direction):
    low, high = sorted((low, high))
    found, reason = decide(
        value=low, interval=interval(low, high), requirement=required(direction, threshold), n=50, n_defined=50
    )
    required_side, wrong_side = ("at or above", "below") if direction == "at_least" else ("at or below", "above")
    assert (
        reason
        == {
            "pass": f"the whole 95% interval is {required_side} the required value",
            "fail": f"the whole 95% interval is {wrong_side} the required value",
            "inconclusive": "the required value lies inside the 95% interval",
        }[found]
    )


def test_too_few_values_are_counted_in_the_reason():
    _, reason = decide(
        value=0.3, interval=interval(0.2, 0.4), requirement=required("at_least", 0.1), n=2026, n_defined=1500
    )
    assert reason == "only 1,500 of 2,026 instances have a value, fewer than 80%"


def test_a_gate_whose_reading_leaves_modules_out_is_undefined_whatever_its_value():
    given = {"value": 0.5, "interval": interval(0.45, 0.55), "requirement": required("at_least", 0.3), "n": 99}
    assert decide(**given, n_defined=99)[0] == "pass"
    verdict_name, reason = decide(**given, n_defined=99, unseen_mixers=["layers.0 (Mixer)"])
    assert verdict_name == "undefined"
    assert reason.startswith("1 module of the model carries information between tokens without visible weights (layer")
    assert decide(**given, n_defined=99, severity="report", unseen_mixers=["layers.0 (Mixer)"])[0] == "pass"


@pytest.mark.parametrize(
    ("direction", "threshold", "change", "expected"),
    [
        ("at_least", 0.10, 0.05, "pass"),
        ("at_least", 0.18, 0.05, "undefined"),  # a pass may become inconclusive
        ("at_least", 0.30, 0.05, "inconclusive"),
        ("at_least", 0.38, 0.05, "undefined"),  # an inconclusive verdict may become a fail
        ("at_least", 0.42, 0.05, "fail"),  # a fail blocks in any case
        ("at_most", 0.50, 0.05, "pass"),
        ("at_most", 0.42, 0.05, "undefined"),
        ("at_most", 0.30, 0.05, "inconclusive"),
        ("at_most", 0.22, 0.05, "undefined"),
        ("at_most", 0.18, 0.05, "fail"),
        ("at_least", 0.10, None, "undefined"),
        ("at_least", 0.41, None, "fail"),
    ],
)
def test_rounding_that_could_change_the_verdict_makes_a_gate_undefined(direction, threshold, change, expected):
    given = {
        "value": 0.3,
        "interval": interval(0.2, 0.4),
        "requirement": required(direction, threshold),
        "n": 100,
        "n_defined": 100,
        "rounding": Rounding(precision="bfloat16", rows=64, change=change),
    }
    found, reason = decide(**given)
    assert found == expected
    assert ("bfloat16" in reason) == (expected == "undefined")
    assert decide(**given, severity="report")[0] == verdict(direction, threshold, 0.2, 0.4)
