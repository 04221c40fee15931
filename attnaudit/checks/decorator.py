"""Declaring checks on a test function, and failing it by the record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from attnaudit.checks.base import Check
from attnaudit.errors import CheckError
from attnaudit.records import CheckRecord
from attnaudit.verdict_text import failure_message, headline

if TYPE_CHECKING:
    from attnaudit.checks.policy import Policy

F = TypeVar("F", bound=Callable[..., Any])
EXAMPLE = "@audit(checks.Agreement(at_least=0.3))"


class CheckFailed(AssertionError):  # noqa: N818
    """A check that fails its case. The first line of the message holds value, interval, threshold and n."""

    def __init__(self, record: CheckRecord) -> None:
        super().__init__(failure_message(record))
        self.record = record


class InconclusiveWarning(UserWarning):
    """A gate was inconclusive and was declared with inconclusive="warn"."""


def enforce(record: CheckRecord) -> None:
    """Raises CheckFailed if the record blocks; warns if it is inconclusive and was declared to warn."""
    __tracebackhide__ = True
    if record.blocks:
        raise CheckFailed(record)
    if record.requirement is not None and record.verdict == "inconclusive" and record.inconclusive == "warn":
        warnings.warn(f"{record.check}: inconclusive: {headline(record)}", InconclusiveWarning, stacklevel=2)


def audit(*checks: Check | Policy) -> Callable[[F], F]:
    """Decorator: the test function runs once per model, data set and check, and receives `check`.

    checks: the checks themselves, or one policy as `load_policy` reads it. Sets `attnaudit_checks` on the function,
    and `attnaudit_policy` to what the policy says of itself, and marks it `attnaudit`. Raises CheckError for what is
    not a check, and for two checks with the same id, which differ in nothing but the threshold.
    """
    from attnaudit.checks.policy import Policy

    if not checks:
        raise CheckError(f"audit: no check is given. Write {EXAMPLE}.")
    policy = checks[0] if isinstance(checks[0], Policy) and len(checks) == 1 else None
    declared: list[Check] = list(policy or ())
    for position, one in enumerate(() if policy else checks, 1):
        if isinstance(one, Check):
            declared.append(one)
            continue
        if isinstance(one, Policy):
            raise CheckError(
                "audit: a policy stands alone. Put further checks into its file, or write @audit(*policy, ...)."
            )
        if isinstance(one, type) and issubclass(one, Check):
            raise CheckError(f"audit: argument {position} is the class {one.__name__}: call it, as in {EXAMPLE}.")
        if callable(one) and len(checks) == 1:
            raise CheckError(f"audit: used without checks, or with a check that was not called. Write {EXAMPLE}.")
        raise CheckError(f"audit: argument {position} is {one!r}, expected a check. Write {EXAMPLE}.")
    twice = same_ids(declared)
    if twice:
        first, second = twice
        raise CheckError(
            f"audit: arguments {first + 1} and {second + 1} are the same check '{declared[first].id}': keep one."
        )

    def declare(function: F) -> F:
        import pytest

        if hasattr(function, "attnaudit_checks"):
            raise CheckError(f"audit: {getattr(function, '__name__', function)!r} is decorated twice: join the checks.")
        function.attnaudit_checks = tuple(declared)  # type: ignore[attr-defined]
        function.attnaudit_policy = policy.record if policy is not None else None  # type: ignore[attr-defined]
        return pytest.mark.attnaudit(function)  # type: ignore[no-any-return]

    return declare


def same_ids(checks: Sequence[Check]) -> tuple[int, int] | None:
    """Positions of the first two checks with one id, or None."""
    seen: dict[str, int] = {}
    for position, one in enumerate(checks):
        if one.id in seen:
            return seen[one.id], position
        seen[one.id] = position
    return None
