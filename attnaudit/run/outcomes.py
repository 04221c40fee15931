"""What became of every case: built from the test reports, so that it survives workers and their crashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from attnaudit.records import CheckRecord, MissingCase
from attnaudit.run.run_folder import PlannedCase


@dataclass(slots=True)
class Ledger:
    """records: one per (model, data, check, seed), the latest. reasons: test -> why it gave no verdict. ran: tests that
    were not skipped. unheeded: tests that passed with a verdict that blocks."""

    records: dict[tuple[str, str, str, int], CheckRecord] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    unheeded: set[str] = field(default_factory=set)

    def add(self, test: str, *, when: str, outcome: str, reason: str, record: dict[str, Any] | None) -> None:
        """One phase of one test. record: builtins of a CheckRecord, as they cross processes."""
        if record is not None:
            found = msgspec.convert(record, CheckRecord)
            self.records[found.key] = found
            if found.blocks and outcome == "passed":
                self.unheeded.add(test)
        if outcome == "skipped":
            self.reasons[test] = f"skipped: {reason}"
        elif outcome == "failed":
            self.reasons[test] = f"error in {when}: {reason}" if when in ("setup", "teardown") else reason
        if when == "call" and (outcome != "skipped" or record is not None):
            self.ran.add(test)
            self.reasons.setdefault(test, "ended without a verdict: call check.enforce() in the test")

    def unenforced(self, planned: Sequence[PlannedCase]) -> list[str]:
        """Planned tests that ran and enforced no verdict: they have none, or passed with one that blocks."""
        silent = {case.test for case in self.missing(planned)} & self.ran
        return [case.test for case in planned if case.test in silent | self.unheeded]

    def sorted_records(self, planned: Sequence[PlannedCase]) -> list[CheckRecord]:
        """Records in the order of collection, whatever worker was first."""
        order = {(case.model, case.data, case.check): i for i, case in enumerate(planned)}
        return sorted(self.records.values(), key=lambda r: (order.get(r.key[:3], len(order)), r.key))

    def missing(self, planned: Sequence[PlannedCase]) -> list[MissingCase]:
        """Planned cases of a check that have no record, with the reason."""
        judged = {key[:3] for key in self.records}
        return [
            MissingCase(
                test=case.test,
                model=case.model,
                data=case.data,
                check=case.check,
                reason=self.reasons.get(case.test, "not run"),
            )
            for case in planned
            if case.check and (case.model, case.data, case.check) not in judged
        ]
