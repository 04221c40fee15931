"""The cost of each check."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from attnaudit.adapters.loading import load_model
from attnaudit.data import load
from attnaudit.data.sampling import sample
from attnaudit.engine.measuring import measure
from attnaudit.records import CheckRecord, MeasureCost, Passes, RowKind, RunRecord
from attnaudit.report import write_pages
from attnaudit.report.check_costs import cost_table, with_check_costs
from attnaudit.report.run_files import read_run
from tests.units.report.example_runs import realistic, run_record


def cost(name: str, needs: list[str], seconds: float, rows: int) -> MeasureCost:
    return MeasureCost(measure=name, needs=needs, seconds=seconds, passes={"forward_rows": rows})


def test_a_shared_measure_counts_for_every_check_but_saves_nothing() -> None:
    costs = [
        cost("clean", ["a", "b"], 1.0, 10),
        cost("a", ["a"], 2.0, 20),
        cost("b", ["b"], 4.0, 40),
        cost("asked by a test", ["c"], 8.0, 80),
    ]
    found = cost_table({"one": ["a"], "both": ["a", "b"], "none": []}, costs)
    assert [(one.check, one.seconds, one.own_seconds) for one in found.checks] == [
        ("both", 7.0, 4.0),
        ("one", 3.0, 0.0),
        ("none", 0.0, 0.0),
    ]
    assert [one.passes.forward for one in found.checks] == [70, 30, 0]
    assert [one.own_passes.forward for one in found.checks] == [40, 0, 0]
    assert [(name, line.seconds, line.passes.forward) for name, line in found.sums] == [
        ("shared by several checks", 3.0, 30),
        ("needed by no check", 8.0, 80),
        ("all together", 15.0, 150),
    ]


def test_every_kind_of_rows_is_a_pass_of_one_kind() -> None:
    kinds = {kind: 10**i for i, kind in enumerate(get_args(RowKind))}
    passes = Passes.of(kinds | {"forward": 10**8, "decode": 10**8})
    assert passes.forward + passes.partial + passes.backward == sum(kinds.values())


def test_trained_models_are_listed_and_are_not_passes() -> None:
    trained = MeasureCost(measure="a", needs=["a"], seconds=1.0, passes={"models_trained": 2, "backward_rows": 3})
    (found,) = cost_table({"one": ["a"]}, [trained]).checks
    assert (found.models_trained, found.passes) == (2, Passes(backward=3))


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


def measured_run(folder: Path, *, counted: bool = True) -> RunRecord:
    """Write a run with costs. Earlier versions did not count all passes."""
    checks = [msgspec.structs.replace(one, needs=["uniform"]) for one in realistic_checks(folder)]
    run = run_record(checks)
    costs = [
        cost("prediction", ["uniform"], 2.0, 1234),
        MeasureCost(measure="uniform", needs=["uniform"], seconds=3.0, passes={"reweighted_rows": 56_789}),
    ]
    old = msgspec.structs.replace(run.measured[0], costs=costs)
    new = with_check_costs(old, run.checks) if counted else old
    return msgspec.structs.replace(run, measured=[new])


def realistic_checks(folder: Path) -> list[CheckRecord]:
    realistic(folder)
    return read_run(folder).checks


def test_the_report_shows_the_passes_and_the_time_of_each_check(tmp_path: Path) -> None:
    run = measured_run(tmp_path)
    write_pages(tmp_path, run)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    table = page[page.index('aria-label="Cost of each check"') :]
    row = '<td class="num">1,234</td><td class="num">56,789</td><td class="num">0</td>'
    # One line for each check, and the lines "shared by several checks" and "all together".
    assert table.count(row) == len(run.checks) + 2
    assert "A pass is one row" in table
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert summary.count("| 1,234 | 56,789 | 0 | 5.0 s |") == len(run.checks) + 2
    (written,) = run.measured
    assert written.check_costs
    for one in written.check_costs:
        assert one.passes == Passes(forward=1234, partial=56_789)


def test_the_report_of_an_earlier_version_shows_only_the_time(tmp_path: Path) -> None:
    write_pages(tmp_path, measured_run(tmp_path, counted=False))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    table = page[page.index('aria-label="Cost of each check"') :]
    assert "5.0 s" in table
    assert "Forward" not in table
    assert "A pass is" not in table
    assert "Forward passes" not in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_a_file_of_an_earlier_version_keeps_its_digest(tmp_path: Path) -> None:
    """The digest hashes the fields of a record. A new field must not change it for files that lack the field."""
    old, new = (msgspec.json.encode(measured_run(tmp_path, counted=counted)) for counted in (False, True))
    assert b"check_costs" in new
    assert b"check_costs" not in old
    read_back = msgspec.json.decode(old, type=RunRecord)
    assert msgspec.json.encode(read_back) == old
