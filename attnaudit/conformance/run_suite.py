"""The plain front end: the quick form that runs before every audit, and the full one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.conformance.contract import BrokenContractError
from attnaudit.conformance.suite import NotSelectedError, Subject, cases
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from attnaudit.records import ConformanceResult


def quick(adapter: ModelAdapter, instances: Sequence[Instance]) -> list[ConformanceResult]:
    """The checks of the quick form that apply, on a few instances. Raises AdapterError naming all that fail, each with
    its mend."""
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
    """Every check, in its thorough form. "skip" where the adapter's capabilities do not select it, where it fails as
    expected, and where a basic check failed before it.

    expected: check -> the reason why it is expected to fail; one that then passes has failed. Raises CheckError for an
    unknown name there, DataError for instances that the model cannot read."""
    return [case.result() for case in cases(Subject("the model", lambda: adapter, instances), expected)]


def check_adapter(
    adapter: ModelAdapter,
    instances: Sequence[Instance] | None = None,
    *,
    expected: Mapping[str, str] | None = None,
) -> list[ConformanceResult]:
    """As `full`, on movie reviews of many lengths unless instances are given. Raises AdapterError that lists all that
    fails."""
    found = [case.result() for case in cases(Subject("the model", lambda: adapter, instances), expected)]
    _raise_failed(found, f"{type(adapter).__name__} breaks the adapter contract", None)
    return found


def _raise_failed(results: Sequence[ConformanceResult], head: str, cause: BaseException | None) -> None:
    failed = [one for one in results if one.outcome == "fail"]
    if failed:
        lines = "\n".join(f"  {one.check}: {one.detail}" for one in failed)
        raise AdapterError(f"{head} ({', '.join(one.check for one in failed)}):\n{lines}") from cause
