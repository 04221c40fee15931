"""The hash of an effective policy, by which `attnaudit verify --policy` compares the policy of a run with a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from attnaudit.records import EffectivePolicy


def policy_sha256(policy: EffectivePolicy) -> str:
    """Return the SHA-256 hash of the content of an effective policy: JSON with sorted keys, without its hash."""
    content = msgspec.structs.replace(policy, sha256="")
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def sha256_of_policy_file(path: Path) -> str:
    """Return the hash of the effective policy of a run whose checks all come from a policy file.

    Raises:
        CheckError: The file cannot be read or is invalid.
    """
    from attnaudit.checks.policy import load_policy, to_table

    policy = load_policy(path)
    tables = sorted((to_table(check) for check in policy), key=lambda table: msgspec.json.encode(table, order="sorted"))
    return policy_sha256(
        EffectivePolicy(
            sha256="",
            checks=tables,
            exceptions=policy.record.exceptions,
            informational=policy.record.informational,
        )
    )
