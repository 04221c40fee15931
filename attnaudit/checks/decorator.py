"""The decorator `audit`, which declares the checks of a test function, and `enforce`, which fails a test."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

from attnaudit.checks.base import Check
from attnaudit.checks.policies.effective_policy import validation_of
from attnaudit.checks.policies.policy import Policy, first_duplicate
from attnaudit.checks.policies.policy_choice import require_families_of_several
from attnaudit.checks.policies.policy_exceptions import exceptions_from_reasons, require_families, require_gates
from attnaudit.code_identity.defining_file import defining_file
from attnaudit.errors import CheckError
from attnaudit.formatting import terminal_safe
from attnaudit.records import CheckRecord, PolicyException, UnvalidatedRule
from attnaudit.verdict_text import failure_message, headline

F = TypeVar("F", bound=Callable[..., Any])
#: All decorated functions. They include functions that pytest does not collect, for example because another function
#: has the same name. They stay here when a session ends: pytest does not import a module again in the same process.
declared_functions: list[DeclaredFunction] = []
EXAMPLE = "@audit(checks.Agreement(at_least=0.3))"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredFunction:
    """A function that `audit` decorates.

    Attributes:
        function: The function. It can be a wrapper that another decorator made.
        file: The file that contains the decorator `audit`.
    """

    function: Callable[..., Any]
    file: str

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks of the function. Wrappers of the function have the same object."""
        return self.function.attnaudit_checks  # type: ignore[attr-defined,no-any-return]

    @property
    def is_current(self) -> bool:
        """Whether the module of the function is imported, and was not imported again since then."""
        function = inspect.unwrap(self.function)
        namespace = getattr(function, "__globals__", None)
        module = sys.modules.get(function.__module__ if namespace is None else namespace.get("__name__", ""))
        return module is not None and (namespace is None or vars(module) is namespace)

    def files(self) -> set[Path]:
        """Return the files that the function belongs to: that of the decorator, and that of the code."""
        function = inspect.unwrap(self.function)
        code = getattr(function, "__code__", None)
        of_code = defining_file(code, getattr(function, "__globals__", {})) if isinstance(code, CodeType) else ""
        return {Path(name).resolve() for name in (self.file, of_code) if name}


class CheckFailed(AssertionError):  # noqa: N818
    """Raised when a verdict fails its pytest case.

    The first line of the error message gives the value, its interval, the threshold and the number of instances.

    Attributes:
        record: The record of the check.
    """

    def __init__(self, record: CheckRecord) -> None:
        super().__init__(failure_message(record))
        self.record = record


class InconclusiveWarning(UserWarning):
    """Issued when a check with inconclusive="warn" and a threshold is inconclusive."""


def enforce(record: CheckRecord) -> None:
    """Fail the running test if the verdict of a check blocks the release.

    An inconclusive verdict on a check with a threshold and inconclusive="warn" issues an `InconclusiveWarning` instead.

    Args:
        record: The record of the check.

    Raises:
        CheckFailed: The verdict blocks the release.
    """
    __tracebackhide__ = True
    if record.blocks:
        raise CheckFailed(record)
    if record.requirement is not None and record.verdict == "inconclusive" and record.inconclusive == "warn":
        message = terminal_safe(f"{record.check}: inconclusive: {headline(record)}")
        warnings.warn(message, InconclusiveWarning, stacklevel=2)


def audit(
    *checks: Check | Policy,
    exceptions: Mapping[str, str] | None = None,
    informational: bool = False,
    validated_on: Sequence[str] | None = None,
    unvalidated: UnvalidatedRule | None = None,
) -> Callable[[F], F]:
    """Return a decorator that declares the checks of a test function.

    The arguments are checks, or policies that `load_policy` returned. If there are several policies, the policy that
    names the family of the audited model is applied.

    pytest runs the function once per model, data set and check. The function must have an argument `check`. This
    argument receives the case, that is, the check on one model and one data set.

    The decorator gives the function the mark `attnaudit` and these attributes:

    * `attnaudit_checks`: a tuple of the checks.
    * `attnaudit_policies`: a tuple of the policies.
    * `attnaudit_exceptions`: a tuple of `PolicyException`.
    * `attnaudit_informational`: a bool.
    * `attnaudit_validation`: a `PolicyValidation`; None if the arguments are policies.

    Args:
        *checks: The checks, or one or several policies, but not both. To add a check to a policy, add it to its file.
            If there are several policies, each must name families of models with the key `applies_to` or
            `validated_on`, and exactly one policy must apply to all models of a run.
        exceptions: Id of a gate -> the reason why its cases may be skipped or expected to fail. Without an exception, a
            skip or xfail mark on a gate fails the audit. With a policy file, write [[exception]] tables in the file
            instead.
        informational: Whether the audit only reports values. It must be True if no check is a gate, and False
            otherwise. With a policy file, use the key `informational` of the file instead.
        validated_on: The families of models on which the gates were validated, such as ["pooled attention"]. None (the
            default) if the gates were not validated: they then apply to every model. With a policy file, use the key
            `validated_on` of the file instead.
        unvalidated: What happens to a model of a family that `validated_on` does not name: "block" (the default) fails
            the run, "gate" applies the gates and reports that they were not validated, and "report" makes the gates
            informational. With a policy file, use the key `unvalidated` of the file instead.

    Raises:
        CheckError: No check is given, an argument is not a check, or two checks have the same id, for example because
            they differ only in their thresholds. Or `informational` does not match the checks; an exception, a family
            or `unvalidated` is invalid; one of several policies names no family; a policy is combined with checks;
            single checks of a policy with `validated_on` are given without this argument; a class is decorated; or the
            function is decorated twice.
    """
    if not checks:
        raise CheckError(f"audit: no check is given. Write {EXAMPLE}.")
    policies = tuple(item for item in checks if isinstance(item, Policy))
    if len(policies) < len(checks):
        policies = ()
    declared = list(chain(*policies)) if policies else [_check(item, at) for at, item in enumerate(checks, 1)]
    duplicate = None if policies else first_duplicate(declared)
    if duplicate:
        first, second = duplicate
        raise CheckError(
            f"audit: arguments {first + 1} and {second + 1} are the same check '{declared[first].id}': keep one."
        )
    if not isinstance(informational, bool):
        raise CheckError(f"audit: informational is {informational!r}; expected True or False.")
    excepted: tuple[PolicyException, ...] = ()
    validation = None
    if policies:
        in_file = {
            "exceptions": exceptions is not None,
            "informational": informational,
            "validated_on": validated_on is not None,
            "unvalidated": unvalidated is not None,
        }
        argument = next((name for name, given in in_file.items() if given), "")
        if argument:
            raise CheckError(
                f"audit: the argument {argument} cannot be combined with a policy. Write it in the file "
                f"{policies[0].record.file}."
            )
        if len(policies) > 1:
            require_families_of_several(policies)
        excepted = tuple(exception for policy in policies for exception in policy.record.exceptions)
        informational = all(policy.record.informational for policy in policies)
    else:
        require_gates(declared, informational=informational, where="audit", declaration="informational=True")
        excepted = exceptions_from_reasons(exceptions or {}, checks=declared, where="audit")
        require_families(validated_on, unvalidated, where="audit")
        if validated_on is None:
            _refuse_unpacked(declared)
        validation = validation_of(declared, validated_on or (), unvalidated or "block")

    def declare(function: F) -> F:
        import pytest

        if isinstance(function, type):
            raise CheckError(f"audit: '{function.__name__}' is a class. Decorate its test methods instead.")
        if hasattr(function, "attnaudit_checks"):
            name = getattr(function, "__name__", function)
            raise CheckError(f"audit: {name!r} is decorated twice. Give all checks to one decorator.")
        function.attnaudit_checks = tuple(declared)  # type: ignore[attr-defined]
        function.attnaudit_policies = policies  # type: ignore[attr-defined]
        function.attnaudit_exceptions = excepted  # type: ignore[attr-defined]
        function.attnaudit_informational = informational  # type: ignore[attr-defined]
        function.attnaudit_validation = validation  # type: ignore[attr-defined]
        caller = sys._getframe(1)
        file = defining_file(caller.f_code, caller.f_globals)
        declared_functions.append(DeclaredFunction(function=function, file=file))
        return pytest.mark.attnaudit(function)  # type: ignore[no-any-return]

    return declare


def _refuse_unpacked(checks: Sequence[Check]) -> None:
    """Raise CheckError if a check was taken out of a policy with `validated_on`, which would no longer apply."""
    for position, check in enumerate(checks, 1):
        policy = check.source_policy
        if policy is not None and policy.validated_on:
            raise CheckError(
                f"audit: argument {position} is the check '{check.id}' of the policy {policy.file}, but without the "
                "policy, its validated_on would not apply. Give the whole policy, @audit(policy), and add other checks "
                f"to its file; or repeat validated_on here: @audit(..., validated_on={policy.validated_on!r})."
            )


def _check(argument: object, position: int) -> Check:
    """Return an argument of `audit` if it is a check.

    Raises:
        CheckError: The argument is not a check. The message shows how to write a check.
    """
    if isinstance(argument, Check):
        return argument
    if isinstance(argument, Policy):
        raise CheckError(
            f"audit: a policy cannot be combined with checks. Add the checks to its file, {argument.record.file}."
        )
    if isinstance(argument, type) and issubclass(argument, Check):
        raise CheckError(f"audit: argument {position} is the class {argument.__name__}: call it, as in {EXAMPLE}.")
    if callable(argument):
        raise CheckError(
            f"audit: argument {position} is {argument!r}: the decorator is used without checks, or a check was not "
            f"called. Write {EXAMPLE}."
        )
    raise CheckError(f"audit: argument {position} is {argument!r}; expected a check. Write {EXAMPLE}.")
