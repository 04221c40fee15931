"""Validate what a policy declares: that it has gates or is informational, its exceptions, and families of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec

from attnaudit.checks.base import Check
from attnaudit.errors import CheckError, nearest
from attnaudit.formatting import INVISIBLE
from attnaudit.records import PolicyException, UnvalidatedRule

KEYS = ("check", "reason", "model", "data")


def require_gates(checks: Sequence[Check], *, informational: bool, where: str, declaration: str) -> None:
    """Require that an informational policy has no gate, and that any other policy has a gate.

    Args:
        checks: The checks of the policy.
        informational: Whether the policy is declared informational.
        where: The beginning of the error message, such as the path of the file.
        declaration: The code or setting that declares a policy informational, for the error message.

    Raises:
        CheckError: No check is a gate, but the policy is not declared informational. Or a check is a gate, but the
            policy is declared informational.
    """
    gates = [check for check in checks if check.severity == "gate"]
    if informational and gates:
        raise CheckError(
            f"{where}: the policy is declared informational, but '{gates[0].id}' is a gate. Remove {declaration}, or "
            'set severity = "report" for every check.'
        )
    if not informational and not gates:
        ungated = next((check.id for check in checks if check.threshold is not None), "")
        remedy = (
            f"Set severity = \"gate\" for '{ungated}', which has a threshold"
            if ungated
            else "Make a check a gate: give it a threshold and leave out severity"
        )
        raise CheckError(
            f"{where}: no check is a gate, so the audit could never fail. {remedy}. If the checks should only report "
            f"their values, add {declaration}."
        )


def require_families(validated_on: Any, unvalidated: object, *, where: str) -> None:
    """Require that a policy with `unvalidated` names the families of models that it was validated on.

    Args:
        validated_on: The families; None if the policy does not name them.
        unvalidated: What happens to a model of another family (see `PolicyValidation`); None if it is not set.
        where: The beginning of the error message, such as the path of the file.

    Raises:
        CheckError: `validated_on` is not a list of names, a name is empty, `unvalidated` has an unknown value, or
            `unvalidated` is given without `validated_on`.
    """
    example = 'validated_on = ["pooled attention"]'
    require_family_names(validated_on, key="validated_on", where=where)
    if unvalidated is None:
        return
    if unvalidated not in get_args(UnvalidatedRule):
        expected = ", ".join(f'"{rule}"' for rule in get_args(UnvalidatedRule))
        raise CheckError(f"{where}: unvalidated is {unvalidated!r}; expected one of {expected}.")
    if not validated_on:
        raise CheckError(
            f"{where}: unvalidated is set, but validated_on is missing or empty. Name the families on which the "
            f"policy was validated, for example {example}, or remove unvalidated."
        )


def require_family_names(families: Any, *, key: str, where: str) -> None:
    """Require that a value is None or a list of names of model families.

    Args:
        families: The value.
        key: The name of the key or argument.
        where: The beginning of the error message, such as the path of the file.

    Raises:
        CheckError: The value is not a list, or a name is empty or has spaces around it.
    """
    if families is None:
        return
    valid = isinstance(families, Sequence) and not isinstance(families, str)
    if not valid or not all(isinstance(one, str) and one.strip() == one != "" for one in families):
        raise CheckError(
            f"{where}: {key} is {families!r}; expected a list with the names of families, without spaces around them. "
            f'Write, for example, {key} = ["pooled attention"].'
        )


def exceptions_from_tables(tables: object, *, checks: Sequence[Check], where: str) -> list[PolicyException]:
    """Return the exceptions in [[exception]] tables.

    Args:
        tables: The tables, with the keys "check", "reason", and optionally "model" and "data".
        checks: The checks of the policy.
        where: The beginning of every error message, such as the path of the file.

    Raises:
        CheckError: A key or a value is invalid, no gate of the policy has the id, or two tables have the same gate,
            model and data set. The message names the table. For an unknown key or gate, it suggests similar names.
    """
    if not isinstance(tables, list):
        raise CheckError(f"{where}: expected a list of [[exception]] tables, but got {type(tables).__name__}.")
    exceptions: dict[tuple[str, str, str], PolicyException] = {}
    for number, table in enumerate(tables, 1):
        place = f"{where}: [[exception]] number {number}"
        exception = _exception(table, place)
        _require_gate(exception.check, checks, place)
        key = (exception.check, exception.model, exception.data)
        if key in exceptions:
            raise CheckError(f"{place}: an exception for '{exception.check}' is given above. Keep one of them.")
        exceptions[key] = exception
    return list(exceptions.values())


def exceptions_from_reasons(
    reasons: Mapping[str, str], *, checks: Sequence[Check], where: str
) -> tuple[PolicyException, ...]:
    """Return the exceptions that @audit(..., exceptions={...}) declares.

    Args:
        reasons: Id of a gate -> why its cases may be skipped or expected to fail.
        checks: The checks of the decorator.
        where: The beginning of every error message.

    Raises:
        CheckError: `reasons` is not a mapping, a reason is empty, or no gate has the id.
    """
    if not isinstance(reasons, Mapping):
        raise CheckError(
            f'{where}: exceptions is {reasons!r}; expected the reason for each gate, such as {{"conicity": "why"}}.'
        )
    exceptions = []
    for check, reason in reasons.items():
        place = f"{where}: exceptions[{check!r}]"
        exception = _exception({"check": check, "reason": reason}, place)
        _require_gate(exception.check, checks, place)
        exceptions.append(exception)
    return tuple(exceptions)


def _exception(table: Any, place: str) -> PolicyException:
    """Return the exception in a table, after validating its keys and values."""
    if not isinstance(table, Mapping):
        raise CheckError(f"{place}: expected a table, but got {type(table).__name__}.")
    for key in table:
        if key not in KEYS:
            raise CheckError(f"{place}: unknown key '{key}'. {nearest(str(key), KEYS)}")
    for key in ("check", "reason"):
        if key not in table:
            expected = "the id of a gate" if key == "check" else "why the gate need not pass"
            raise CheckError(f"{place}: the key '{key}' is missing. Set it to {expected}.")
    for key, value in table.items():
        if not isinstance(value, str):
            raise CheckError(f"{place}: {key} is {value!r}, expected text.")
        if not INVISIBLE.sub("", value).strip():
            remedy = "Leave it out to apply the exception to all." if key in ("model", "data") else "Fill it in."
            raise CheckError(f"{place}: {key} is empty. {remedy}")
    return msgspec.convert(dict(table), PolicyException)


def _require_gate(id_: str, checks: Sequence[Check], place: str) -> None:
    """Require that a gate has this id.

    Raises:
        CheckError: No check has this id, or the check with this id is informational. The message suggests similar
            gates.
    """
    gates = [check.id for check in checks if check.severity == "gate"]
    if id_ in gates:
        return
    if id_ in [check.id for check in checks]:
        raise CheckError(f"{place}: '{id_}' is not a gate, so it needs no exception. Remove the exception.")
    raise CheckError(f"{place}: no gate of this policy is '{id_}'. {nearest(id_, gates)}")
