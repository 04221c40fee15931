"""The parts that several processes write become one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from attnaudit.engine.measurements import Measurements
from attnaudit.errors import ReportError
from attnaudit.instances import Instance
from attnaudit.run.measurements_file import merge_measurements, write_measurements
from attnaudit.run.run_folder import RunFolder, SelectedCase, new_run_name
from tests.units.report.example_runs import run_record


def measured() -> Measurements:
    return Measurements(
        model="m",
        data="d",
        seed=3,
        classes=("no", "yes"),
        instances=[Instance(id="a", text="x y", label="yes"), Instance(id="b", text="z")],
        sources=["row a", "row b"],
        tokens=[["x", "y"], ["z"]],
        labels=np.array([1, -1]),
        predicted=np.array([1, 0]),
        scalars={"size": np.array([0.5, np.nan])},
        vectors={
            "attention": [np.array([0.25, 0.75]), np.array([1.0])],
            "logits": [np.array([1.0, np.nan, 3.0]), np.array([0.0, 0.0, 0.0])],
        },
        per_token={"attention"},
    )


def test_every_number_is_written_and_an_undefined_one_is_null(tmp_path: Path) -> None:
    write_measurements(measured(), tmp_path / "numbers.parquet")
    rows = {(r["measure"], r["instance"]): r for r in pq.read_table(tmp_path / "numbers.parquet").to_pylist()}
    assert len(rows) == 6
    assert rows["size", "a"]["value"] == 0.5
    assert rows["size", "b"]["value"] is None
    assert rows["attention", "a"]["values"] == [0.25, 0.75]
    assert rows["attention", "a"]["tokens"] == ["x", "y"]
    assert rows["logits", "a"]["values"] == [1.0, None, 3.0]
    assert rows["logits", "a"]["tokens"] is None
    assert {key: rows["size", "a"][key] for key in ("model", "data", "seed", "label", "predicted")} == {
        "model": "m",
        "data": "d",
        "seed": 3,
        "label": "yes",
        "predicted": "yes",
    }
    assert rows["size", "b"]["label"] is None


def test_parts_are_merged_into_one_table(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_measurements(measured(), tmp_path / name)
    merge_measurements([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    assert pq.read_table(tmp_path / "both").num_rows == 2 * pq.read_table(tmp_path / "one").num_rows


def test_a_run_that_measured_nothing_has_an_empty_table(tmp_path: Path) -> None:
    merge_measurements([], tmp_path / "none")
    assert pq.read_table(tmp_path / "none").num_rows == 0


def test_cases_that_several_workers_selected_are_read_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run")
    cases = [SelectedCase(test=t, model="m", data="d", check=t) for t in ("b", "a")]
    folder.write_selected(cases, worker="gw0")
    folder.write_selected(cases, worker="gw1")
    assert folder.read_selected() == cases


def test_runs_get_different_names() -> None:
    assert len({new_run_name() for _ in range(20)}) > 1


def test_the_error_of_a_folder_that_is_not_writable_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="--audit-reports"):
        RunFolder(tmp_path / "file", "run").write_selected([], worker="main")


def test_the_verdicts_are_written_even_if_the_numbers_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnaudit.run.measurements_file.merge_measurements", full)
    folder = RunFolder(tmp_path, "run")
    with pytest.raises(ReportError, match="No space left on device"):
        folder.finish(run_record([]), [])
    assert (folder.path / "audit.json").is_file()
