"""Functions that run the quick or the full conformance suite on an adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.conformance.contract import BrokenContractError
from attnaudit.conformance.suite import NotSelectedError, Subject, cases
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from attnaudit.records import ConformanceResult


def quick(adapter: ModelAdapter, instances: Sequence[Instance]) -> list[ConformanceResult]:
    """Run the applicable checks of the quick suite on a few instances.

    Args:
        adapter: The adapter to check.
        instances: The instances to select from.

    Returns:
        One result per check that applies. The outcome of each is "pass".

    Raises:
        AdapterError: A check fails. The message lists the failed checks and says how to fix the adapter. If a basic
            check fails, the checks after it are not run.
        DataError: `instances` is empty, or the model cannot read an instance.
    """
    results: list[ConformanceResult] = []
    cause: BaseException | None = None
    for case in cases(Subject("the model", lambda: adapter, instances, thorough=False)):
        try:
            results.append(ConformanceResult(check=case.check.name, outcome="pass", detail=case.run()))
        except NotSelectedError:
            continue
        except BrokenContractError as broken:
            cause = cause or broken.__cause__
            results.append(ConformanceResult(check=case.check.name, outcome="fail", detail=str(broken)))
            if case.check.basic:
                break
    _raise_failed(results, "The model breaks the adapter contract and is not audited", cause)
    return results


def full(
    adapter: ModelAdapter, instances: Sequence[Instance], *, expected: Mapping[str, str] | None = None
) -> list[ConformanceResult]:
    """Run every check of the full suite.

    Args:
        adapter: The adapter to check.
        instances: The instances to select from.
        expected: Name of a check -> the reason why it is expected to fail. If such a check passes, its outcome is
            "fail".

    Returns:
        One result per check. The outcome is "pass", "fail" or "skip". It is "skip" if the check does not apply, if the
        check fails as expected, or if it was not run because a basic check fails.

    Raises:
        CheckError: `expected` names an unknown check or gives no reason.
        DataError: `instances` is empty, or the model cannot read an instance.
    """
    return [case.result() for case in cases(Subject("the model", lambda: adapter, instances), expected)]


def check_adapter(
    adapter: ModelAdapter,
    instances: Sequence[Instance] | None = None,
    *,
    expected: Mapping[str, str] | None = None,
) -> list[ConformanceResult]:
    """Run the full suite, and raise an error if a check fails.

    Args:
        adapter: The adapter to check.
        instances: The instances to select from. None for movie reviews of many lengths.
        expected: Name of a check -> the reason why it is expected to fail. If such a check passes, its outcome is
            "fail".

    Returns:
        One result per check. The outcome of each is "pass" or "skip" (see `full`).

    Raises:
        AdapterError: A check fails. The message lists the failed checks and says how to fix the adapter.
        CheckError: `expected` names an unknown check or gives no reason.
        DataError: `instances` is empty, or the model cannot read an instance.
    """
    results = [case.result() for case in cases(Subject("the model", lambda: adapter, instances), expected)]
    _raise_failed(results, f"{type(adapter).__name__} breaks the adapter contract", None)
    return results


def _raise_failed(results: Sequence[ConformanceResult], head: str, cause: BaseException | None) -> None:
    failed = [one for one in results if one.outcome == "fail"]
    if failed:
        raise AdapterError(
            f"{head} ({', '.join(one.check for one in failed)}):",
            lines=[f"  {one.check}: {one.detail}" for one in failed],
        ) from cause
