"""The files of a run, whatever its workers do: every sequence of events ends as a model in plain dictionaries says."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pyarrow.parquet as pq
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from attnaudit.engine.measurements import Measurements
from attnaudit.instances import Instance
from attnaudit.records import MeasureRecord
from attnaudit.run import AuditOptions, Outcomes, RunFolder
from attnaudit.run.finish_run import finish_run
from attnaudit.run.run_folder import SelectedCase
from tests.units.report.example_runs import check_record, run_record

WORKERS = ("gw0", "gw1", "gw2", "gw10")
PAIRS = (("small", "reviews"), ("small", "news"), ("large", "reviews"))
CHECKS = ("use", "order")
CASES = [
    SelectedCase(test=f"t[{model}-{data}-{check}]", model=model, data=data, check=check)
    for model, data in PAIRS
    for check in CHECKS
]
WITHOUT_VERDICT = "ended without a verdict: call check.enforce() in the test"

TEMPLATE = run_record([])
VERDICT = check_record()

workers = st.sampled_from(WORKERS)
pairs = st.sampled_from(PAIRS)
cases = st.sampled_from(CASES)
Event = Callable[["Run"], None]


class WorkerCrash(BaseException):
    """The death of a worker in the middle of a write."""


@dataclass
class Run:
    """The real files and outcomes of one run."""

    reports: Path
    name: str
    outcomes: Outcomes = field(default_factory=Outcomes)

    def folder(self) -> RunFolder:
        """The run folder as another process sees it: no state in memory is shared."""
        return RunFolder(self.reports, self.name)

    def write_part(self, worker: str, pair: tuple[str, str]) -> None:
        model, data = pair
        self.folder().write_part(
            measurements_of(model, data),
            msgspec.structs.replace(TEMPLATE.models[0], name=model),
            msgspec.structs.replace(TEMPLATE.data[0], name=data),
            measure_record(worker, model, data),
            TEMPLATE.environment,
        )

    def finish(self) -> None:
        options = AuditOptions(
            models=("small", "large"),
            data=("reviews", "news"),
            models_base=self.reports,
            data_base=self.reports,
            reports=self.reports,
        )
        folder = self.folder()
        with mock.patch("attnaudit.report.build"):
            finish_run(
                folder,
                self.outcomes,
                options,
                folder.read_selected(),
                version="0.1.0",
                created="2026-01-05T10:30:00+00:00",
                command=["pytest"],
                exit_status=1,
            )

    def audit(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.reports / self.name / "audit.json").read_text(encoding="utf-8"))
        return content

    def numbers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.reports / self.name / "measurements.parquet").to_pylist()
        return rows


@dataclass
class Expected:
    """What the end of the run has to write."""

    selected_by: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    parts: set[tuple[tuple[str, str], str]] = field(default_factory=set)
    values: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)

    def missing(self) -> dict[str, str]:
        """Test -> reason."""
        missing = [case.test for case in CASES if case.test not in self.values]
        fallback = {test: WITHOUT_VERDICT if test in self.called else "not run" for test in missing}
        return {test: self.failures.get(test, fallback[test]) for test in missing}


def measurements_of(model: str, data: str) -> Measurements:
    """Numbers that depend on the model and the data alone, as those of every worker do."""
    value = len(model) + len(data) / 100
    return Measurements(
        model=model,
        data=data,
        seed=0,
        classes=("no", "yes"),
        instances=[Instance(id="a", text="x y", label="yes"), Instance(id="b", text="z")],
        sources=["row a", "row b"],
        tokens=[["x", "y"], ["z"]],
        labels=np.array([1, -1]),
        predicted=np.array([1, 0]),
        scalars={"size": np.array([value, -value])},
    )


def write_selected(run: Run, worker: str) -> None:
    run.folder().write_selected(CASES, worker=worker)


def measure_record(worker: str, model: str, data: str) -> MeasureRecord:
    return MeasureRecord(
        model=model,
        data=data,
        needs=["uniform"],
        seconds=1.0 + WORKERS.index(worker),
        instances=2,
        tokens=3,
        passes={"forward": 1},
        batch_size=2,
        device="cpu",
        worker=worker,
    )


class RunFolderMachine(RuleBasedStateMachine):
    """Workers select, measure, crash and report in any order; runs finish, are abandoned and follow each other."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.started = 0
        self.finished: dict[str, dict[str, Any]] = {}
        self.latest: str | None = None
        self.begin_run()

    def begin_run(self) -> None:
        self.started += 1
        self.run = Run(self.root / "reports", f"run-{self.started}")
        self.expected = Expected()
        self.selections: list[Event] = []
        self.parts: list[Event] = []
        self.reports: dict[str, list[Event]] = {}

    def teardown(self) -> None:
        if hasattr(self, "root"):
            try:
                if self.expected.selected_by:
                    self.finish()
            finally:
                shutil.rmtree(self.root)

    def apply(self, event: Event, log: list[Event]) -> None:
        """Do something, and remember it for the same run with its events in another order."""
        event(self.run)
        log.append(event)

    def is_alive(self, worker: str) -> bool:
        return worker in self.expected.selected_by and worker not in self.expected.dead

    @rule(several=st.lists(workers, min_size=1, unique=True))
    def select(self, several: list[str]) -> None:
        for worker in several:
            if worker not in self.expected.selected_by:
                self.expected.selected_by.add(worker)
                self.apply(partial(write_selected, worker=worker), self.selections)

    @rule(several=st.lists(st.tuples(pairs, workers), min_size=1, unique=True))
    def measure(self, several: list[tuple[tuple[str, str], str]]) -> None:
        for pair, worker in several:
            if self.is_alive(worker) and (pair, worker) not in self.expected.parts:
                self.expected.parts.add((pair, worker))
                self.apply(partial(Run.write_part, worker=worker, pair=pair), self.parts)

    @rule(worker=workers, pair=pairs, case=cases, during=st.sampled_from(["nothing", "numbers", "description"]))
    def crash(self, worker: str, pair: tuple[str, str], case: SelectedCase, during: str) -> None:
        """A worker dies, perhaps while it writes a part; its controller reports the test that it was running."""
        if not self.is_alive(worker):
            return
        self.expected.dead.add(worker)
        if during != "nothing":
            self.apply(partial(die_while_writing, worker=worker, pair=pair, during=during), self.parts)
        reason = f"worker '{worker}' crashed while running '{case.test}'"
        self.report(case, when="???", outcome="failed", reason=reason)
        self.expected.failures[case.test] = reason

    def report(self, case: SelectedCase, *, value: float | None = None, **phase: str) -> None:
        record = None
        if value is not None:
            record = msgspec.to_builtins(
                msgspec.structs.replace(VERDICT, model=case.model, data=case.data, check=case.check, value=value)
            )
            self.expected.values[case.test] = value
        self.apply(
            lambda run: run.outcomes.add(case.test, record=record, **phase), self.reports.setdefault(case.test, [])
        )

    @precondition(lambda self: self.expected.selected_by)
    @rule(several=st.lists(cases, min_size=1, unique=True), value=st.floats(-1, 1), rerun=st.booleans())
    def judge(self, several: list[SelectedCase], value: float, rerun: bool) -> None:
        """Cases report their verdicts, perhaps after a first try that pytest-rerunfailures runs again."""
        for case in several:
            if rerun:
                self.report(case, value=-value, when="call", outcome="rerun", reason="")
            self.report(case, value=value, when="call", outcome="failed", reason="below its threshold")
            self.expected.failures[case.test] = "below its threshold"

    @precondition(lambda self: self.expected.selected_by)
    @rule(case=cases, kind=st.sampled_from(["skipped", "error", "silent"]))
    def report_without_verdict(self, case: SelectedCase, kind: str) -> None:
        if kind == "skipped":
            self.report(case, when="setup", outcome="skipped", reason="no data")
            self.expected.failures[case.test] = "skipped: no data"
        elif kind == "error":
            self.report(case, when="setup", outcome="failed", reason="out of memory")
            self.expected.failures[case.test] = "error in setup: out of memory"
        else:
            self.report(case, when="call", outcome="passed", reason="")
            self.expected.called.add(case.test)

    @precondition(lambda self: self.expected.selected_by)
    @rule()
    def finish(self) -> None:
        self.run.finish()
        audit = self.run.audit()
        judged = [case for case in CASES if case.test in self.expected.values]
        assert [(entry["model"], entry["data"], entry["check"], entry["value"]) for entry in audit["checks"]] == [
            (case.model, case.data, case.check, self.expected.values[case.test]) for case in judged
        ]
        assert {entry["test"]: entry["reason"] for entry in audit["missing"]} == self.expected.missing()
        measured = [pair for pair in PAIRS if any(pair == other for other, _ in self.expected.parts)]
        by_pair_and_worker = sorted(self.expected.parts, key=lambda part: (PAIRS.index(part[0]), part[1]))
        assert [((entry["model"], entry["data"]), entry["worker"]) for entry in audit["measured"]] == by_pair_and_worker
        assert [entry["name"] for entry in audit["models"]] == list(dict.fromkeys(model for model, _ in measured))
        assert [entry["name"] for entry in audit["data"]] == list(dict.fromkeys(data for _, data in measured))
        rows = [((row["model"], row["data"]), row["instance"], row["value"]) for row in self.run.numbers()]
        assert rows == [
            (pair, instance, value)
            for pair in measured
            for instance, value in zip("ab", measurements_of(*pair).scalars["size"], strict=True)
        ]
        self.compare_with_another_order(audit)
        self.finished[self.run.name] = audit
        self.latest = self.run.name
        self.begin_run()

    def compare_with_another_order(self, audit: dict[str, Any]) -> None:
        """The same events, except that other workers and other tests come first, give the same files."""
        with tempfile.TemporaryDirectory() as folder:
            other = Run(Path(folder), self.run.name)
            reports = [event for events in reversed(self.reports.values()) for event in events]
            for event in (*reversed(self.selections), *reports, *reversed(self.parts)):
                event(other)
            other.finish()
            assert {**other.audit(), "finished": ""} == {**audit, "finished": ""}
            assert other.numbers() == self.run.numbers()

    @rule()
    def abandon(self) -> None:
        """The run is killed, and the next one starts."""
        self.begin_run()

    @invariant()
    def selected_cases_are_read_in_the_order_of_collection(self) -> None:
        assert self.run.folder().read_selected() == (CASES if self.expected.selected_by else [])

    @invariant()
    def a_run_in_progress_has_no_verdicts_yet(self) -> None:
        assert not (self.run.reports / self.run.name / "audit.json").exists()

    @invariant()
    def latest_names_the_run_that_finished_last(self) -> None:
        latest = self.run.reports / "latest.txt"
        assert (latest.read_text(encoding="utf-8").strip() if latest.exists() else None) == self.latest

    @invariant()
    def finished_runs_stay_as_they_are_and_keep_no_parts(self) -> None:
        for name, audit in self.finished.items():
            run = Run(self.run.reports, name)
            assert run.audit() == audit
            files = {path.name for path in run.folder().path.iterdir()}
            assert files == {"audit.json", "measurements.parquet"}


def die_while_writing(run: Run, worker: str, pair: tuple[str, str], during: str) -> None:
    """Write half of the numbers, or half of their description, and die."""

    def half_the_numbers(_measurements: Measurements, path: Path) -> None:
        path.write_bytes(b"PAR1")
        raise WorkerCrash

    def half_the_file(path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".{path.name}.1").write_bytes(content[: len(content) // 2])
        raise WorkerCrash

    patch = (
        mock.patch("attnaudit.run.measurements_file.write_measurements", half_the_numbers)
        if during == "numbers"
        else mock.patch("attnaudit.run.run_folder.replace_file", half_the_file)
    )
    try:
        with patch:
            run.write_part(worker, pair)
    except WorkerCrash:
        return
    raise AssertionError("the worker survived")


TestRunFolder = RunFolderMachine.TestCase
TestRunFolder.settings = settings(max_examples=40, stateful_step_count=30)
