"""The Markdown summary of a comparison, for a pull request or the summary page of a CI job."""

from __future__ import annotations

from attnaudit.report.markdown import LONGEST_REASON, escape
from attnaudit.report.two_runs.comparison_view import ComparisonPage, SubjectComparison
from attnaudit.report.two_runs.difference_rows import DifferenceRow

HEAD = ("Difference", "Check", "Base", "Candidate", "Candidate − base", "Interval", "Verdict", "Instances")
RIGHT_ALIGNED = {"Base", "Candidate", "Candidate − base", "Instances"}


def comparison_markdown(page: ComparisonPage, *, report: str) -> str:
    """Return the Markdown summary of a comparison. All text of models and data is escaped.

    Args:
        page: The content of the comparison.
        report: The path of the HTML page, in a form that the reader can open.
    """
    base, candidate = page.comparison.base, page.comparison.candidate
    lines = ["## Comparison of two audits", "", f"**{escape(page.headline, LONGEST_REASON)}**", ""]
    lines += [f"{escape(note, LONGEST_REASON)}\n" for note in page.notes]
    for name, run in (("Base", base), ("Candidate", candidate)):
        models = ", ".join(f"{escape(one.name)} (sha256 {escape(one.sha256[:12])})" for one in run.models)
        lines.append(f"* {name}: run {escape(run.run)}, {models}")
    for subject in page.subjects:
        lines += _subject_lines(subject)
    lines += ["", "### Policy", "", escape(page.policy, LONGEST_REASON), ""]
    lines += [
        f"* {change.kind}: {escape(change.subject)}: {escape(change.text, LONGEST_REASON)}"
        for change in page.comparison.policy_changes or ()
    ]
    return "\n".join([*lines, "", f"Page: {escape(report)}", ""])


def _subject_lines(subject: SubjectComparison) -> list[str]:
    lines = ["", f"### {escape(subject.name)}", "", *(f"* {escape(fact, LONGEST_REASON)}" for fact in subject.facts)]
    if subject.changed:
        lines += ["", "Changed verdicts:", ""]
        lines += [f"* {escape(row.title)} ({row.role}): {_verdicts(row)}" for row in subject.changed]
    lines += ["", f"| {' | '.join(HEAD)} |"]
    lines.append(f"|{'|'.join('---:' if name in RIGHT_ALIGNED else '---' for name in HEAD)}|")
    lines += [f"| {' | '.join(_cells(row))} |" for row in (*subject.task, *subject.checks)]
    remarks = [(row, row.reason or row.warning) for row in subject.checks if row.reason or row.warning]
    lines += ["", *(f"* {escape(row.id)}: {escape(remark, LONGEST_REASON)}" for row, remark in remarks)]
    return lines + [f"* {escape(line, LONGEST_REASON)}" for line in subject.only_one]


def _cells(row: DifferenceRow) -> list[str]:
    return [
        f"{row.meaning.symbol} {row.meaning.name}",
        f"{escape(row.title)} ({escape(row.id)})" if row.id else escape(row.title),
        row.base,
        row.candidate,
        row.difference,
        f"{row.interval} ({row.level})" if row.interval else "—",
        _verdicts(row),
        row.count,
    ]


def _verdicts(row: DifferenceRow) -> str:
    shown = [f"{one.symbol} {one.name}" for one in row.verdicts]
    return " → ".join(shown if row.changed else shown[1:]) or "—"
