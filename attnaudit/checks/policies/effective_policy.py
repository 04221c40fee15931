"""The effective policy of a run: all of its checks in a canonical form, and the hash of this form."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attnaudit.checks.base import Check
from attnaudit.checks.check_arguments import Parameter
from attnaudit.checks.custom_check import CustomCheck
from attnaudit.checks.paired_gate import BASELINE_NAME, PairedGate
from attnaudit.checks.policies.policy import load_policy, sequential_checks
from attnaudit.code_identity.code_hash import hash_of_code
from attnaudit.errors import CheckError
from attnaudit.records import EffectivePolicy, PolicyException, PolicyValidation, UnvalidatedRule
from attnaudit.statistics.threshold import Expression

#: The version of the canonical form. Increase it when the form changes, because a change of the form changes the hash
#: of every policy.
FORM = 1
#: The keys in the table of a check that are not arguments of the check.
FACTS = ("id", "name", "code", "needs", "statistic", "low", "high")
#: Packages whose code needs no hash, because the run records the versions of attnaudit and Python.
_COVERED = {"attnaudit", *sys.stdlib_module_names}


def effective_policy(
    checks: Iterable[Check],
    exceptions: Iterable[PolicyException] = (),
    informational: bool = False,
    validations: Iterable[PolicyValidation] = (),
) -> EffectivePolicy:
    """Return the effective policy of a run: its checks in a canonical form, and the hash of this form.

    In the canonical form, each check is a table. The table contains the id and the name of the check, and all of its
    arguments, including defaults. If the check is not part of attnaudit, the table also contains the hash of its code.
    The table of a custom check also contains its measures, its statistic and its bounds.

    The form does not depend on the order of the checks, on where they are declared, or on white space in relative
    thresholds. If a check is declared several times with the same arguments, it is listed once. Checks with the same id
    but different arguments are all listed.

    Args:
        checks: The checks of all @audit functions and policy files.
        exceptions: The gates that may be skipped or expected to fail.
        informational: Whether the policy declares that it has no gate.
        validations: For each @audit function and policy file, the families on which its gates were validated (see
            `validation_of`). They are left out if no family is named.

    Raises:
        CheckError: An argument of a check has the name of another key of the table, such as "code".
    """
    tables = {_text(table): table for table in map(_table, checks)}
    distinct = {_text(_fields(exception)): exception for exception in exceptions}
    stated = {_text(msgspec.to_builtins(validation)): validation for validation in validations if validation.checks}
    if not any(validation.validated_on for validation in stated.values()):
        stated = {}
    policy = EffectivePolicy(
        sha256="",
        checks=[tables[text] for text in sorted(tables)],
        exceptions=[distinct[text] for text in sorted(distinct)],
        informational=informational,
        validations=[stated[text] for text in sorted(stated)],
    )
    return msgspec.structs.replace(policy, sha256=hash_of(policy))


def validation_of(
    checks: Iterable[Check], validated_on: Iterable[str], unvalidated: UnvalidatedRule
) -> PolicyValidation:
    """Return the families on which the gates of an @audit function or a policy file were validated, in canonical form.

    Args:
        checks: The checks of an @audit function or a policy file.
        validated_on: The families; empty if the policy names none.
        unvalidated: What happens to models of other families (see `PolicyValidation`).
    """
    families = sorted(set(validated_on))
    return PolicyValidation(
        checks=sorted({check.id for check in checks if check.severity == "gate"}),
        validated_on=families,
        unvalidated=unvalidated if families else "gate",
    )


def effective_policy_of_file(path: Path, *, sequential: bool = False) -> EffectivePolicy:
    """Return the effective policy of a run that applies only the checks of a policy file.

    Args:
        path: The policy file.
        sequential: Whether the run has the option --audit-sequential.

    Raises:
        CheckError: The file cannot be read or is invalid.
    """
    policy = load_policy(path)
    record = policy.record
    validation = validation_of(policy, record.validated_on, record.unvalidated)
    checks = sequential_checks(policy) if sequential else policy
    return effective_policy(checks, record.exceptions, record.informational, [validation])


def hash_of(policy: EffectivePolicy) -> str:
    """Return the SHA-256 hash of an effective policy, in hexadecimal.

    The hash covers everything except the field `sha256` and the order of checks, exceptions and validations.
    """
    content = {
        "form": FORM,
        "checks": sorted(map(_text, policy.checks)),
        "exceptions": sorted(_text(_fields(exception)) for exception in policy.exceptions),
        "informational": policy.informational,
    }
    if policy.validations:  # Older policies could not name families. They keep their hash.
        content["validations"] = sorted(_text(msgspec.to_builtins(one)) for one in policy.validations)
    return hashlib.sha256(_text(content).encode("ascii")).hexdigest()


def _table(check: Check) -> dict[str, Parameter]:
    """Return the table of a check in the canonical form."""
    arguments = {name: _scalar(value) for name, value in check.parameters.items()}
    paired = isinstance(check, PairedGate)
    reserved = sorted(set(arguments) & {*FACTS, *(() if paired else (BASELINE_NAME,))})
    if reserved:
        raise CheckError(
            f"{check.name_in_errors}: a check cannot have an argument '{reserved[0]}', because the effective policy of "
            "a run uses this name. Rename the argument."
        )
    threshold = check.threshold
    if threshold is not None and isinstance(threshold[1], Expression):
        arguments[threshold[0]] = threshold[1].canonical
    kind = type(check.base if isinstance(check, PairedGate) else check)
    facts: dict[str, Parameter] = {"id": check.id, "name": kind.__name__}
    if isinstance(check, CustomCheck):
        low, high = check.bounds
        facts |= {
            "name": check.subject,
            "code": hash_of_code(type(check).function),
            "needs": ", ".join(sorted(set(check.needs()))),
            "statistic": check.statistic,
            "low": float(low) if math.isfinite(low) else None,
            "high": float(high) if math.isfinite(high) else None,
        }
    else:
        foreign = [one for one in kind.__mro__ if one.__module__.partition(".")[0] not in _COVERED]
        if foreign:
            facts["code"] = hash_of_code(*foreign)
    return {**facts, **arguments}


def _scalar(value: Any) -> Parameter:
    """Convert an argument to a value that JSON can represent. Any other object becomes its `repr`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    for kind in (str, bool, int, float, type(None)):
        if type(value) is kind:
            return value
    return repr(value)


def _fields(exception: PolicyException) -> dict[str, str]:
    return {
        "check": exception.check, "reason": exception.reason, "model": exception.model, "data": exception.data
    }  # fmt: skip


def _text(content: Any) -> str:
    """Convert a value to canonical JSON. Equal values give the same text."""
    return json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
