"""The state of the audit in one pytest process: options, cases and outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from attnaudit import __version__
from attnaudit.plugin.command_line import audit_options
from attnaudit.plugin.progress_display import measuring_progress
from attnaudit.plugin.selection import added_options, ci_variable
from attnaudit.plugin.workers import worker_input

if TYPE_CHECKING:
    from attnaudit.checks import Check
    from attnaudit.records import PolicyException, PolicyRecord, PolicyValidation, RunRecord
    from attnaudit.run import AuditOptions, AuditSession, Case, Outcomes, RunFolder
    from attnaudit.run.finish_run import RunContext
    from attnaudit.run.plan import DeclaredGate, GateKey, SelectedCase


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


@dataclass(frozen=True)
class Declaration:
    """The checks that an @audit function or a policy file declares.

    Attributes:
        checks: The checks.
        policy: The description of the policy file that they come from; None if they come from no file.
        exceptions: The gates that may be skipped or expected to fail.
        informational: Whether the policy is declared informational, that is, without a gate.
        validation: The families on which the gates were validated; None if there are no checks.
    """

    checks: tuple[Check, ...]
    policy: PolicyRecord | None = None
    exceptions: tuple[PolicyException, ...] = ()
    informational: bool = False
    validation: PolicyValidation | None = None

    def excepts(self, exception: PolicyException) -> bool:
        """Return whether an exception, which may come from another declaration, applies to this one.

        It applies if this declaration does not have the gate, or has an exception that covers the same models and data.
        """
        if all(check.id != exception.check for check in self.checks):
            return True
        return any(
            own.check == exception.check and own.model in ("", exception.model) and own.data in ("", exception.data)
            for own in self.exceptions
        )


@dataclass
class RunState:
    """The audit of one pytest process.

    Attributes:
        options: The options of the run.
        folder: The folder of the run.
        session: The session that measures and judges.
        outcomes: The outcomes of the cases, in the process that writes the run.
        context: The facts about the run that are known from the start.
        usage_errors: Node id -> message, for problems that the user must fix before anything can be measured.
        declared: (model, data, check) -> the gate. All gates of the policy are included, selected or not.
        declarations: The declaration of each @audit function, or the declaration of the policy file.
        first_declared: The id of a check -> the check that was first declared with this id, and the function.
        conflicts: The id of a check that was declared again with different arguments -> message.
        selected: The cases that this process selected.
        collected_tests: The files of the collected tests of any kind.
        collected_gates: The gates with a case that pytest collected, selected or not.
        deselected: The gates with a case that pytest or an installed plugin reported as deselected.
        files_with_checks: The test files that declare checks.
        test_modules: The test files that were collected, with or without checks -> the module; None if it was not
            imported.
        collected_files: Each test file that pytest imported -> why it skipped itself; "" if it did not.
        collected: The checks of the @audit functions that were collected, one tuple per decorator.
        collected_classes: The classes with collected @audit methods.
        first_failures: The model, the data set and the message of an error that concerns several cases -> the first
            test that failed because of it.
        begun: Whether the folder of the run was created.
        announced: Whether pytest counts a failed test because the run will fail (see `announce_failure`).
        run_record: The content of audit.json, once the run has ended.
        problem: Why the run fails for a reason other than a failed test; "" if there is no such reason.
        plugin_errors: Errors of other plugins, which are raised after the run was written.
    """

    options: AuditOptions
    folder: RunFolder
    session: AuditSession
    outcomes: Outcomes
    context: RunContext
    usage_errors: dict[str, str] = field(default_factory=dict)
    declared: dict[GateKey, DeclaredGate] = field(default_factory=dict)
    declarations: list[Declaration] = field(default_factory=list)
    first_declared: dict[str, tuple[Check, str]] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)
    selected: list[SelectedCase] = field(default_factory=list)
    collected_tests: set[Path] = field(default_factory=set)
    collected_gates: set[GateKey] = field(default_factory=set)
    deselected: set[GateKey] = field(default_factory=set)
    files_with_checks: set[Path] = field(default_factory=set)
    test_modules: dict[Path, ModuleType | None] = field(default_factory=dict)
    collected_files: dict[Path, str] = field(default_factory=dict)
    collected: list[tuple[Check, ...]] = field(default_factory=list)
    collected_classes: list[type] = field(default_factory=list)
    first_failures: dict[tuple[str, str, str], str] = field(default_factory=dict)
    begun: bool = False
    announced: bool = False
    run_record: RunRecord | None = None
    problem: str = ""
    plugin_errors: list[Exception] = field(default_factory=list)

    def as_applied(self, declaration: Declaration) -> Declaration:
        """Return a declaration with --audit-sequential applied: all of its checks are then sequential."""
        from attnaudit.checks.policies.policy import sequential_checks

        return (
            replace(declaration, checks=sequential_checks(declaration.checks))
            if self.options.sequential
            else declaration
        )

    def declare(self, declaration: Declaration, *, test: str = "") -> None:
        """Record a declaration, its gates for every model and data set, and its conflicts with earlier declarations.

        Args:
            declaration: The checks of an @audit function, or of the policy file.
            test: The node id of the function; "" for a policy file that no function applies.

        Raises:
            AuditError: A model or a data set is unknown.
        """
        from attnaudit.run.plan import DeclaredGate

        if declaration not in self.declarations:
            self.declarations.append(declaration)
        for check in declaration.checks:
            first, first_test = self.first_declared.setdefault(check.id, (check, test))
            if first != check:
                self.conflicts[check.id] = (
                    f"{test} and {first_test} have the same check '{check.id}' with different arguments, so one "
                    "verdict would hide the other. Keep one of them."
                )
        for model in self.options.model_items():
            for data in self.options.data_items():
                for check in declaration.checks:
                    if check.severity == "gate":
                        case = f"{test}[{model.id}-{data.id}-{check.id}]" if test else ""
                        gate = DeclaredGate(model=model.id, data=data.id, check=check.id, test=case)
                        if not self.declared.get(gate.key, gate).test or gate.key not in self.declared:
                            self.declared[gate.key] = gate


#: The key of a usage error in the configuration file, which pytest shows itself, also in the controller of xdist.
CONFIGURATION = "configuration"
#: The case of a pytest item.
CASE: pytest.StashKey[Case | MeasurementsRequest] = pytest.StashKey()


def new_state(config: pytest.Config) -> RunState:
    """Start an audit in this process. A worker of xdist joins the run that its controller started."""
    from attnaudit.run import AuditSession, Outcomes, RunFolder, new_run_name
    from attnaudit.run.finish_run import RunContext, current_time

    options = audit_options(config)
    received = worker_input(config)
    if options.resume is not None:
        folder = RunFolder(options.resume.parent, options.resume.name)
    else:
        folder = RunFolder(options.reports, received.get("attnaudit_run") or new_run_name())
    session = AuditSession(
        options,
        folder,
        worker=received.get("workerid", "main"),
        workers=int(received.get("workercount", 1)),
        progress=lambda: measuring_progress(config, lambda: session.unit_names.rows),
    )
    context = RunContext(
        version=__version__,
        created=current_time(),
        command=["pytest", *map(str, config.invocation_params.args)],
        seed=options.seed,
        unit=options.unit,
        added_options=added_options(config),
        ci=bool(ci_variable()),
        allow_partial=bool(config.getoption("--audit-allow-partial")),
    )
    return RunState(options=options, folder=folder, session=session, outcomes=Outcomes(), context=context)
