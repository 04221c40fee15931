"""Declaring checks on a test function, and failing it by the record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attnaudit.checks.base import Check
from attnaudit.errors import CheckError
from attnaudit.records import CheckRecord

F = TypeVar("F", bound=Callable[..., Any])
EXAMPLE = "@audit(checks.Agreement(at_least=0.3))"


class CheckFailed(AssertionError):  # noqa: N818
    """A check that blocks. Its message is the record's: the first line holds value, threshold, interval and n."""

    def __init__(self, record: CheckRecord) -> None:
        super().__init__(record.message)
        self.record = record


class InconclusiveWarning(UserWarning):
    """A gate was inconclusive and was declared with inconclusive="warn"."""


def enforce(record: CheckRecord) -> None:
    """Raises CheckFailed if the record blocks; warns if it is inconclusive and was declared to warn."""
    __tracebackhide__ = True
    if record.blocks:
        raise CheckFailed(record)
    if record.requirement is not None and record.verdict == "inconclusive" and record.inconclusive == "warn":
        first = record.message.splitlines()[0]
        warnings.warn(f"{record.check}: inconclusive: {first}", InconclusiveWarning, stacklevel=2)


def audit(*checks: Check) -> Callable[[F], F]:
    """Decorator: the test function runs once per model, data set and check, and receives `check`.

    Sets `attnaudit_checks` on the function and marks it `attnaudit`. Raises CheckError for what is not a check, and for
    two checks with the same id, which differ in nothing but the threshold.
    """
    if not checks:
        raise CheckError(f"audit: no check is given. Write {EXAMPLE}.")
    for position, one in enumerate(checks, 1):
        if isinstance(one, Check):
            continue
        if isinstance(one, type) and issubclass(one, Check):
            raise CheckError(f"audit: argument {position} is the class {one.__name__}: call it, as in {EXAMPLE}.")
        if callable(one) and len(checks) == 1:
            raise CheckError(f"audit: used without checks, or with a check that was not called. Write {EXAMPLE}.")
        raise CheckError(f"audit: argument {position} is {one!r}, expected a check. Write {EXAMPLE}.")
    twice = same_ids(checks)
    if twice:
        first, second = twice
        raise CheckError(
            f"audit: arguments {first + 1} and {second + 1} are the same check '{checks[first].id}': keep one."
        )

    def declare(function: F) -> F:
        import pytest

        if hasattr(function, "attnaudit_checks"):
            raise CheckError(f"audit: {getattr(function, '__name__', function)!r} is decorated twice: join the checks.")
        function.attnaudit_checks = checks  # type: ignore[attr-defined]
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
