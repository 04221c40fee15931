"""All checks of a run in a canonical form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from attnaudit.checks.base import Check
from attnaudit.checks.policy import to_table
from attnaudit.records import EffectivePolicy, PolicyException


def effective_policy(
    checks: Iterable[Check], exceptions: Iterable[PolicyException] = (), informational: bool = False
) -> EffectivePolicy:
    tables = sorted((to_table(check) for check in checks), key=lambda table: msgspec.json.encode(table, order="sorted"))
    digest = hashlib.sha256(msgspec.json.encode(tables, order="sorted")).hexdigest()
    return EffectivePolicy(sha256=digest, checks=tables, exceptions=list(exceptions), informational=informational)
