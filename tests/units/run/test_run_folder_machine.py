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
import pyarrow.parquet as pq
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from attnaudit.engine.measurements import Measurements
from attnaudit.errors import ReportError
from attnaudit.report.run_files import read_run
from attnaudit.run.finish_run import begin_run, write_running
from attnaudit.run.outcomes import WITHOUT_VERDICT, Outcomes
from attnaudit.run.plan import Plan, SelectedCase
from attnaudit.run.run_choice import newest_run
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.verification.integrity import require_unedited
from tests.consistent_runs import FAILING
from tests.units.run.whole_runs import CONTEXT, FullDisk, Pair, end, judged, plan_of, write_part

WORKERS = ("gw0", "gw1", "gw2", "gw10")
PAIRS = (("small", "reviews"), ("small", "news"), ("large", "reviews"), ("large", "news"))
PLAN = plan_of(PAIRS)
CASES = PLAN.selected

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

    def finish(self, *, full_at: int = 0) -> FullDisk:
        """End the run without its pages, on a disk that is full at one write."""
        disk = FullDisk(full_at)
        with mock.patch("attnaudit.report.write_pages"), disk.installed():
            end(self.folder(), self.outcomes)
        return disk

    def audit(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.reports / self.name / "audit.json").read_text(encoding="utf-8"))
        return content

    def numbers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.reports / self.name / "measurements.parquet").to_pylist()
        return rows


@dataclass
class Expected:
    """What the end of the run has to write."""

    planned_by: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    parts: set[tuple[Pair, str]] = field(default_factory=set)
    judged: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    again: list[tuple[str, str]] = field(default_factory=list)

    def missing(self) -> dict[str, str]:
        """Test -> reason."""
        return {case.test: self.reasons.get(case.test, "not run") for case in CASES if case.test not in self.judged}


class RunFolderMachine(RuleBasedStateMachine):
    """Workers plan, measure, crash and report in any order; runs finish, are abandoned and follow each other."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.started = 0
        self.finished: dict[str, dict[str, Any]] = {}
        self.begin_run()

    def begin_run(self) -> None:
        self.started += 1
        self.run = Run(self.root / "reports", f"run-{self.started}")
        self.expected = Expected()
        self.plans: list[Event] = []
        self.parts: list[Event] = []
        self.reports: dict[str, list[Event]] = {}
        begin_run(self.run.folder(), CONTEXT)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            try:
                if self.expected.planned_by:
                    self.finish()
            finally:
                shutil.rmtree(self.root)

    def apply(self, event: Event, log: list[Event]) -> None:
        """Do something, and remember it for the same run with its events in another order."""
        event(self.run)
        log.append(event)

    def is_alive(self, worker: str) -> bool:
        return worker in self.expected.planned_by and worker not in self.expected.dead

    @rule(several=st.lists(workers, min_size=1, unique=True))
    def plan(self, several: list[str]) -> None:
        for worker in several:
            if worker not in self.expected.planned_by:
                self.expected.planned_by.add(worker)
                self.apply(partial(write_plan, worker=worker), self.plans)

    @precondition(lambda self: self.expected.planned_by)
    @rule()
    def write_running(self) -> None:
        """The controller lists the gates."""
        folder = self.run.folder()
        write_running(folder, CONTEXT, folder.read_plan())
        assert len(self.run.audit()["gates"]) == len(CASES)

    @rule(several=st.lists(st.tuples(pairs, workers), min_size=1, unique=True))
    def measure(self, several: list[tuple[Pair, str]]) -> None:
        for pair, worker in several:
            if self.is_alive(worker) and (pair, worker) not in self.expected.parts:
                self.expected.parts.add((pair, worker))
                self.apply(partial(measure, worker=worker, pair=pair), self.parts)

    @rule(worker=workers, pair=pairs, case=cases, during=st.sampled_from(["nothing", "numbers", "description"]))
    def crash(self, worker: str, pair: Pair, case: SelectedCase, during: str) -> None:
        """A worker dies, perhaps while it writes a part; its controller reports the test that it was running."""
        if not self.is_alive(worker):
            return
        self.expected.dead.add(worker)
        if during != "nothing":
            self.apply(partial(die_while_writing, worker=worker, pair=pair, during=during), self.parts)
        if self.start(case):
            reason = f"worker '{worker}' crashed while running '{case.test}'"
            self.report(case, when="???", outcome="failed", reason=reason)

    def start(self, case: SelectedCase) -> bool:
        """Begin a test, unless it has ended in a way after which nothing runs it again."""
        expected = self.expected
        if case.test in expected.reasons and case.test not in expected.failed:
            return False
        if case.test in expected.failed:
            expected.again.append((case.test, expected.reasons.pop(case.test)))
            expected.failed.discard(case.test)
        self.send(case, when="setup", outcome="passed", reason="")
        return True

    def send(self, case: SelectedCase, *, record: dict[str, Any] | None = None, **phase: str) -> None:
        self.apply(
            lambda run: run.outcomes.add(case.test, record=record, **phase), self.reports.setdefault(case.test, [])
        )

    def report(self, case: SelectedCase, *, record: dict[str, Any] | None = None, **phase: str) -> None:
        """Report the end of a test."""
        self.send(case, record=record, **phase)
        self.expected.reasons[case.test] = phase["reason"]
        if phase["outcome"] == "failed":
            self.expected.failed.add(case.test)

    @precondition(lambda self: self.expected.planned_by)
    @rule(several=st.lists(cases, min_size=1, unique=True), again=st.booleans(), forged=st.booleans())
    def judge(self, several: list[SelectedCase], again: bool, forged: bool) -> None:
        """Cases report their verdicts, perhaps after a first try. A verdict that blocks is followed by one that passes.

        Args:
            several: The cases.
            again: Whether the first try is followed by a second one.
            forged: Whether a verdict that passes follows the true one.
        """
        for case in several:
            if not self.start(case):
                continue
            record = judged((case.model, case.data), case.check)
            content = msgspec.to_builtins(record)
            self.expected.judged.add(case.test)
            if again:
                self.send(case, record=content, when="call", outcome="rerun", reason="first try")
                self.expected.again.append((case.test, "first try"))
                self.start(case)
            outcome = "failed" if record.blocks else "passed"
            self.report(case, record=content, when="call", outcome=outcome, reason=f"it {outcome}")
            if forged:
                better = {**content, "verdict": "pass", "blocks": False, "value": 0.0}
                self.send(case, record=better, when="teardown", outcome="passed", reason="")

    @precondition(lambda self: self.expected.planned_by)
    @rule(case=cases, kind=st.sampled_from(["skipped", "error", "silent"]))
    def report_without_verdict(self, case: SelectedCase, kind: str) -> None:
        if not self.start(case):
            return
        if kind == "skipped":
            self.report(case, when="setup", outcome="skipped", reason="skipped: no data")
        elif kind == "error":
            self.report(case, when="setup", outcome="failed", reason="out of memory")
            self.expected.reasons[case.test] = "error in setup: out of memory"
        else:
            self.report(case, when="call", outcome="passed", reason="")
            self.expected.reasons[case.test] = WITHOUT_VERDICT

    @precondition(lambda self: self.expected.planned_by)
    @rule()
    def finish(self) -> None:
        self.run.finish()
        audit = self.run.audit()
        whole = [case for case in CASES if case.test in self.expected.judged]
        assert [(entry["model"], entry["data"], entry["check"], entry["verdict"]) for entry in audit["checks"]] == [
            (case.model, case.data, case.check, "fail" if case.check == FAILING.id else "pass") for case in whole
        ]
        assert {entry["test"]: entry["reason"] for entry in audit["missing"]} == self.expected.missing()
        earlier = [(entry["test"], entry["reason"]) for entry in audit["earlier_failures"]]
        assert earlier == self.expected.again
        measured = [pair for pair in PAIRS if any(pair == other for other, _ in self.expected.parts)]
        by_pair_and_worker = sorted(self.expected.parts, key=lambda part: (PAIRS.index(part[0]), part[1]))
        assert [((entry["model"], entry["data"]), entry["worker"]) for entry in audit["measured"]] == by_pair_and_worker
        assert [entry["name"] for entry in audit["models"]] == list(dict.fromkeys(model for model, _ in measured))
        assert [entry["name"] for entry in audit["data"]] == list(dict.fromkeys(data for _, data in measured))
        rows = [(row["model"], row["data"]) for row in self.run.numbers()]
        assert list(dict.fromkeys(rows)) == measured
        assert (audit["status"], audit["exit_status"]) == ("failed", 1)
        self.require_sealed(whole, measured)
        self.compare_with_another_order(audit)
        self.finished[self.run.name] = audit
        self.begin_run()

    def require_sealed(self, whole: list[SelectedCase], measured: list[Pair]) -> None:
        """A record that is what was measured is accepted as it was written."""
        folder = self.run.folder().path
        if all((case.model, case.data) in measured for case in whole):
            require_unedited(read_run(folder), folder)

    def compare_with_another_order(self, audit: dict[str, Any]) -> None:
        """The same events, except that other workers and other tests come first, give the same files."""
        with tempfile.TemporaryDirectory() as folder:
            other = Run(Path(folder), self.run.name)
            begin_run(other.folder(), CONTEXT)
            reports = [event for events in reversed(self.reports.values()) for event in events]
            for event in (*reversed(self.plans), *reports, *reversed(self.parts)):
                event(other)
            other.finish()
            assert comparable(other.audit()) == comparable(audit)
            assert other.numbers() == self.run.numbers()

    @precondition(lambda self: self.expected.planned_by)
    @rule(at=st.integers(1, 3))
    def fill_the_disk(self, at: int) -> None:
        """The disk is full at one of the writes that end a run: that of the verdicts, the numbers or the end."""
        try:
            disk = self.run.finish(full_at=at)
        except ReportError:
            assert self.run.audit()["status"] == "running"
        else:
            assert disk.writes < at
            assert self.run.audit()["status"] == "failed"
        self.begin_run()

    @rule()
    def abandon(self) -> None:
        """The run is killed, and the next one starts."""
        self.begin_run()

    @invariant()
    def planned_cases_are_read_in_the_order_of_collection(self) -> None:
        assert self.run.folder().read_plan() == (PLAN if self.expected.planned_by else Plan())

    @invariant()
    def a_run_in_progress_has_no_verdicts_and_is_the_newest(self) -> None:
        audit = self.run.audit()
        assert (audit["status"], audit["exit_status"], audit["checks"]) == ("running", None, [])
        assert newest_run(self.run.reports).name == self.run.name

    @invariant()
    def finished_runs_stay_as_they_are_and_keep_no_parts(self) -> None:
        for name, audit in self.finished.items():
            run = Run(self.run.reports, name)
            assert run.audit() == audit
            files = {path.name for path in run.folder().path.iterdir()}
            assert files == {"audit.json", "measurements.parquet"}


def write_plan(run: Run, worker: str) -> None:
    run.folder().write_plan(PLAN, worker=worker)


def measure(run: Run, worker: str, pair: Pair) -> None:
    write_part(run.folder(), worker, pair)


def comparable(audit: dict[str, Any]) -> dict[str, Any]:
    """Drop what differs between equal runs: the time, and the order in which tests failed."""
    earlier = sorted(audit["earlier_failures"], key=lambda entry: entry["test"])
    return {**audit, "finished": "", "digest": "", "measurements_sha256": "", "earlier_failures": earlier}


def die_while_writing(run: Run, worker: str, pair: Pair, during: str) -> None:
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
            measure(run, worker, pair)
    except WorkerCrash:
        return
    raise AssertionError("the worker survived")


TestRunFolder = RunFolderMachine.TestCase
TestRunFolder.settings = settings(max_examples=8, stateful_step_count=20)
