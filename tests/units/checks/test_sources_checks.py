"""`LinearDatamodellingScore` and `TopKDrop`: the value, the references and the arguments."""

from __future__ import annotations

import numpy as np
import pytest

from attnaudit import checks
from attnaudit.errors import CheckError
from tests.units.checks.synthetic_measurements import measured


@pytest.mark.parametrize(
    ("check", "column", "reference"),
    [
        (checks.LinearDatamodellingScore(at_least="uniform + 0.2"), "datamodel_score.32", "uniform"),
        (checks.TopKDrop(k=2, at_least="random + 0.2"), "top_k_drop.2", "random"),
    ],
)
def test_the_value_is_the_mean_and_the_threshold_follows_the_reference(
    check: checks.Check, column: str, reference: str
) -> None:
    measurements = measured()
    generator = np.random.default_rng(0)
    values = generator.uniform(0.5, 0.9, len(measurements))
    measurements.scalars[column] = values
    varied = generator.uniform(-0.01, 0.01, len(measurements))
    measurements.scalars[f"{column}.{reference}"] = values - 0.4 + varied
    record = check.judge(measurements)
    assert record.value == pytest.approx(values.mean())
    assert record.verdict == "pass"
    measurements.scalars[f"{column}.{reference}"] = values - 0.05 + varied
    assert check.judge(measurements).verdict == "fail"


@pytest.mark.parametrize("make", [lambda: checks.LinearDatamodellingScore(subsets=1), lambda: checks.TopKDrop(k=0)])
def test_invalid_arguments(make: object) -> None:
    with pytest.raises(CheckError, match="expected a whole number from"):
        make()  # type: ignore[operator]
