"""All checks, and everything that is needed to declare, write and judge checks.

The registry loads a check, such as `checks.Agreement`, when it is first used. It finds built-in checks in the modules
of the folder `builtin`, and the checks of installed packages through their entry points. A decorator registers custom
checks. A new built-in check therefore needs no entry in this file. Importing this package does not import torch.

Type checkers see a check such as `checks.Agreement` as `Any`. For its type, import the class from its module:
`from attnaudit.checks.builtin.agreement import Agreement`.
"""

from __future__ import annotations

from typing import Any

from attnaudit.checks.base import Check, registered
from attnaudit.checks.custom_check import CheckFactory, CustomCheck, check
from attnaudit.checks.decorator import CheckFailed, InconclusiveWarning, audit, enforce
from attnaudit.checks.evidence import Evidence, ReferenceValues
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.checks.policies.policy import Policy, from_tables, load_policy, to_table
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
        AttributeError: No check has this name. The message suggests similar names.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _registry:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}. {nearest(name, __dir__())}")
    return _registry.get(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_registry.names()})
