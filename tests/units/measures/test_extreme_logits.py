"""Verdicts do not change if all logits are multiplied by a constant, or if one class gets a very large bias."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.research.validation.changed_adapters import with_logits
from tests.units.measures.test_erasure_against_plain_definitions import centred, measured

#: With two classes, the direction of a change and that of a gradient do not depend on the scale of the logits.
OF_TWO = (
    checks.Polarity(severity="report"),
    checks.Polarity(operator="mask", severity="report"),
    checks.Agreement(severity="report"),
    checks.Agreement(preset="jain_wallace", severity="report"),
)
ALWAYS = (
    checks.Pointing(on="logits", classes="as_sampled", severity="report"),
    checks.Pointing(on="logits", measure="share", classes="as_sampled", severity="report"),
)


def values(classes: int, scale: float = 1.0, bias: list[float] | None = None) -> list[float | None]:
    chosen = ALWAYS if classes > 2 else (*ALWAYS, *OF_TWO)
    needs = sorted({need for check in chosen for need in check.needs()})
    measurements = measured(with_logits(centred(classes), scale=scale, bias=bias), *needs)
    return [check.judge(measurements).value for check in chosen]


@settings(max_examples=6, deadline=None)
@given(classes=st.sampled_from([1, 2, 3]), exponent=st.integers(-10, 14))
def test_a_factor_on_all_logits_changes_nothing(classes: int, exponent: int) -> None:
    assert values(classes, scale=2.0**exponent) == pytest.approx(values(classes), rel=1e-4)


@pytest.mark.parametrize("bias", [-700.0, -1e4])
def test_a_very_large_bias_of_one_class_changes_no_effect_on_the_logits(bias: float) -> None:
    assert values(3, bias=[0.0, bias, 0.0]) == pytest.approx(values(3), abs=5e-3)
