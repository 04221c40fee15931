"""The headline, the failure message and the sentences that describe a record."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from attnaudit.records import (
    DetectableChange,
    Histogram,
    Interval,
    Planning,
    RankedInstance,
    Reference,
    Requirement,
    UnitNames,
)
from attnaudit.verdict_text import (
    detected,
    digits,
    failure_message,
    failure_rule,
    headline,
    interval_words,
    planned,
    power_warning,
    reason_in_full,
    reference_name,
    required_words,
    requirement_symbol,
    verdict_sentence,
)
from tests.units.report.example_checks import check_record

INFORMATIONAL = check_record(verdict="informational", severity="report", requirement=None, blocks=False)
WIDER = Interval(low=0.19, high=0.24, confidence=0.9975, method="m")
PLANNING = Planning(instances=790, low=280, high=None, power=0.8)
ONE_OF_20_GATES = {
    "verdict": "inconclusive",
    "gated": 20,
    "fail_interval": Interval(low=0.19, high=0.31, confidence=0.9975, method="m"),
    "planning": PLANNING,
    "n": 120,
    "n_defined": 120,
}


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, confidence=0.95, method="m")


def required(direction: Any, value: float) -> Requirement:
    return Requirement(direction=direction, value=value)


def test_a_headline_holds_value_interval_threshold_and_count() -> None:
    record = check_record(
        value_name="mean τ-b",
        value=0.2131,
        interval=interval(0.198, 0.2291),
        requirement=required("at_least", 0.3),
        n=2038,
        n_defined=2026,
    )
    assert headline(record) == "mean τ-b 0.213 [0.198, 0.229], required at least 0.300, n=2,026 (12 undefined)"


def test_the_headline_of_an_undefined_value() -> None:
    record = check_record(
        value_name="mean τ-b", value=None, interval=None, requirement=required("at_most", 0.3), n=300, n_defined=0
    )
    assert headline(record) == "mean τ-b undefined, required at most 0.300, n=0 (300 undefined)"
    record = msgspec.structs.replace(record, verdict="undefined", undefined={"a single token": 300})
    assert headline(record) == "mean τ-b undefined, required at most 0.300, n=0 (300 undefined: a single token)"
    record = msgspec.structs.replace(record, undefined={"a single token": 10, "no label": 290})
    assert headline(record) == "mean τ-b undefined, required at most 0.300, n=0 (300 undefined, most often: no label)"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"undefined": {"no label": 30}}, "too few: no label"),
        ({"undefined": {"no label": 10, "a single token": 20}}, "too few; the most frequent reason is: a single token"),
        ({"undefined": {"no label": 30}, "verdict": "inconclusive"}, "too few"),
        ({"undefined": {"no label": 5}, "n_defined": 35}, "too few"),
        ({"undefined": {"no label": 30}, "unseen_mixers": ["mixer"]}, "too few"),
        ({"undefined": {}}, "too few"),
    ],
)
def test_the_reason_of_an_undefined_verdict_says_why_instances_have_no_value(
    changes: dict[str, Any], reason: str
) -> None:
    undefined = {"verdict": "undefined", "reason": "too few", "n": 40, "n_defined": 10, **changes}
    assert reason_in_full(check_record(**undefined)) == reason


def test_a_headline_rounds_no_bound_to_the_threshold() -> None:
    record = check_record(
        value_name="mean TVD",
        value=0.31,
        interval=interval(0.29996, 0.32),
        requirement=required("at_least", 0.3),
        n=50,
        n_defined=50,
    )
    assert headline(record) == "mean TVD 0.31000 [0.29996, 0.32000], required at least 0.30000, n=50"


def test_a_headline_has_no_negative_zero() -> None:
    record = check_record(value_name="x", value=-0.0, interval=None, requirement=None, n=5, n_defined=5)
    assert headline(record) == "x 0.000 [no interval], no threshold, n=5"


def test_a_headline_shows_the_digits_of_numbers_near_zero_and_of_short_intervals() -> None:
    tiny = check_record(value_name="x", value=8e-5, interval=interval(6.9e-5, 9.5e-5))
    assert headline(tiny).startswith("x 8.0e-05 [6.9e-05, 9.5e-05], required at least 0.300,")
    short = check_record(value_name="x", value=0.03121, interval=interval(0.0312, 0.0313))
    assert headline(short).startswith("x 0.0312 [0.0312, 0.0313],")


def test_a_failure_message_names_reason_references_and_worst_instances() -> None:
    record = check_record(
        value_name="x",
        value=0.5,
        interval=interval(0, 1),
        requirement=required("at_least", 2),
        n=3,
        n_defined=3,
        reason="because",
        undefined={"a single token": 3, "no label": 1},
        references=[
            Reference(name="shuffled", value=0.01, meaning="shuffled attention"),
            Reference(name="c", value=None, meaning="m"),
        ],
        worst=[RankedInstance(instance=f"row-{i}\x1b", value=i - 0.5, tokens="a «b» c") for i in range(5)],
        worst_first="lowest",
        distribution=Histogram(edges=[0.0, 1.0], counts=[5], label="τ-b per instance"),
        note="take care",
    )
    assert failure_message(record).splitlines() == [
        headline(record),
        "fail: because.",
        "note: take care.",
        "[0.000, 1.000] is the 95% interval (m).",
        "3 instances have no value: a single token.",
        "1 instance has no value: no label.",
        "shuffled: 0.010 (shuffled attention)",
        "c: undefined (m)",
        "Instances with the lowest values of “τ-b per instance”; «» marks the most attended token:",
        "  row-0␛  -0.500  a «b» c",
        "  row-1␛  0.500  a «b» c",
        "  row-2␛  1.500  a «b» c",
    ]


def test_references_are_named_in_words_unless_the_threshold_refers_to_them() -> None:
    reference = Reference(name="another_text", value=1.0, meaning="another text")
    bags = check_record(unit_names=UnitNames(unit="vector", row="bag"), references=[reference])
    assert reference_name(bags, reference) == "another bag"
    assert "another bag: 1.000 (another text)" in failure_message(bags).splitlines()
    assert reference_name(check_record(), reference) == "another text"
    for expression, name in (("0.2 * another_text", "another_text"), ("another_text_of + 1", "another bag")):
        named = Requirement(direction="at_least", value=0.2, expression=expression)
        assert reference_name(msgspec.structs.replace(bags, requirement=named), reference) == name


def test_a_failure_message_states_when_a_check_fails_and_how_many_instances_decide_it() -> None:
    lines = failure_message(check_record(**ONE_OF_20_GATES)).splitlines()
    assert "About 790 instances would probably decide it (at least 280, without an upper limit)." in lines
    assert (
        "The check fails only if its whole 99.75% interval, [0.190, 0.310], is below 0.300. This interval is wider "
        "than the 95% interval, because 20 checks can block this release." in lines
    )


def test_the_only_gate_of_a_policy_needs_no_failure_rule() -> None:
    record = check_record()
    assert failure_rule(record) == failure_rule(check_record(fail_interval=record.interval)) == ""


def test_the_first_line_shows_the_wider_interval_only_if_it_alone_keeps_a_case_undecided() -> None:
    wider = Interval(low=0.19, high=0.31, confidence=0.9975, method="m")
    undecided = check_record(verdict="inconclusive", interval=interval(0.199, 0.226), fail_interval=wider)
    assert "[0.199, 0.226] (99.75% [0.190, 0.310]), required at least 0.300" in headline(undecided)
    assert "99.75%" not in headline(check_record(interval=interval(0.199, 0.31), fail_interval=wider))
    assert "99.75%" not in headline(msgspec.structs.replace(undecided, verdict="fail"))


def test_an_interval_bound_is_never_rounded_to_the_threshold() -> None:
    record = check_record(value=0.29996, interval=interval(0.29993, 0.29998))
    assert interval_words(record) == "0.29993 to 0.29998"
    assert digits(record) == 5


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"reason": "the whole 95% interval is below the required value"},
            "The whole 95% interval is below the required value: the 95% interval runs from 0.199 to 0.226, "
            "and the check requires at least 0.30.",
        ),
        (
            {
                "verdict": "fail",
                "fail_interval": WIDER,
                "reason": "the whole 99.75% interval is below the required value",
            },
            "The whole 99.75% interval is below the required value: the 95% interval runs from 0.199 to 0.226, "
            "the 99.75% interval from 0.190 to 0.240, and the check requires at least 0.30.",
        ),
        (
            {"verdict": "undefined", "value": None, "reason": "only 5 of 2,026 instances have a value"},
            "Only 5 of 2,026 instances have a value.",
        ),
        (
            {"requirement": None, "reason": "there is no threshold, so the value is reported but not judged"},
            "There is no threshold, so the value is reported but not judged.",
        ),
        (
            {"verdict": "inconclusive", "interval": None, "reason": "there are too few sources"},
            "There are too few sources; the check requires at least 0.30.",
        ),
        (
            {**ONE_OF_20_GATES, "reason": "a check fails only if its whole 99.75% interval is below"},
            "A check fails only if its whole 99.75% interval is below: the 95% interval runs from 0.199 to 0.226, "
            "the 99.75% interval from 0.190 to 0.310, and the check requires at least 0.30.",
        ),
    ],
)
def test_the_verdict_sentence_gives_the_reason_the_interval_and_the_threshold(
    changes: dict[str, Any], sentence: str
) -> None:
    assert verdict_sentence(check_record(**changes)) == sentence


TOO_CLOSE = "The value is too close to the threshold to estimate how many instances would decide it"


@pytest.mark.parametrize(
    ("audited", "instances", "low", "high", "sentence"),
    [
        (120, 790, 280, None, "About 790 instances would probably decide it (at least 280, without an upper limit)."),
        (120, 791, 281, 7401, "About 800 instances would probably decide it (290 to 7,500)."),
        (120, 791, 120, 7401, "About 800 instances would probably decide it (up to 7,500)."),
        (120, 791, 120, None, "About 800 instances would probably decide it (without an upper limit)."),
        (60, 60, 60, 97, "Slightly more than the 60 audited instances would probably decide it (up to 97)."),
        (1100, 1100, 1100, 1100, "Slightly more than the 1,100 audited instances would probably decide it."),
        (60, 60, 60, None, "Slightly more than the 60 audited instances would probably decide it, or many more."),
        (20, 30, 30, 30, "30 instances would probably decide it."),
        (120, None, None, None, f"{TOO_CLOSE}."),
        (20, None, 41, None, f"{TOO_CLOSE}, but at least 41."),
        (60, None, 60, None, f"{TOO_CLOSE}."),
    ],
)
def test_how_many_instances_would_decide_an_inconclusive_case(
    audited: int, instances: int | None, low: int | None, high: int | None, sentence: str
) -> None:
    planning = Planning(instances=instances, low=low, high=high, power=0.8)
    assert planned(check_record(verdict="inconclusive", planning=planning, n=audited, n_defined=audited)) == sentence


@pytest.mark.parametrize(
    ("value", "expression", "shown"),
    [
        (0.3, None, "required at least 0.300,"),
        (0.0345, None, "required at least 0.0345,"),
        (1e-9, None, "required at least 1e-09,"),
        (-0.0001, None, "required at least -0.0001,"),
        (0.03456789, "floor + 0.02", "required at least 0.035 (floor + 0.02)"),
    ],
)
def test_a_threshold_is_not_rounded_to_another_one(value: float, expression: str | None, shown: str) -> None:
    limit = Requirement(direction="at_least", value=value, expression=expression)
    assert shown in headline(check_record(requirement=limit))


def test_a_decided_case_has_no_plan() -> None:
    assert planned(check_record()) == ""


def test_a_relative_threshold_is_shown_with_its_mean() -> None:
    relative = Requirement(direction="at_least", value=0.2006, expression="floor + 0.2")
    assert requirement_symbol(relative) == "≥ 0.201 (floor + 0.2)"
    assert required_words(relative) == "at least 0.201 (floor + 0.2)"
    assert requirement_symbol(Requirement(direction="at_most", value=0.8)) == "≤ 0.80"
    assert "at least 0.201 (floor + 0.2)" in verdict_sentence(check_record(requirement=relative, verdict="pass"))


@pytest.mark.parametrize(
    ("confidence", "level"),
    [(0.95, "95%"), (0.5, "50%"), (0.9, "90%"), (1 - 0.05 / 6, "99.17%"), (0.9975, "99.75%"), (1 - 1e-4, "99.99%")],
)
def test_a_confidence_level_is_never_rounded_to_100_percent(confidence: float, level: str) -> None:
    assert Interval(low=0, high=1, confidence=confidence, method="").level == level


CHANGE = DetectableChange(to_pass=0.0123, to_fail=0.151, power=0.8)
WIDE = {"interval": Interval(low=0.1, high=0.25, confidence=0.95, method="m")}


def test_the_detectable_change_is_given_on_both_sides_of_the_threshold() -> None:
    lower = check_record(requirement=required("at_least", 0.3), detectable_change=CHANGE, **WIDE)
    assert detected(lower) == (
        "With 80% probability, the check fails if the true value is at least 0.15 below the threshold, and passes if "
        "the true value is at least 0.012 above the threshold."
    )
    upper = check_record(requirement=required("at_most", 0.3), detectable_change=CHANGE, **WIDE)
    assert detected(upper) == (
        "With 80% probability, the check fails if the true value is at least 0.15 above the threshold, and passes if "
        "the true value is at least 0.012 below the threshold."
    )


def test_a_change_far_larger_than_the_interval_is_one_near_the_threshold() -> None:
    near = "These distances apply to true values near the threshold, where the texts differ more from each other than "
    short = check_record(value=8e-5, interval=interval(6.9e-5, 9.5e-5), detectable_change=CHANGE)
    assert detected(short).endswith(f"above the threshold. {near}in this sample.")
    assert near not in detected(msgspec.structs.replace(short, interval=interval(0.0, 0.08)))
    assert near not in detected(msgspec.structs.replace(short, interval=None))
    impossible = DetectableChange(to_pass=None, to_fail=None, power=0.8)
    assert detected(msgspec.structs.replace(short, detectable_change=impossible)) == ""


def test_a_distance_of_zero_is_left_out() -> None:
    change = DetectableChange(to_pass=0.0, to_fail=2.6e-18, power=0.8)
    assert detected(check_record(value=0.5, interval=interval(0.5, 0.5), detectable_change=change)) == ""


def test_an_impossible_side_is_left_out_and_the_warning_is_added() -> None:
    change = DetectableChange(to_pass=None, to_fail=0.2, power=0.8, warning="even the largest value would pass rarely")
    assert detected(check_record(verdict="inconclusive", detectable_change=change, **WIDE)) == (
        "With 80% probability, the check fails if the true value is at least 0.20 below the threshold. Audit more "
        "texts: even the largest value would pass rarely."
    )
    assert detected(check_record()) == ""


def test_only_an_undecided_gate_gets_the_change_and_the_advice_to_audit_more_texts() -> None:
    warned = DetectableChange(to_pass=0.1, to_fail=0.2, power=0.8, warning="the margin is too small")
    inconclusive = failure_message(check_record(verdict="inconclusive", detectable_change=warned)).splitlines()
    assert any(line.startswith("With 80% probability, the check fails if") for line in inconclusive)
    assert any(line.endswith("Audit more texts: the margin is too small.") for line in inconclusive)
    failed = failure_message(check_record(verdict="fail", detectable_change=warned))
    assert "Audit more texts" not in failed
    assert "With 80%" not in failed
    assert power_warning(check_record(verdict="pass", detectable_change=warned)) == ""
