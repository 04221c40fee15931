from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.records import Interval, Reference, Requirement, Shown
from attnaudit.statistics.verdict import blocks, decide, headline, marked, message, noted
from tests.strategies import directions
from tests.units.report.example_runs import check_record


def interval(low, high):
    return Interval(low=low, high=high, confidence=0.95, method="m")


def required(direction, value):
    return Requirement(direction=direction, value=value)


def verdict(direction, threshold, low, high, n=100, n_defined=100):
    return decide(
        value=(low + high) / 2,
        interval=interval(low, high),
        requirement=required(direction, threshold),
        n=n,
        n_defined=n_defined,
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
    assert found == ("undefined", "the statistic is undefined")


def test_no_interval_is_inconclusive():
    found, why = decide(value=0.9, interval=None, requirement=required("at_least", 0.1), n=100, n_defined=100)
    assert found == "inconclusive"
    assert "too few independent sources" in why


def test_nothing_required_is_never_a_pass():
    found, why = decide(value=0.9, interval=interval(0.8, 1.0), requirement=None, n=100, n_defined=100)
    assert found == "inconclusive"
    assert why == "no threshold was given: reported, not judged"


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


def test_headline_holds_value_interval_threshold_and_n():
    text = headline(
        "mean τ-b",
        value=0.2131,
        interval=interval(0.198, 0.2291),
        requirement=required("at_least", 0.3),
        n=2038,
        n_defined=2026,
    )
    assert text == "mean τ-b 0.213 [0.198, 0.229], required at least 0.300, n=2,026 (12 undefined)"


def test_headline_of_an_undefined_value():
    text = headline("mean τ-b", value=None, interval=None, requirement=required("at_most", 0.3), n=300, n_defined=0)
    assert text == "mean τ-b undefined, required at most 0.300, n=0 (300 undefined)"


def test_headline_rounds_no_bound_onto_the_threshold():
    text = headline(
        "mean TVD",
        value=0.31,
        interval=interval(0.29996, 0.32),
        requirement=required("at_least", 0.3),
        n=50,
        n_defined=50,
    )
    assert text == "mean TVD 0.31000 [0.29996, 0.32000], required at least 0.30000, n=50"


def test_headline_has_no_negative_zero():
    text = headline("x", value=-0.0001, interval=None, requirement=None, n=5, n_defined=5)
    assert text == "x 0.000 [no interval], nothing required, n=5"


def test_message_names_verdict_references_and_worst_instances():
    text = message(
        "first",
        verdict="fail",
        reason="because",
        interval=interval(0, 1),
        undefined={"a single token": 3},
        references=[
            Reference(name="floor", value=0.01, meaning="shuffled"),
            Reference(name="c", value=None, meaning="m"),
        ],
        shown=[(Shown(instance="row-1", value=-0.5), "a «b» c")],
        order="lowest",
        note="take care",
    )
    assert text.splitlines() == [
        "first",
        "fail: because.",
        "interval: 95% confidence, m.",
        "undefined: 3 instances: a single token.",
        "floor: 0.010 (shuffled)",
        "c: undefined (m)",
        "note: take care",
        "lowest instances (most attended token marked):",
        "  row-1  -0.500  a «b» c",
    ]


def test_tokens_are_cut_around_the_most_attended_one_and_hold_no_control_characters():
    tokens = [f"w{i}" for i in range(50)]
    tokens[30] = "bad\x1b[31m\n"
    assert marked(tokens, 30, limit=4) == "… w28 w29 «bad\ufffd[31m\ufffd» w31 …"
    assert marked(["a", "b"], None) == "a b"
    assert marked([], None) == ""


@pytest.mark.parametrize("before", ["", "skewed"])
def test_a_remark_stands_in_the_note_and_once_behind_the_verdict(before):
    text = message(
        "headline",
        verdict="fail",
        reason="r",
        interval=None,
        undefined={},
        references=[],
        shown=[],
        order="lowest",
        note=before,
    )
    found = noted(check_record(note=before, message=text), "more")
    said = "skewed; more" if before else "more"
    assert found.note == said
    assert found.message.split("\n")[:3] == ["headline", "fail: r.", f"note: {said}"]
    assert found.message.count("note:") == 1
