"""The share of the output that the attended tokens keep: its definition, invariances and undefined cases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from tests.units.checks.builtin.test_pointing import with_rows

Row = tuple[float, float]
DISTANCES = st.floats(0.01, 100)


def measurements(rows: Sequence[Row], labels: Sequence[int] | None = None) -> Measurements:
    """Return measurements with these distances (from masked tokens, with only the attended tokens)."""
    m = with_rows([(np.array([0.7, 0.3]), np.array([1.0, 0.0]))] * len(rows), labels=labels)
    m.scalars["attended_tokens.all"] = np.array([row[0] for row in rows])
    m.scalars["attended_tokens.others"] = np.array([row[1] for row in rows])
    m.scalars["attended_tokens.number"] = np.ones(len(rows))
    return m


def value(rows: Sequence[Row], labels: Sequence[int] | None = None, **arguments: str) -> float | None:
    return checks.HeldSufficiency(severity="report", **arguments).judge(measurements(rows, labels)).value  # type: ignore[arg-type]


def test_the_value_is_a_ratio_of_sums() -> None:
    assert value([(2.0, 0.5), (6.0, 1.5)]) == pytest.approx(0.75)
    assert value([(2.0, 2.0)] * 3) == 0.0
    assert value([(2.0, 0.0)] * 3) == 1.0
    assert value([(1.0, 3.0)] * 3) == -2.0, "the attended tokens alone can give the opposite"


def test_classes_have_equal_weight_unless_they_are_as_sampled() -> None:
    rows, labels = [(1.0, 0.0)] * 3 + [(1.0, 1.0)], [0, 0, 0, 1]
    assert value(rows, labels) == pytest.approx(0.5)
    assert value(rows, labels, classes="as_sampled") == pytest.approx(0.75)
    assert checks.HeldSufficiency(classes="as_sampled", at_least=0.1).id == "held_sufficiency.as_sampled"
    with pytest.raises(CheckError, match="classes"):
        checks.HeldSufficiency(classes="equal", at_least=0.1)  # type: ignore[arg-type]


@given(rows=st.lists(st.tuples(DISTANCES, DISTANCES), min_size=2, max_size=20), scale=st.floats(0.01, 100))
def test_the_value_depends_neither_on_the_scale_nor_on_the_order_of_rows(rows: list[Row], scale: float) -> None:
    found = value(rows)
    assert found is not None
    assert value([(scale * a, scale * b) for a, b in rows]) == pytest.approx(found, rel=1e-9, abs=1e-12)
    assert value(rows[::-1]) == pytest.approx(found, rel=1e-9, abs=1e-12)
    assert value([*rows, *rows]) == pytest.approx(found, rel=1e-9, abs=1e-12)
    assert found <= 1.0


def test_the_interval_contains_the_value_and_reaches_a_verdict() -> None:
    generator = np.random.default_rng(0)
    rows = [(one, one * kept) for one, kept in zip(generator.uniform(1, 3, 200), generator.uniform(0, 0.4, 200))]
    record = checks.HeldSufficiency(at_least=0.6).judge(measurements(rows))
    assert record.verdict == "pass"
    assert record.interval is not None
    assert record.interval.low < record.value < record.interval.high  # type: ignore[operator]
    assert "50% of the tokens have 80% of the attention" in record.in_words
    assert checks.HeldSufficiency(at_least=0.95).judge(measurements(rows)).verdict == "fail"


def test_it_is_undefined_without_an_effect_or_with_single_tokens() -> None:
    record = checks.HeldSufficiency(at_least=0.4).judge(measurements([(0.0, 0.0)] * 40))
    assert (record.value, record.verdict) == (None, "undefined")
    assert "masking all tokens changes the output of no text" in record.note
    m = measurements([(np.nan, np.nan)] * 40)
    m.tokens = [["w"]] * 40
    assert "single token" in str(checks.HeldSufficiency(at_least=0.4).judge(m).undefined)
