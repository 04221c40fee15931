"""The effective policy of a run: all checks that it applies, in a form that depends only on what they require."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from attnaudit.checks.base import Check
from attnaudit.checks.check_arguments import Parameter
from attnaudit.checks.code_hash import hash_of_code
from attnaudit.checks.custom_check import CustomCheck
from attnaudit.checks.policy import load_policy
from attnaudit.errors import CheckError
from attnaudit.records import EffectivePolicy, PolicyException
from attnaudit.statistics.threshold import Expression

#: Increase it if the canonical form changes, since equal policies then get other hashes.
FORM = 1
#: The keys of a table that are no arguments of its check.
FACTS = ("id", "name", "code", "needs", "statistic", "low", "high")
#: The packages whose code is covered by the versions of attnaudit and Python, which the run records.
_COVERED = {"attnaudit", *sys.stdlib_module_names}


def effective_policy(
    checks: Iterable[Check], exceptions: Iterable[PolicyException] = (), informational: bool = False
) -> EffectivePolicy:
    """Return the checks in a canonical form, with its hash.

    Each check is a table of its id, its name and all of its arguments, including defaults. The table of a check that
    attnaudit does not ship also contains the hash of its code. That of a custom check also contains its measures, its
    statistic and its bounds. The form does not depend on the order of the checks, on where they were declared, or on
    white space in relative thresholds.
    Equal checks count once. Two different checks with the same id are both listed.

    Args:
        checks: The checks of all @audit functions and policy files.
        exceptions: The gates that may be skipped or expected to fail.
        informational: Whether the policy declares that it has no gate.

    Raises:
        CheckError: A check of another package has an argument with the name of a fact, such as "code".
    """
    tables = {_text(table): table for table in map(_table, checks)}
    distinct = {_text(_fields(exception)): exception for exception in exceptions}
    policy = EffectivePolicy(
        sha256="",
        checks=[tables[text] for text in sorted(tables)],
        exceptions=[distinct[text] for text in sorted(distinct)],
        informational=informational,
    )
    return EffectivePolicy(
        sha256=hash_of(policy), checks=policy.checks, exceptions=policy.exceptions, informational=informational
    )


def effective_policy_of_file(path: Path) -> EffectivePolicy:
    """Return the effective policy of a run with only the checks of a policy file.

    Raises:
        CheckError: The file cannot be read or is invalid.
    """
    policy = load_policy(path)
    return effective_policy(policy, policy.record.exceptions, policy.record.informational)


def hash_of(policy: EffectivePolicy) -> str:
    """Compute the hash of an effective policy from everything else in it. The order of its checks does not matter."""
    content = {
        "form": FORM,
        "checks": sorted(map(_text, policy.checks)),
        "exceptions": sorted(_text(_fields(exception)) for exception in policy.exceptions),
        "informational": policy.informational,
    }
    return hashlib.sha256(_text(content).encode("ascii")).hexdigest()


def _table(check: Check) -> dict[str, Parameter]:
    """Return the table of a check."""
    arguments = {name: _scalar(value) for name, value in check.parameters.items()}
    reserved = sorted(set(arguments) & set(FACTS))
    if reserved:
        raise CheckError(
            f"{check.name_in_errors}: a check cannot have an argument '{reserved[0]}', because the effective policy of "
            "a run uses this name. Rename the argument."
        )
    threshold = check.threshold
    if threshold is not None and isinstance(threshold[1], Expression):
        arguments[threshold[0]] = threshold[1].canonical
    facts: dict[str, Parameter] = {"id": check.id, "name": type(check).__name__}
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
        foreign = [kind for kind in type(check).__mro__ if kind.__module__.partition(".")[0] not in _COVERED]
        if foreign:
            facts["code"] = hash_of_code(*foreign)
    return {**facts, **arguments}


def _scalar(value: Any) -> Parameter:
    """Return an argument as a value that JSON can hold."""
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
    """Return canonical JSON."""
    return json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
