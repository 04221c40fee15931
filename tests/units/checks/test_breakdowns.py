"""The value of a gate in parts of the data: the parts cover all instances with a value, and agree with the whole."""

from __future__ import annotations

import numpy as np
import pytest

from attnaudit.checks import Conicity
from attnaudit.checks.breakdowns import breakdowns
from attnaudit.engine.measurements import Measurements
from attnaudit.instances import Instance
from attnaudit.records import Breakdown


def measurements(n: int = 200, classes: int = 2) -> Measurements:
    generator = np.random.default_rng(n + classes)
    probabilities = generator.dirichlet(np.full(classes, 2 / classes), n)
    return Measurements(
        model="m",
        data="d",
        seed=0,
        classes=tuple(f"class {i}" for i in range(classes)),
        instances=[Instance(id=f"{i:04d}", text="t") for i in range(n)],
        sources=[f"{i}" for i in range(n)],
        tokens=[["t"] * length for length in generator.integers(1, 40, n)],
        labels=generator.integers(-1, classes, n),
        predicted=probabilities.argmax(1),
        scalars={
            "conicity": np.where(generator.random(n) < 0.05, np.nan, generator.random(n)),
            "conicity.orthogonal": np.zeros(n),
            "attention.max": np.ones(n),
        },
        vectors={"probabilities": list(probabilities)},
    )


@pytest.mark.parametrize("classes", [2, 3, 20])
def test_the_parts_of_a_breakdown_add_up_to_the_whole(classes: int) -> None:
    measured = measurements(classes=classes)
    values = measured.scalar("conicity")
    defined = ~np.isnan(values)
    found = {one.by: one for one in breakdowns(measured, defined, lambda part: float(values[part].mean()))}
    assert set(found) == {"confidence", "length", "predicted class", "label"}
    for kind, one in found.items():
        covered = defined & (measured.labels >= 0) if kind == "label" else defined
        assert sum(part.n for part in one.parts) == covered.sum()
        mean = sum(part.n * (part.value or 0.0) for part in one.parts) / covered.sum()
        assert mean == pytest.approx(values[covered].mean())
    assert len(found["label"].parts) == min(classes, 9)


def test_only_gates_have_breakdowns() -> None:
    gate = Conicity(at_most=0.9).judge(measurements())
    assert [one.by for one in gate.breakdowns] == ["confidence", "length", "predicted class", "label"]
    assert isinstance(gate.breakdowns[0], Breakdown)
    informational = Conicity(severity="report").judge(measurements())
    assert (informational.verdict, informational.breakdowns) == ("informational", [])


def test_typical_instances_have_about_the_median_value() -> None:
    measured = measurements()
    record = Conicity(at_most=0.9).judge(measured)
    median = np.nanmedian(measured.scalar("conicity"))
    assert record.typical_of == "instances with about the median value"
    assert len(record.typical) == 5
    assert all(abs(one.value - median) < 0.05 for one in record.typical)
