"""The state of the audit in one pytest process: options, cases and outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from attnaudit.plugin.command_line import audit_options
from attnaudit.plugin.progress_display import measuring_progress
from attnaudit.plugin.workers import worker_input

if TYPE_CHECKING:
    from attnaudit.records import PolicyRecord, RunRecord
    from attnaudit.run import AuditOptions, AuditSession, Case, Outcomes, RunFolder
    from attnaudit.run.run_folder import SelectedCase


@dataclass
class MeasurementsRequest:
    """The model and data set of a test that uses the fixture `measurements`. Such a test has no check and no verdict.

    Attributes:
        model: The id of the model.
        data: The id of the data set.
        session: The session that measures.
        needs: The names of the measures that the test needs.
    """

    model: str
    data: str
    session: AuditSession
    needs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<measurements of {self.model} on {self.data}>"


@dataclass
class RunState:
    """The audit of one pytest process.

    Attributes:
        options: The options of the run.
        folder: The folder of the run.
        session: The session that measures and judges.
        outcomes: The outcomes of the cases, in the process that writes the run.
        created: The time when the run began.
        usage_errors: node id -> message, for problems that the user must fix before anything can be measured.
        selected: The cases that this process selected.
        policy: The description of the policy file that the checks come from, if they come from one.
        files_with_checks: The test files that declare checks.
        run_record: The content of audit.json, once it is written.
        failure: Why the run fails for a reason other than a failed test; "" if there is no such reason.
    """

    options: AuditOptions
    folder: RunFolder
    session: AuditSession
    outcomes: Outcomes
    created: str
    usage_errors: dict[str, str] = field(default_factory=dict)
    selected: list[SelectedCase] = field(default_factory=list)
    policy: PolicyRecord | None = None
    files_with_checks: set[Path] = field(default_factory=set)
    run_record: RunRecord | None = None
    failure: str = ""


#: The case of a pytest item.
CASE: pytest.StashKey[Case | MeasurementsRequest] = pytest.StashKey()


def new_state(config: pytest.Config) -> RunState:
    """Start an audit in this process. A worker of xdist joins the run that its controller started."""
    from attnaudit.run import AuditSession, Outcomes, RunFolder, new_run_name
    from attnaudit.run.finish_run import current_time

    options = audit_options(config)
    received = worker_input(config)
    folder = RunFolder(options.reports, received.get("attnaudit_run") or new_run_name())
    session = AuditSession(
        options,
        folder,
        worker=received.get("workerid", "main"),
        workers=int(received.get("workercount", 1)),
        progress=lambda: measuring_progress(config),
    )
    return RunState(options=options, folder=folder, session=session, outcomes=Outcomes(), created=current_time())
