"""One case of an audit: a check on one model and one data set. Test functions get it as the argument `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnaudit.formatting import terminal_safe
from attnaudit.records import CheckRecord

if TYPE_CHECKING:
    from attnaudit.run.session import AuditSession

#: The beginning of the last line of a failure message, before the command that runs the case again.
RUN_AGAIN = "run again: "


class Case:
    """A check on one model and one data set. Nothing is loaded or measured until it is judged.

    Attributes:
        check: The declared check.
        model: The id of the model.
        data: The id of the data set.
        session: The session that measures and judges.
        test: The node id of the pytest test.
        rerun_command: The command that runs this case again.
        record: The verdict and its evidence; None until the case is judged.
    """

    def __init__(self, check: Any, *, model: str, data: str, session: AuditSession) -> None:
        self.check = check
        self.model = model
        self.data = data
        self.session = session
        self.test = ""
        self.rerun_command = ""
        self.record: CheckRecord | None = None

    def __repr__(self) -> str:
        return f"<Case {self.id}>"

    @property
    def id(self) -> str:
        """The id that pytest shows in brackets: model-data-check."""
        return f"{self.model}-{self.data}-{self.check.id}"

    def judge(self) -> CheckRecord:
        """Measure if needed, and return the verdict. Unlike `enforce`, this does not fail the test.

        Returns:
            The verdict and its evidence, which the report shows too.

        Raises:
            AuditError: The model or the data cannot be audited.
        """
        self.record = self.session.judge(self.check, self.model, self.data, test=self.test)
        return self.record

    def enforce(self) -> CheckRecord:
        """Measure if needed, and fail the test if the verdict blocks the release.

        Returns:
            The verdict and its evidence.

        Raises:
            CheckFailed: The verdict blocks the release.
            AuditError: The model or the data cannot be audited.
        """
        __tracebackhide__ = True
        from attnaudit.checks import CheckFailed, enforce

        record = self.judge()
        try:
            enforce(record)
        except CheckFailed as failed:
            failed.args = (f"{failed}\n{RUN_AGAIN}{terminal_safe(self.rerun_command)}",)
            raise
        return record
