"""The cost of each check."""

from __future__ import annotations

import pytest

from attnaudit.adapters.loading import load_model
from attnaudit.data import load
from attnaudit.data.sampling import sample
from attnaudit.engine.measuring import measure
from attnaudit.records import MeasureCost
from attnaudit.report.check_costs import check_costs


def cost(name: str, needs: list[str], seconds: float, rows: int) -> MeasureCost:
    return MeasureCost(measure=name, needs=needs, seconds=seconds, passes={"forward_rows": rows})


def test_a_shared_measure_counts_for_every_check_but_saves_nothing() -> None:
    costs = [cost("clean", ["a", "b"], 1.0, 10), cost("a", ["a"], 2.0, 20), cost("b", ["b"], 4.0, 40)]
    found = check_costs({"one": ["a"], "both": ["a", "b"], "none": []}, costs)
    assert [(one.check, one.seconds, one.alone) for one in found] == [
        ("both", 7.0, 4.0),
        ("one", 3.0, 0.0),
        ("none", 0.0, 0.0),
    ]
    assert [one.passes for one in found] == [{"forward_rows": 70}, {"forward_rows": 30}, {}]


def test_the_costs_of_an_audit_are_those_of_its_measures() -> None:
    adapter = load_model("demo").adapter
    dataset = sample(load("movie-reviews"), 12, seed=0)
    _, record = measure(adapter, dataset, ["leave_one_out.inputs", "uniform"], model="demo", seed=0)
    by_name = {one.measure: one for one in record.costs}
    assert by_name["prediction"].needs == by_name["attention"].needs == ["leave_one_out.inputs", "uniform"]
    assert by_name["leave_one_out.inputs"].needs == ["leave_one_out.inputs"]
    totals: dict[str, int] = {}
    for one in record.costs:
        for kind, count in one.passes.items():
            totals[kind] = totals.get(kind, 0) + count
    # Only the rows that run a second time belong to no measure.
    assert totals == record.passes
    assert sum(one.seconds for one in record.costs) == pytest.approx(record.seconds, rel=0.9)
    assert all(one.seconds > 0 for one in record.costs)
