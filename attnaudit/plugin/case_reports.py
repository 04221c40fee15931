"""Add the verdict of a case to its pytest report. The report carries it to the process that writes the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from attnaudit.errors import AuditError, DataError, ModelError
from attnaudit.formatting import one_line, terminal_safe
from attnaudit.plugin.clean_reports import failure_without_traceback
from attnaudit.plugin.displayed_paths import display_paths
from attnaudit.plugin.state import CASE, MeasurementsRequest, RunState

if TYPE_CHECKING:
    from attnaudit.records import CheckRecord
    from attnaudit.run.plan import DeclaredGate

#: The largest number of characters of a reason in a list of failed tests.
LONGEST_REASON = 200


def complete_report(item: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport, state: RunState) -> None:
    """Add the verdict of a case to its report, and show a failure as the message of its exception, without a traceback.

    The verdict consists of built-in types, which xdist can send to another process.

    If a model cannot be loaded, or data cannot be read, the first case that needs them fails. This failure names all
    gates that cannot be judged for this reason. The other cases are skipped, so that the reason is shown once.
    """
    case = item.stash.get(CASE, None)
    if case is None:
        return
    import msgspec

    from attnaudit.checks import CheckFailed

    record = None
    if not isinstance(case, MeasurementsRequest):
        record = case.session.record(case.check, case.model, case.data)
        if record is not None and call.when == "call":  # JUnit lists the properties of passed tests, too
            remark = case.session.validation_remark(case.check.id, case.model)
            # An earlier attempt at this test may have added properties of the audit. They are replaced.
            others = [pair for pair in item.user_properties if not pair[0].startswith("attnaudit")]
            item.user_properties[:] = [*others, *_properties(record, remark)]
    error = None if call.excinfo is None else call.excinfo.value
    if isinstance(error, AuditError):
        display_paths(error, item.config)
    report.attnaudit = {  # type: ignore[attr-defined]
        "record": None if record is None else msgspec.to_builtins(record),
        "reason": str(error) if isinstance(error, AuditError) else None,
        "cause": "data" if isinstance(error, DataError) else "model" if isinstance(error, ModelError) else "",
        "named": [],
        "scope": None,
        "is_message": False,
    }
    if not isinstance(error, (AuditError, CheckFailed)) or report.outcome != "failed":
        return
    scope = state.session.inputs.scope_of(error)
    report.attnaudit["scope"] = None if scope is None else list(scope)
    if skip_repetition(report, state):
        return
    if call.excinfo is None or item.config.getoption("fulltrace", False):
        return
    message = failure_without_traceback(call.excinfo)
    report.attnaudit["is_message"] = True
    gates = [] if scope is None else _gates_in(scope, list(state.declared.values()))
    if gates:
        report.attnaudit["named"] = [list(gate.key) for gate in gates]
        message.addsection("gates without a verdict for this reason", "\n".join(_name(gate) for gate in gates))
    report.longrepr = message


def skip_repetition(report: pytest.TestReport, state: RunState) -> bool:
    """Turn a failure into a skip if an earlier case failed for the same reason, such as a model that cannot be loaded.

    Each worker of xdist loads the models and reads the data that its cases need. So the controller calls this function
    too, with the reports of all workers.

    Args:
        report: The report of a case, with its attribute `attnaudit`.
        state: The run in this process.

    Returns:
        Whether the report is now a skip.
    """
    carried: dict[str, Any] = report.attnaudit
    if carried["scope"] is None or report.outcome != "failed":
        return False
    first = state.first_failures.setdefault((*carried["scope"], carried["reason"]), report.nodeid)
    if first == report.nodeid:
        return False
    path, line, _ = report.location
    report.outcome = "skipped"
    report.longrepr = (path, line or 0, f"Skipped: no verdict, for the reason given in the failure of {first}")
    return True


def _properties(record: CheckRecord, remark: str) -> list[tuple[str, object]]:
    """Return the properties of a case for the JUnit file. Values that the record lacks are left out.

    Args:
        record: The record of the case.
        remark: A clause about the validation of the check; "" for none.
    """
    interval, required = record.interval, record.requirement
    properties: dict[str, object] = {"verdict": record.verdict, "value": record.value}
    if interval is not None:
        properties |= {"interval_low": interval.low, "interval_high": interval.high, "confidence": interval.confidence}
    if required is not None:
        properties |= {"threshold": required.value, "direction": required.direction}
    if (change := record.detectable_change) is not None:
        properties |= {"detectable_change_to_pass": change.to_pass, "detectable_change_to_fail": change.to_fail}
    properties |= {"n": record.n_defined, "n_undefined": record.n - record.n_defined}
    named = [(f"attnaudit.{name}", str(value)) for name, value in properties.items() if value is not None]
    return [*named, ("attnaudit", terminal_safe(remark))] if remark else [*named]


def _gates_in(scope: tuple[str, str], gates: Sequence[DeclaredGate]) -> list[DeclaredGate]:
    """Return the gates of a model and a data set; "" stands for every model or data set."""
    model, data = scope
    return [gate for gate in gates if model in ("", gate.model) and data in ("", gate.data)]


def _name(gate: DeclaredGate) -> str:
    return terminal_safe(f"{gate.check} ({gate.model} on {gate.data})")


def short_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return, in one line of limited length, why a test or a test file failed, without its traceback."""
    lines = [line for line in reason_of(report).splitlines() if line.strip()]
    errors = [line[1:] for line in lines if line.startswith("E ")]
    reason = one_line((errors or lines or [report.outcome])[0].strip())
    return reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 1]}…"


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return, in one line, why a test or a test file failed or was skipped."""
    expected: str | None = getattr(report, "wasxfail", None)
    if expected is not None:
        return f"expected to fail: {expected.removeprefix('reason: ') or 'no reason given'}"
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):
        return f"skipped: {longrepr[2].removeprefix('Skipped: ')}"
    crash = getattr(longrepr, "reprcrash", None)
    return str(getattr(crash, "message", longrepr) or report.outcome)
