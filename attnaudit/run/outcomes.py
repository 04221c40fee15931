"""Collect the outcome of every case from pytest's reports. The reports stay available if a worker crashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from attnaudit.records import CheckRecord, EarlierFailure, MissingCase
from attnaudit.run.plan import GateKey, SelectedCase

WITHOUT_VERDICT = "its test ended without a verdict: call check.enforce() in the test"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a test so far.

    Attributes:
        outcome: "passed", "failed" or "skipped"; an expected failure (xfail) counts as skipped.
        reason: Why the test has no verdict, if it has none.
        cause: What caused a failure: "model", "data", or "" for any other cause.
        named: The other gates that have no verdict for the same reason. The message of the failure names them.
    """

    outcome: str
    reason: str
    cause: str = ""
    named: tuple[GateKey, ...] = ()


@dataclass(slots=True)
class Outcomes:
    """The outcomes of the cases so far.

    Attributes:
        records: The record of each (model, data, check, seed). A verdict that blocks is never replaced.
        results: Test -> its outcome, in its last attempt.
        ran: The tests whose body ran. A test that was skipped before it was judged does not count.
        earlier_failures: The failures and crashes of tests that were then run again.
        other_failures: The tests that failed and are not cases of the audit, and the test files that could not be
            collected -> why.
    """

    records: dict[tuple[str, str, str, int], CheckRecord] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    earlier_failures: list[EarlierFailure] = field(default_factory=list)
    other_failures: dict[str, str] = field(default_factory=dict)

    def add(
        self,
        test: str,
        *,
        when: str,
        outcome: str,
        reason: str,
        record: dict[str, Any] | None,
        cause: str = "",
        named: Iterable[Sequence[str]] = (),
    ) -> None:
        """Add the report of one phase of one test.

        Args:
            test: The node id of the test.
            when: "setup", "call" or "teardown"; anything else for the report of a crash.
            outcome: "passed", "failed", "skipped", or "rerun" for a failure after which the test is run again.
            reason: Why it failed or was skipped.
            record: The CheckRecord as built-in types, as xdist can send it; None if there is no verdict.
            cause: What caused the failure: "model", "data", or "" for any other cause.
            named: The model, the data set and the check of each other gate that the failure names.
        """
        if record is not None:
            self._keep(msgspec.convert(record, CheckRecord))
        before = self.results.get(test)
        if before is not None and before.outcome == "failed" and when == "setup":
            self._run_again(test, before.reason)
            before = None
        if outcome == "rerun":
            self._run_again(test, _in_phase(when, reason))
            return
        if when == "call" and (outcome != "skipped" or record is not None):
            self.ran.add(test)
        if outcome == "failed":
            gates = tuple((model, data, check) for model, data, check in named)
            self.results[test] = Result("failed", _in_phase(when, reason), cause, gates)
        elif outcome == "skipped":
            if before is None or before.outcome == "passed":
                self.results[test] = Result("skipped", reason)
        elif before is None and when == "call":
            self.results[test] = Result("passed", WITHOUT_VERDICT)

    def _keep(self, record: CheckRecord) -> None:
        """Keep the first verdict of a case, unless a later one blocks the release and the first does not."""
        known = self.records.get(record.key)
        if known is None or (record.blocks and not known.blocks):
            self.records[record.key] = record

    def _run_again(self, test: str, reason: str) -> None:
        """Note a failure after which a test is run again, and forget its outcome."""
        self.earlier_failures.append(EarlierFailure(test=test, reason=reason))
        self.results.pop(test, None)
        self.ran.discard(test)

    def only_cause(self) -> str:
        """Return the single cause of all failures, "model" or "data", if nothing was judged; otherwise ""."""
        causes = {result.cause for result in self.results.values() if result.outcome == "failed"}
        return causes.pop() if len(causes) == 1 and not self.other_failures and not self.records else ""

    def sorted_records(self, selected: Sequence[SelectedCase]) -> list[CheckRecord]:
        """List the records in the order of the selected cases, whichever worker reported first."""
        order = {case.key: i for i, case in enumerate(selected)}
        return sorted(self.records.values(), key=lambda r: (order.get(r.key[:3], len(order)), r.key))

    def missing(self, selected: Sequence[SelectedCase]) -> list[MissingCase]:
        """List the selected cases of checks that have no record, with the reason."""
        judged = {key[:3] for key in self.records}
        return [
            MissingCase(
                test=case.test,
                model=case.model,
                data=case.data,
                check=case.check,
                reason=self.results[case.test].reason if case.test in self.results else "not run",
            )
            for case in selected
            if case.check and case.key not in judged
        ]


def _in_phase(when: str, reason: str) -> str:
    return f"error in {when}: {reason}" if when in ("setup", "teardown") else reason
