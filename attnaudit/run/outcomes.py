"""Collect the outcome of every case from pytest's reports, which stay available if a worker crashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from attnaudit.records import CheckRecord, MissingCase
from attnaudit.run.run_folder import SelectedCase


@dataclass(slots=True)
class Outcomes:
    """The outcomes of the cases so far.

    Attributes:
        records: The latest record of each (model, data, check, seed).
        reasons: Test -> why it may have no verdict: it failed, was skipped, or judged nothing.
        ran: The tests whose body ran. A test that was skipped before it was judged does not count.
        passed_despite_block: The tests that passed although their verdict blocks.
    """

    records: dict[tuple[str, str, str, int], CheckRecord] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    passed_despite_block: set[str] = field(default_factory=set)

    def add(self, test: str, *, when: str, outcome: str, reason: str, record: dict[str, Any] | None) -> None:
        """Add the report of one phase of one test.

        Args:
            test: The node id of the test.
            when: "setup", "call" or "teardown"; anything else for the report of a crash.
            outcome: "passed", "failed" or "skipped".
            reason: Why it failed or was skipped.
            record: The CheckRecord as built-in types, as xdist can send it; None if there is no verdict.
        """
        if record is not None:
            check_record = msgspec.convert(record, CheckRecord)
            self.records[check_record.key] = check_record
            if check_record.blocks and outcome == "passed":
                self.passed_despite_block.add(test)
        if outcome == "skipped":
            self.reasons[test] = f"skipped: {reason}"
        elif outcome == "failed":
            self.reasons[test] = f"error in {when}: {reason}" if when in ("setup", "teardown") else reason
        if when == "call" and (outcome != "skipped" or record is not None):
            self.ran.add(test)
            self.reasons.setdefault(test, "ended without a verdict: call check.enforce() in the test")

    def tests_without_enforcement(self, selected: Sequence[SelectedCase]) -> list[str]:
        """List the selected tests that ran and either reached no verdict or passed although their verdict blocks."""
        without_verdict = {case.test for case in self.missing(selected)} & self.ran
        return [case.test for case in selected if case.test in without_verdict | self.passed_despite_block]

    def sorted_records(self, selected: Sequence[SelectedCase]) -> list[CheckRecord]:
        """List the records in the order of collection, whichever worker reported first."""
        order = {(case.model, case.data, case.check): i for i, case in enumerate(selected)}
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
                reason=self.reasons.get(case.test, "not run"),
            )
            for case in selected
            if case.check and (case.model, case.data, case.check) not in judged
        ]
