"""Margins in standard errors, and the outcome of several gates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.research.validation.scoring import Gate, bound, margin, oriented, score
from tests.strategies import directions
from tests.units.research.validation.synthetic_scores import judged, record

USED = Gate(check="use", question="used", direction="at_least", threshold=0.3)
POINTS = Gate(check="point", question="points", direction="at_most", threshold=0.5)


@given(value=st.floats(0, 1), reach=st.floats(0.01, 0.4), direction=directions)
def test_a_margin_of_the_normal_quantile_is_exactly_a_pass(value: float, reach: float, direction: str) -> None:
    gate = Gate(check="c", question="used", direction=direction, threshold=0.4)  # type: ignore[arg-type]
    found = margin(record("c", value, reach=reach), gate)
    clear = value - reach - 0.4 if direction == "at_least" else 0.4 - value - reach
    if abs(clear) > 1e-9:
        assert (found.verdict == "pass") == (found.margin > 1.959964) == (clear > 0)


def test_a_margin_counts_standard_errors() -> None:
    found = margin(record("use", 0.5, reach=1.959964 * 0.02), USED)
    assert found.margin == pytest.approx(10.0)


@pytest.mark.parametrize("bad", [None, record("use", None), record("use", 0.9, n_defined=79)])
def test_undefined_is_below_everything_and_raises_an_alarm(bad: object) -> None:
    found = margin(bad, USED)  # type: ignore[arg-type]
    assert (found.margin, found.verdict) == (-math.inf, "undefined")
    assert oriented(bad, "at_least") == bound(bad, "at_most") == -math.inf  # type: ignore[arg-type]


def test_the_score_is_the_smallest_margin_and_names_the_question_that_failed() -> None:
    found = score(judged("k", "faithful", {"use": 0.9, "point": 0.52}), [USED, POINTS])
    assert found.score == pytest.approx(-0.02 / (0.05 / 1.959964))
    assert found.alarm
    assert found.failed == {"point": "inconclusive"}
    assert found.questions == ["points"]


def test_a_model_that_clears_every_gate_raises_no_alarm() -> None:
    found = score(judged("k", "unfaithful", {"use": 0.9, "point": 0.2}), [USED, POINTS])
    assert (found.alarm, found.failed, found.questions) == (False, {}, [])


def test_the_bound_is_the_end_of_the_interval_next_to_the_threshold() -> None:
    assert bound(record("c", 0.5), "at_least") == pytest.approx(0.45)
    assert bound(record("c", 0.5), "at_most") == pytest.approx(-0.55)
