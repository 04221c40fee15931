"""One case: a check on a model and a data set. What a test function gets as its argument `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnaudit.records import CheckRecord

if TYPE_CHECKING:
    from attnaudit.run.session import AuditSession


class Case:
    """A check on one model and one data set. Nothing is loaded or measured before `judge` or `enforce`.

    check: the declared check. test: the name of the pytest case. again: the command that runs it again.
    record: the verdict, once there is one.
    """

    def __init__(self, check: Any, *, model: str, data: str, session: AuditSession) -> None:
        self.check = check
        self.model = model
        self.data = data
        self.session = session
        self.test = ""
        self.again = ""
        self.record: CheckRecord | None = None

    def __repr__(self) -> str:
        return f"<Case {self.id}>"

    @property
    def id(self) -> str:
        return f"{self.model}-{self.data}-{self.check.id}"

    def judge(self) -> CheckRecord:
        """The verdict, kept for the report. Raises AuditError when the model or the data cannot be audited."""
        self.record = self.session.judge(self.check, self.model, self.data, test=self.test)
        return self.record

    def enforce(self) -> CheckRecord:
        """The verdict. Raises CheckFailed when it blocks: a gated check that did not pass."""
        __tracebackhide__ = True
        from attnaudit.checks import CheckFailed, enforce

        record = self.judge()
        try:
            enforce(record)
        except CheckFailed as failed:
            failed.args = (f"{failed}\nrun again: {self.again}",)
            raise
        return record
