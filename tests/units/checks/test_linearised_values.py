"""The numbers per instance from which the values of two models are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnaudit import checks
from attnaudit.checks.base import Check
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.registry import checks as registry
from tests.units.checks.synthetic_measurements import measured

GATES: list[Check] = [
    checks.TotalEffect(severity="report", on="logits"),
    checks.TotalEffect(severity="report", on="standardised"),
    checks.TotalEffect(severity="report", classes="as_sampled"),
    checks.Pointing(severity="report", on="logits", measure="share"),
    checks.Pointing(severity="report", on="logits", measure="plain"),
    checks.Pointing(severity="report", on="logits"),
    checks.HeldSufficiency(severity="report"),
    checks.Agreement(severity="report"),
    checks.TokenProbability(severity="report"),
]


def chosen(m: Measurements, rows: np.ndarray[Any, Any]) -> Measurements:
    """Return the measurements of some rows, of which one may occur twice."""
    return replace(
        m,
        instances=[m.instances[i] for i in rows],
        sources=[m.sources[i] for i in rows],
        tokens=[m.tokens[i] for i in rows],
        labels=m.labels[rows],
        predicted=m.predicted[rows],
        scalars={name: column[rows] for name, column in m.scalars.items()},
        vectors={name: [column[i] for i in rows] for name, column in m.vectors.items()},
    )


def with_gaps(n: int = 250) -> Measurements:
    m = measured(n)
    for name in ("rearrangement.logits", "rearrangement.probabilities", "pointing.held.logits.cosine"):
        m.scalars[name] = np.where(np.arange(n) < 9, np.nan, m.scalars[name])
    return m


@pytest.mark.parametrize("check", GATES, ids=lambda check: check.id)
def test_they_are_the_value_plus_the_influence_of_each_row(check: Check) -> None:
    m = with_gaps()
    linearised = check.linearised_values(m)
    defined = np.flatnonzero(~np.isnan(linearised))
    value, rows = check.judge(m).value, np.arange(len(m))
    assert np.nanmean(linearised) == pytest.approx(value, abs=1e-12)
    assert len(defined) == check.judge(m).n_defined
    few = defined[:: len(defined) // 4]
    derivatives = []
    for row in few:
        more = check.judge(chosen(m, np.append(rows, row))).value
        less = check.judge(chosen(m, np.delete(rows, row))).value
        assert more is not None
        assert less is not None
        derivatives.append(value + len(defined) * (more - less) / 2)  # type: ignore[operator]
    # With two classes, the distance of an output from the mean has a kink, so the finite difference is less exact.
    tolerance = 0.1 if isinstance(check, checks.HeldSufficiency) else 0.01
    np.testing.assert_allclose(linearised[few], derivatives, atol=tolerance * np.nanstd(linearised))


def test_every_check_either_has_them_or_says_why_not() -> None:
    m = with_gaps()
    refused = {}
    # Other tests register checks of their own.
    built_in = [name for name in registry.names() if registry.get(name).__module__.startswith("attnaudit.checks.")]
    for name in built_in:
        check = registry.get(name)(severity="report")
        if check.not_linearised:
            refused[name] = check.not_linearised
            with pytest.raises(CheckError, match=name):
                check.linearised_values(m)
        else:
            value = check.judge(m).value
            assert np.nanmean(check.linearised_values(m)) == pytest.approx(value, abs=1e-12), name
    assert {"TrainedAdversary", "ParameterRandomisation", "InformationRanking"} <= refused.keys()
    assert "ratio of means" in checks.Sufficiency(severity="report", against="signed_loo").not_linearised
    assert "difference" in checks.UniformFragility(severity="report", measure="f1_drop").not_linearised


def test_an_undefined_value_has_none() -> None:
    m = measured()
    m.scalars["rearrangement.logits"] = np.full(len(m), np.nan)
    m.scalars["pointing.held.logits.cosine"] = np.full(len(m), np.nan)
    for check in GATES:
        if check.id in ("total_effect.logits", "pointing.logits"):
            assert np.isnan(check.linearised_values(m)).all()
