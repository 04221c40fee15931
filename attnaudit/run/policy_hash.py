"""The effective policy of a run and its hash, by which `attnaudit verify --policy` compares it with a policy file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from attnaudit.checks.base import Check
from attnaudit.checks.policy import load_policy, to_table
from attnaudit.records import EffectivePolicy, PolicyException


def effective_policy(
    checks: Iterable[Check], exceptions: Iterable[PolicyException] = (), informational: bool = False
) -> EffectivePolicy:
    """Return the checks in a canonical form, with its hash."""
    tables = sorted((to_table(check) for check in checks), key=lambda table: msgspec.json.encode(table, order="sorted"))
    policy = EffectivePolicy(sha256="", checks=tables, exceptions=list(exceptions), informational=informational)
    return msgspec.structs.replace(policy, sha256=hash_of(policy))


def effective_policy_of_file(path: Path) -> EffectivePolicy:
    """Return the effective policy of a run with only the checks of a policy file.

    Raises:
        CheckError: The file cannot be read or is invalid.
    """
    policy = load_policy(path)
    return effective_policy(policy, policy.record.exceptions, policy.record.informational)


def hash_of(policy: EffectivePolicy) -> str:
    """Compute the hash of an effective policy from everything else in it."""
    content = msgspec.structs.replace(policy, sha256="")
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
