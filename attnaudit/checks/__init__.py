"""All checks, and what is needed to declare, write and judge them.

`checks.Agreement` and every other check are found by the registry when they are first used: the built-in checks in the
modules of this folder, those of installed packages by their entry points, and custom checks by their decorator. A new
module in this folder therefore needs no entry here. Importing this package imports no torch.

Type checkers see a check such as `checks.Agreement` as `Any`. For its type, import the class from its module:
`from attnaudit.checks.agreement import Agreement`.
"""

from __future__ import annotations

from typing import Any

from attnaudit.checks.base import Check, registered
from attnaudit.checks.custom_check import CheckFactory, CustomCheck, check
from attnaudit.checks.decorator import CheckFailed, InconclusiveWarning, audit, enforce
from attnaudit.checks.evidence import Evidence, ReferenceValues
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.checks.policy import Policy, from_tables, load_policy, to_table
from attnaudit.errors import nearest
from attnaudit.registry import checks as _registry

__all__ = [
    "Check",
    "CheckFactory",
    "CheckFailed",
    "CustomCheck",
    "Evidence",
    "InconclusiveWarning",
    "PerInstanceCheck",
    "Policy",
    "ReferenceValues",
    "audit",
    "check",
    "enforce",
    "from_tables",
    "load_policy",
    "registered",
    "to_table",
]


def __getattr__(name: str) -> Any:
    """Return the check that is registered under a name.

    Raises:
        AttributeError: There is none. The message names the most similar one.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _registry:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}. {nearest(name, __dir__())}")
    return _registry.get(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_registry.names()})
