"""The tables of results in the Markdown files. All text of models and data sets in them is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnaudit.formatting import number
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.report.markdown import escape
from attnaudit.report.wording import VERDICT_NAMES, role
from attnaudit.verdict_text import digits, interval_words, requirement_symbol

#: What a result means, for readers who have only the file that contains it.
WHAT_A_PASS_MEANS = (
    "A pass means that these checks passed on these data. It does not mean that the attention of the model is faithful "
    "in general."
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, whose cells must already be escaped."""
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join('---' for _ in head)}|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def results_table(run: RunRecord) -> list[str]:
    """Return a table of the checks, gates first, and a table of the gates that are excepted or have no verdict."""
    head = ("Check", "Data", "Verdict", "Value", "Interval", "Confidence", "Required", "n", "No value", "Role")
    lines = table(head, [_row(record, run) for record in sorted(run.checks, key=lambda one: one.severity != "gate")])
    without = [gate for gate in run.gates if gate.state in ("open", "excepted")]
    if without:
        lines += ["", "Gates that are excepted or have no verdict:", ""]
        cells = [(escape(g.check), escape(g.data), g.state, escape(g.reason, 2_000)) for g in without]
        lines += table(("Check", "Data", "State", "Reason"), cells)
    return lines


def task_table(run: RunRecord) -> list[str]:
    """Return a table with the accuracy and macro F1 of the model on each data set; nothing without labels."""
    rows = [
        (escape(one.data), number(one.accuracy, digits=3), number(one.macro_f1, digits=3), number(one.labelled))
        for one in run.measured
        if one.accuracy is not None
    ]
    return table(("Data", "Accuracy", "Macro F1", "Labelled texts"), rows) if rows else []


def _row(record: CheckRecord, run: RunRecord) -> list[str]:
    return [
        escape(record.check),
        escape(record.data),
        VERDICT_NAMES[record.verdict],
        "undefined" if record.value is None else number(record.value, digits=digits(record)),
        interval_words(record),
        "—" if record.interval is None else record.interval.level,
        escape(requirement_symbol(record.requirement)) if record.requirement else "—",
        number(record.n_defined),
        number(record.n - record.n_defined),
        role(record, run),
    ]
