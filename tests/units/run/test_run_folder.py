"""A run is one folder, which several processes write to, and which never says "passed" before everything is written."""

from __future__ import annotations

import itertools
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from attnaudit.engine.measurements import Measurements
from attnaudit.errors import ReportError
from attnaudit.instances import Instance
from attnaudit.records import RunRecord
from attnaudit.report.run_files import read_run
from attnaudit.run.finish_run import RunEnding, begin_run, end_run, write_running
from attnaudit.run.measurements_file import merge_measurements, write_measurements
from attnaudit.run.outcomes import Outcomes
from attnaudit.run.plan import DeclaredGate, Plan, SelectedCase
from attnaudit.run.run_choice import newer_runs, newest_run
from attnaudit.run.run_folder import RunFolder, new_run_name
from attnaudit.run.verification.integrity import read_unedited, require_unedited
from tests.consistent_runs import PASSING
from tests.units.run.whole_runs import CONTEXT, FullDisk, end, plan_of, report_verdict, write_part


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


PAIR = ("release", "reviews")
PASSES = plan_of([PAIR], [PASSING])


def passing_run(folder: RunFolder) -> RunRecord:
    """Do everything that a run with one gate does, which passes."""
    begin_run(folder, CONTEXT)
    folder.write_plan(PASSES, worker="main")
    write_running(folder, CONTEXT, PASSES)
    outcomes = Outcomes()
    write_part(folder, "main", PAIR)
    report_verdict(outcomes, PASSES.selected[0], gated=1)
    return end(folder, outcomes)


def test_the_plans_of_several_workers_are_joined(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run")
    cases = [SelectedCase(test=t, model="m", data="d", check=t) for t in ("b", "a", "c")]
    gates = [DeclaredGate(model="m", data="d", check=t) for t in ("b", "a", "c")]
    folder.write_plan(Plan(selected=cases[:2], gates=gates), worker="gw0")
    folder.write_plan(Plan(selected=cases, gates=gates[:1]), worker="gw1")
    assert folder.read_plan() == Plan(selected=cases, gates=gates)
    assert RunFolder(tmp_path, "another").read_plan() == Plan()


def test_runs_get_names_that_sort_by_time() -> None:
    names = []
    for _ in range(20):
        names.append(new_run_name())
        time.sleep(0.0005)
    assert len(set(names)) == 20
    assert sorted(names) == names
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", name) for name in names)


def test_runs_that_begin_at_the_same_time_get_folders_of_their_own(tmp_path: Path) -> None:
    folders = [RunFolder(tmp_path, "20260105-103000-0001") for _ in range(3)]
    for folder in folders:
        begin_run(folder, CONTEXT)
    assert [folder.name for folder in folders] == [f"20260105-103000-0001{end}" for end in ("", "-2", "-3")]
    assert [read_run(folder.path).run for folder in folders] == [folder.name for folder in folders]
    assert newest_run(tmp_path) == folders[2].path
    later = RunFolder(tmp_path, "20260105-103000-0002")
    begin_run(later, CONTEXT)
    assert newer_runs(folders[2].path, read_run(folders[2].path))[0].startswith(f"{later.name} is a newer run")


def test_a_run_says_that_it_is_running_until_its_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "20260105-103000-0001")
    begin_run(folder, CONTEXT)
    begun = read_run(folder.path)
    assert (begun.status, begun.exit_status, begun.gates, begun.finished) == ("running", None, [], "")
    assert newest_run(tmp_path) == folder.path
    folder.write_plan(PASSES, worker="main")
    write_running(folder, CONTEXT, PASSES)
    running = read_run(folder.path)
    assert running.status == "running"
    assert [(gate.check, gate.state, gate.reason) for gate in running.gates] == [
        (PASSING.id, "open", "the run has not ended")
    ]
    assert running.effective_policy == PASSES.effective_policy
    with pytest.raises(ReportError, match="its status is 'running'"):
        read_unedited(folder.path)


def test_latest_names_a_run_from_its_beginning(tmp_path: Path) -> None:
    old, new = RunFolder(tmp_path, "20260105-103000-0001"), RunFolder(tmp_path, "20260105-103001-0001")
    run = passing_run(old)
    assert newest_run(tmp_path) == old.path
    assert newer_runs(old.path, run) == []
    begin_run(new, CONTEXT)
    assert newest_run(tmp_path) == new.path
    (tmp_path / "latest.txt").write_text(f"{old.name}\n", encoding="utf-8")
    assert "is a newer run" in newer_runs(old.path, run)[0]


def begun(folder: RunFolder, created: str) -> RunRecord:
    begin_run(folder, replace(CONTEXT, created=created))
    return read_run(folder.path)


def test_the_newest_run_is_the_one_that_began_last_whatever_its_name(tmp_path: Path) -> None:
    """The folder of merged shards has a name without a time, and an older run can be resumed."""
    merged, run = RunFolder(tmp_path, "merged"), RunFolder(tmp_path, "20260105-103000-0001")
    of_merged = begun(merged, "2026-01-05T10:00:00+00:00")
    newest = begun(run, "2026-01-05T10:30:00+00:00")
    assert newer_runs(run.path, newest) == []
    assert newer_runs(merged.path, of_merged)[0].startswith(f"{run.name} is a newer run than merged")
    again = begun(RunFolder(tmp_path, "20260105-095900-0001"), "2026-01-05T13:00:00+02:00")  # resumed at 11:00 UTC
    assert newer_runs(tmp_path / again.run, again) == []
    assert newer_runs(run.path, newest)[0].startswith(f"{again.run} is a newer run")


def test_a_run_without_a_readable_record_is_dated_by_its_name(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, "20260105-103000-0001")
    newest = begun(run, "2026-01-05T10:30:00+00:00")
    (tmp_path / "shards" / "parts").mkdir(parents=True)  # merged shards that have not been audited yet
    assert newer_runs(run.path, newest) == []
    killed = tmp_path / "20260105-113000-0001"
    killed.mkdir()
    for content in ("{", '{"created": "yesterday"}', '{"created": "2026-01-05T11:30:00"}'):
        (killed / "audit.json").write_text(content, encoding="utf-8")
        assert newer_runs(run.path, newest)[0].startswith(f"{killed.name} is a newer run")
    (killed / "audit.json").unlink()
    os.mkfifo(killed / "audit.json")
    assert newer_runs(run.path, newest)[0].startswith(f"{killed.name} is a newer run")


def test_a_run_that_ended_is_sealed_and_keeps_no_parts(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "20260105-103000-0001")
    run = passing_run(folder)
    assert (run.status, run.exit_status) == ("passed", 0)
    assert read_unedited(folder.path) == run
    files = {path.name for path in folder.path.iterdir()}
    assert files == {"audit.json", "measurements.parquet", "report.html", "summary.md"}


def test_a_run_that_is_amended_is_sealed_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "20260105-103000-0001")
    run = passing_run(folder)
    ending = RunEnding(status="failed", exit_status=3, gates=run.gates, problem="a plugin failed")
    amended = end_run(folder, run, ending)
    assert amended.digest != run.digest
    assert read_unedited(folder.path) == amended
    assert (amended.status, amended.exit_status, amended.problem) == ("failed", 3, "a plugin failed")
    assert "A plugin failed" in (folder.path / "summary.md").read_text(encoding="utf-8")
    with pytest.raises(ReportError, match="the digest in the file"):
        require_unedited(msgspec.structs.replace(amended, status="passed", exit_status=0), folder.path)


def test_the_error_of_a_folder_that_is_not_writable_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="--audit-reports"):
        begin_run(RunFolder(tmp_path / "file", "run"), CONTEXT)


def test_a_full_disk_at_any_write_leaves_every_file_whole_or_absent_and_no_run_that_passed(tmp_path: Path) -> None:
    for at in itertools.count(1):
        folder = RunFolder(tmp_path / str(at), "20260105-103000-0001")
        disk = FullDisk(at)
        with disk.installed():
            try:
                run = passing_run(folder)
                break
            except ReportError as error:
                message = str(error)
        assert "cannot be written" in message
        assert disk.writes == at
        require_whole(folder)
    assert disk.writes == at - 1 >= 12
    assert run.status == "passed"
    assert read_unedited(folder.path) == run


def require_whole(folder: RunFolder) -> None:
    """Require that whatever another process can find of a run is complete, and does not say that the run passed."""
    files = {path.name for path in folder.path.iterdir()} if folder.path.exists() else set()
    latest = folder.reports / "latest.txt"
    assert not latest.exists() or latest.read_text(encoding="utf-8") == f"{folder.name}\n"
    if "audit.json" in files:
        run = read_run(folder.path)
        assert run.status == "running"
        assert run.exit_status is None
    if "measurements.parquet" in files:
        assert pq.read_table(folder.path / "measurements.parquet").num_rows > 0
    if "report.html" in files:
        assert (folder.path / "report.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
    if "summary.md" in files:
        assert "report.html" in (folder.path / "summary.md").read_text(encoding="utf-8").splitlines()[-1]
    for part in folder.read_parts():
        numbers = folder.path / "parts" / part.numbers
        assert numbers.exists() or "measurements.parquet" in files  # a single part is moved


def test_the_verdicts_are_written_even_if_the_numbers_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnaudit.run.measurements_file.merge_measurements", full)
    folder = RunFolder(tmp_path, "20260105-103000-0001")
    with pytest.raises(ReportError, match="No space left on device"):
        passing_run(folder)
    run = read_run(folder.path)
    assert run.status == "running"
    assert [(record.check, record.verdict) for record in run.checks] == [(PASSING.id, "pass")]
    assert [gate.state for gate in run.gates] == ["passed"]


def test_pages_that_may_say_that_a_run_passed_are_removed_even_if_one_cannot_be(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "20260105-103000-0001")
    passing_run(folder)
    (folder.path / "report.html").unlink()
    (folder.path / "report.html").mkdir()
    with pytest.raises(
        ReportError, match=r"report\.html: cannot be removed \(.*\)\. Remove it, because its content is"
    ):
        folder.remove_pages()
    assert not (folder.path / "summary.md").exists()
    (folder.path / "report.html").rmdir()
    folder.remove_pages()
    (folder.path / "audit.json").unlink()
    (folder.path / "audit.json").mkdir()
    with pytest.raises(ReportError, match=r"audit\.json: cannot be removed"):
        folder.remove_record()
