"""Turn audit functions into one case per model, data set and check, and examine the cases that pytest selected."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from attnaudit.errors import AdapterError, AuditError, ModelError, shown_error
from attnaudit.plugin.clean_reports import clean_case_id
from attnaudit.plugin.files_left_out import is_test_file
from attnaudit.plugin.possible_gates import is_of_project, project_folders
from attnaudit.plugin.state import CASE, Declaration, MeasurementsRequest, RunState

if TYPE_CHECKING:
    from attnaudit.checks import Policy
    from attnaudit.checks.base import Check
    from attnaudit.run import Case
    from attnaudit.run.plan import GateKey

#: The measures for a test that uses the fixture `measurements`, unless its mark names others.
DEFAULT_NEEDS = ("prediction", "attention")


def is_audit_function(metafunc: pytest.Metafunc) -> bool:
    """Return whether a test function is decorated with @audit or uses the fixture `measurements`."""
    return hasattr(metafunc.function, "attnaudit_checks") or "attnaudit_case" in metafunc.fixturenames


def parametrize_cases(metafunc: pytest.Metafunc, state: RunState) -> None:
    """Parametrize an audit function with its cases.

    A usage error is stored in `state.usage_errors`. If a model is named, it stops the run, even if the function is not
    selected. Otherwise, it counts only if pytest selects the function.
    """
    checks = getattr(metafunc.function, "attnaudit_checks", None)
    imperative = checks is None
    argument = "attnaudit_case" if imperative else "check"
    if checks is not None:
        state.collected.append(checks)
        if metafunc.cls is not None:
            state.collected_classes.append(metafunc.cls)
    try:
        state.options.validate()
        pairs = [(model.id, data.id) for model in state.options.model_items() for data in state.options.data_items()]
        policy = state.options.load_policy()
        if not imperative:
            declaration = state.as_applied(_declaration(metafunc.function, policy, state))
            checks = declaration.checks
            state.declare(declaration, test=metafunc.definition.nodeid)
            if "check" not in metafunc.fixturenames:
                raise AuditError(
                    f"{metafunc.definition.nodeid} is decorated with @audit, but takes no argument `check`. Write "
                    f"def {metafunc.function.__name__}(check): check.enforce()"
                )
    except AuditError as error:
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, [pytest.param(None, id="not-auditable")], indirect=imperative)
        state.usage_errors[metafunc.definition.nodeid] = shown_error(error)
        return
    from attnaudit.run import Case

    for check in checks or ():
        state.session.declared.add(check)
        state.files_with_checks.add(metafunc.definition.path)
    has_xdist = metafunc.config.pluginmanager.hasplugin("xdist")
    parameters: list[Any] = []
    for number, (model, data) in enumerate(pairs):
        marks = [pytest.mark.xdist_group(f"pair{number}")] if has_xdist else []
        if imperative:
            request = MeasurementsRequest(model, data, state.session)
            parameters.append(pytest.param(request, id=clean_case_id(f"{model}-{data}", metafunc.config), marks=marks))
            continue
        for check in checks or ():
            case = Case(check, model=model, data=data, session=state.session)
            parameters.append(pytest.param(case, id=clean_case_id(case.id, metafunc.config), marks=marks))
    metafunc.parametrize(argument, parameters, indirect=imperative)


def _declaration(function: Any, policy: Policy | None, state: RunState) -> Declaration:
    """Return what an @audit function declares. With --policy, return what the policy file declares instead.

    Raises:
        AuditError: The function has several policies, and it is unclear which of them applies to the models.
    """
    policies: tuple[Policy, ...] = getattr(function, "attnaudit_policies", ())
    if policy is None and policies:
        policy = policies[0] if len(policies) == 1 else _suitable_policy(policies, state)
    if policy is not None:
        return policy_declaration(policy)
    return Declaration(
        checks=function.attnaudit_checks,
        exceptions=tuple(getattr(function, "attnaudit_exceptions", ())),
        informational=bool(getattr(function, "attnaudit_informational", False)),
        validation=getattr(function, "attnaudit_validation", None),
    )


def _suitable_policy(policies: tuple[Policy, ...], state: RunState) -> Policy:
    """Return the policy that applies to the models of the run. The models are loaded to find it.

    Raises:
        AuditError: A model is unknown, or not exactly one policy applies to the models.
    """
    from attnaudit.checks.policies.policy_choice import choose_policy

    families = {}
    for model in state.options.model_items():
        # A model that cannot be loaded has no family. The session raises the same error again for each of its cases.
        with contextlib.suppress(ModelError, AdapterError):
            families[model.id] = state.session.family(model.id)
    return choose_policy(policies, families)


def declare_uncollected(state: RunState, config: pytest.Config) -> None:
    """Record the gates of @audit functions that pytest did not collect as tests. These gates stay open.

    Only functions of collected test files, of conftest.py files, of the packages that contain the test files, and of
    imported modules of the project count. pytest does not collect a function if its name does not match, if another
    function below it has the same name, if it is a method of a class that is not collected, or if it is in conftest.py,
    `__init__.py` or a module that is not a test file and from which no test file imports it.
    """
    from attnaudit.checks.decorator import declared_functions

    if state.options.policy is not None or state.usage_errors:
        return
    files = {path.resolve() for path in (*state.test_modules, *_other_files(state, config))}
    roots, inherited = project_folders(config, state.test_modules.keys()), _inherited_checks(state)
    shown = [checks for module in state.test_modules.values() if module for checks in _shown_checks(module, state)]
    for declared in declared_functions:
        # functools.wraps copies the attribute, so a decorator above @audit makes no difference.
        if any(declared.checks is checks for checks in state.collected):
            continue
        of_project = not any(declared.checks is checks for checks in inherited) and any(
            is_of_project(file, roots) and not is_test_file(file, config) for file in declared.files()
        )
        if files & declared.files() or of_project or any(declared.checks is checks for checks in shown):
            policies: tuple[Policy, ...] = getattr(declared.function, "attnaudit_policies", ())
            # No test judges these gates, so it does not matter which of several policies applies.
            declarations = list(map(policy_declaration, policies)) or [_declaration(declared.function, None, state)]
            for declaration in map(state.as_applied, declarations):
                state.declare(declaration)
                for check in declaration.checks:
                    state.session.declared.add(check)


def _other_files(state: RunState, config: pytest.Config) -> Iterator[Path]:
    """Yield the conftest.py files that pytest has imported, and the `__init__.py` files of the test files' packages."""
    for plugin in config.pluginmanager.get_plugins():
        file = getattr(plugin, "__file__", None) if isinstance(plugin, ModuleType) else None
        if isinstance(file, str) and Path(file).name == "conftest.py":
            yield Path(file)
    for folder in {path.parent for path in state.test_modules}:
        for package in (folder, *folder.parents):
            if not (package / "__init__.py").is_file():
                break
            yield package / "__init__.py"


def _inherited_checks(state: RunState) -> list[tuple[Check, ...]]:
    """Return the checks of all methods that collected classes have, inherit or replace."""
    bases = {base for collected in state.collected_classes for base in collected.__mro__}
    members = [getattr(member, "__func__", member) for base in bases for member in vars(base).values()]
    functions = [one for one in members if isinstance(one, FunctionType)]
    return [vars(one)["attnaudit_checks"] for one in functions if "attnaudit_checks" in vars(one)]


def _shown_checks(module: ModuleType, state: RunState) -> Iterator[tuple[Check, ...]]:
    """Yield the checks of the @audit functions that a test module contains, and of the methods of its classes.

    They include what the module imports or inherits from other files. A class does not count if a class that derives
    from it was collected, because that class may replace its methods.
    """
    values, seen = list(vars(module).values()), set[int]()
    for value in values:  # not isinstance: proxies of other libraries may raise any error when they are asked
        kind = type(value)
        if issubclass(kind, (FunctionType, staticmethod, classmethod)):
            if "attnaudit_checks" in vars(value):
                yield value.attnaudit_checks
        elif issubclass(kind, type) and id(value) not in seen:
            seen.add(id(value))
            if not any(issubclass(one, value) for one in state.collected_classes):
                values.extend(member for base in value.__mro__ for member in vars(base).values())


def policy_declaration(policy: Policy) -> Declaration:
    """Return what a policy file declares."""
    from attnaudit.checks.policies.effective_policy import validation_of

    record = policy.record
    return Declaration(
        checks=tuple(policy),
        policy=record,
        exceptions=tuple(record.exceptions),
        informational=record.informational,
        validation=validation_of(policy, record.validated_on, record.unvalidated),
    )


def attach_cases(items: Sequence[pytest.Item], state: RunState) -> dict[str, str]:
    """Store each case in the stash of its pytest item, and return the usage errors.

    Returns:
        Node id of the function -> message, for every usage error that concerns a selected item or the policy.
    """
    errors: dict[str, str] = {}
    for item in items:
        function = f"{item.parent.nodeid if item.parent else ''}::{getattr(item, 'originalname', item.name)}"
        if function in state.usage_errors:
            errors[function] = state.usage_errors[function]
        case = _case_of(item)
        if case is None:
            continue
        item.stash[CASE] = case
        if isinstance(case, MeasurementsRequest):
            try:
                case.needs = _declared_needs(item) or DEFAULT_NEEDS
            except AuditError as error:
                errors[function] = shown_error(error)
            continue
        if case.check.id in state.conflicts:  # an error even if the other function is not selected
            errors[function] = state.conflicts[case.check.id]
    return errors


def collect_case(item: pytest.Item, state: RunState) -> None:
    """Record a collected test, and the gate that it judges."""
    state.collected_tests.add(item.path)
    state.collected_gates.update(_gates_of([item]))


def deselect_cases(items: Sequence[pytest.Item], state: RunState) -> None:
    """Record the gates whose cases were deselected. A gate that loses its cases in another way was removed."""
    state.deselected.update(_gates_of(items))


def _gates_of(items: Sequence[pytest.Item]) -> Iterator[GateKey]:
    from attnaudit.run import Case

    for case in map(_case_of, items):
        if isinstance(case, Case):
            yield case.model, case.data, case.check.id


def _case_of(item: pytest.Item) -> Case | MeasurementsRequest | None:
    """Return the case among the parameters of an item; None if there is none."""
    from attnaudit.run import Case

    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return None
    return next((value for value in callspec.params.values() if isinstance(value, (Case, MeasurementsRequest))), None)


def _declared_needs(item: pytest.Item) -> tuple[str, ...]:
    """Return the needs of @pytest.mark.attnaudit(needs=[...]); empty without this mark.

    Raises:
        AuditError: The mark has other arguments. The message names the test.
    """
    mark = item.get_closest_marker("attnaudit")
    if mark is None:
        return ()
    place = f"{item.nodeid}: @pytest.mark.attnaudit"
    remedy = 'Write @pytest.mark.attnaudit(needs=["uniform"]).'
    for name in mark.kwargs:
        if name != "needs":
            raise AuditError(f"{place} has no argument '{name}'. {remedy}")
    needs = mark.kwargs.get("needs", ())
    if mark.args or isinstance(needs, str) or not all(isinstance(need, str) for need in needs):
        given = mark.args[0] if mark.args else needs
        raise AuditError(f"{place} is given {given!r}: expected a list of names. {remedy}")
    return tuple(needs)
