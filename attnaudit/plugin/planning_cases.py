"""Before the first case runs, record which gates a run has to judge and which cases were selected."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from attnaudit.errors import AuditError
from attnaudit.plugin.case_collection import policy_declaration
from attnaudit.plugin.files_left_out import files_left_out
from attnaudit.plugin.rerun import rerun_command
from attnaudit.plugin.selection import collects_only_some
from attnaudit.plugin.state import CASE, MeasurementsRequest, RunState
from attnaudit.plugin.workers import is_worker

if TYPE_CHECKING:
    from attnaudit.records import EffectivePolicy


def plan_cases(state: RunState, session: pytest.Session) -> None:
    """Request the measures of the selected cases, and write the plan of this process to the folder of the run.

    Args:
        state: The run.
        session: The session of pytest, with the items that will run.
    """
    from attnaudit.run.plan import Plan, SelectedCase

    config = session.config
    state.selected.clear()
    several_files = len(state.files_with_checks) > 1
    for item in session.items:
        case = item.stash.get(CASE, None)
        if case is None:
            continue
        if isinstance(case, MeasurementsRequest):
            check, needs = "", case.needs
        else:
            check, needs = case.check.id, case.check.needs_under_reading()
            case.test = item.nodeid
            case.rerun_command = rerun_command(config, item.nodeid, several_files=several_files)
        state.session.request(case.model, case.data, needs)
        state.selected.append(SelectedCase(test=item.nodeid, model=case.model, data=case.data, check=check))
    _declare_policy_of_option(state)
    if state.selected:  # with usage errors, the models may be unknown, and nothing is selected
        _sort_cases(state)
    policies = [declaration.policy for declaration in state.declarations if declaration.policy is not None]
    plan = Plan(
        gates=list(state.declared.values()),
        selected=state.selected,
        left_out=[
            key
            for key in state.declared
            if key in state.deselected or (collects_only_some(config) and key not in state.collected_gates)
        ],
        policy=policies[0] if policies and all(policy == policies[0] for policy in policies) else None,
        effective_policy=declared_policy(state),
        files_left_out=files_left_out(state, config),
    )
    state.session.declared.validations = plan.effective_policy.validations if plan.effective_policy else []
    state.session.declared.policy_sha256 = plan.effective_policy.sha256 if plan.effective_policy else ""
    state.folder.write_plan(plan, worker=state.session.worker)
    if not is_worker(config):
        from attnaudit.run.finish_run import write_running

        write_running(state.folder, state.context, plan)


def _sort_cases(state: RunState) -> None:
    """Sort the selected cases by model, data set and the order of the policy, whatever order pytest runs them in.

    Plugins such as pytest-randomly change the order of the tests in every run. Without this, the order of the checks in
    audit.json and in the tables would change as well.
    """
    models, data = (
        {item.id: i for i, item in enumerate(items)}
        for items in (state.options.model_items(), state.options.data_items())
    )
    checks = {check: i for i, check in enumerate(state.first_declared)}
    state.selected.sort(key=lambda case: (models[case.model], data[case.data], checks.get(case.check, len(checks))))


def _declare_policy_of_option(state: RunState) -> None:
    """Write down the gates of --policy, even if no collected function applies them."""
    if state.options.policy is None:
        return
    with contextlib.suppress(AuditError):  # the collection reports an invalid policy, and nothing is judged then
        policy = state.options.load_policy()
        if policy is not None:
            state.declare(state.as_applied(policy_declaration(policy)))


def declared_policy(state: RunState) -> EffectivePolicy | None:
    """Return all checks that this process knows of, selected or not; None if there is none."""
    from attnaudit.checks.policies.effective_policy import effective_policy

    declarations = state.declarations
    if not declarations:
        return None
    return effective_policy(
        [check for declaration in declarations for check in declaration.checks],
        [
            exception
            for declaration in declarations
            for exception in declaration.exceptions
            if all(one.excepts(exception) for one in declarations)
        ],
        informational=all(declaration.informational for declaration in declarations),
        validations=[one.validation for one in declarations if one.validation is not None],
    )
