"""The Markdown summary of a run, for the summary page of a CI job.

Text of models and data sets is escaped, so that it cannot act as markup.
"""

from __future__ import annotations

import re
import shlex

from attnaudit.formatting import number, visible, without_commands
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.report.gate_text import gate_notes, identity_notes
from attnaudit.report.remedies import remedies_in_short
from attnaudit.report.wording import VERDICT_NAMES, VERDICT_SYMBOLS, outcome, role, shorten
from attnaudit.verdict_text import digits, interval_words, planned, requirement_symbol

#: Largest number of characters of most texts in the summary.
LONGEST_TEXT = 160
#: Largest number of characters of a note, and of the reason why a case has no verdict.
LONGEST_REASON = 2_000
#: Text that GitHub turns into a link, a notification or an emoji: @name, #1, GH-1, :// and :name:. GitHub does this
#: after it has rendered the page, so neither a backslash nor an entity prevents it. A zero-width space after the match
#: prevents it.
LINKED = re.compile(r"(?i)@|#(?=\d)|\bgh-(?=\d)|:(?=//)|:(?=[a-z+-][\w+\\-]*:)")
RIGHT_ALIGNED = {"Value", "Required", "Instances", "No value"}


def escape(text: str, longest: int = LONGEST_TEXT) -> str:
    """Escape a text for one line or table cell of Markdown.

    The result contains no markup, line breaks, links or commands of CI systems.

    Args:
        text: Any text.
        longest: Largest number of characters of the text. A longer text is shortened before it is escaped.
    """
    flat = re.sub(r"\s+", " ", visible(re.sub(r"\s+", " ", text))).strip()
    flat = shorten(flat, longest)
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = re.sub(r"([\\`*_{}\[\]|~$!#])", r"\\\1", flat)
    flat = LINKED.sub(r"\g<0>&#8203;", flat)
    flat = re.sub(r"^([-+=]|\d{1,9}(?=[.)]))", _escaped_block, flat)
    return without_commands(re.sub(r"(?i)\bwww\.", "www&#46;", flat))


def _escaped_block(start: re.Match[str]) -> str:
    """Escape a match at the start of a line that would begin a list or underline a heading, such as "-" or "1."."""
    return f"{start[0]}\\" if start[0].isdigit() else f"\\{start[0]}"


def summary(run: RunRecord, *, report: str) -> str:
    """Return the Markdown summary of a run.

    It contains the outcome, the models and data, the table of verdicts, notes on the gates, the cases without a
    verdict, and the path of the report.

    Args:
        run: The record of the run.
        report: The path of report.html, in a form that the reader can open.
    """
    decided = outcome(run)
    several = len({(check.model, check.data, check.seed) for check in run.checks}) > 1
    seeds = len({check.seed for check in run.checks}) > 1
    lines = ["## Attention audit", "", f"**{escape(decided.headline)}**", ""]
    lines += [f"{escape(note, LONGEST_REASON)}\n" for note in (*decided.notes, *remedies_in_short(run))]
    lines += [f"* Model {escape(model.name)} (sha256 {escape(model.sha256[:12])})" for model in run.models]
    lines += [
        f"* Data {escape(data.name)}: {number(data.audited)} of {number(data.rows)} rows "
        f"(sha256 {escape(data.sha256[:12])})"
        for data in run.data
    ]
    if run.checks:
        subject = ["Model", "Data"] if several else []
        head = ["Verdict", "Check", *subject, "Value", "Interval", "Required", "References"]
        head += ["Instances", "No value", "Role"]
        lines += ["", f"| {' | '.join(head)} |"]
        lines.append(f"|{'|'.join('---:' if name in RIGHT_ALIGNED else '---' for name in head)}|")
        lines += [f"| {' | '.join(_cells(check, run, several=several, seeds=seeds))} |" for check in run.checks]
    gates = [check for check in run.checks if check.severity == "gate" and check.in_words]
    if gates:
        lines += ["", *(f"* {_named(check, several)}: {escape(check.in_words, LONGEST_REASON)}" for check in gates)]
    undecided = [check for check in run.checks if check.planning is not None]
    if undecided:
        lines += ["", *(f"* {escape(f'{c.check} on {c.model}, {c.data}')}: {planned(c)}" for c in undecided)]
    lines += ["", *(f"* {escape(note, LONGEST_REASON)}" for note in (*gate_notes(run), *identity_notes(run)))]
    lines += [f"* command: {escape(shlex.join(run.command), LONGEST_REASON)}"]
    lines += [*_missing_lines(run), "", f"Report: {escape(report)}", ""]
    return "\n".join(lines)


def _cells(check: CheckRecord, run: RunRecord, *, several: bool, seeds: bool) -> list[str]:
    """Return the cells of a check in the table of verdicts.

    Args:
        check: The record of the check.
        run: The record of the run.
        several: Whether the table has columns for the model and the data set.
        seeds: Whether the column for the model also gives the seed.
    """
    model = f"{escape(check.model)}, seed {check.seed}" if seeds else escape(check.model)
    verdict = check.verdict
    return [
        f"{VERDICT_SYMBOLS[verdict]} {VERDICT_NAMES[verdict]}",
        escape(check.check),
        *([model, escape(check.data)] if several else []),
        number(check.value, digits=digits(check)),
        interval_words(check),
        escape(requirement_symbol(check.requirement)) if check.requirement else "—",
        escape(", ".join(f"{reference.name} {number(reference.value)}" for reference in check.references)) or "—",
        number(check.n),
        number(check.n - check.n_defined),
        role(check, run),
    ]


def _named(check: CheckRecord, several: bool) -> str:
    """Return the id of a check, with its model and data set if the run has several."""
    return escape(f"{check.check} on {check.model}, {check.data}" if several else check.check)


def _missing_lines(run: RunRecord) -> list[str]:
    """Return lines about the cases without a verdict, one line per model, data set and reason."""
    if not run.missing:
        return []
    checks: dict[tuple[str, str, str], list[str]] = {}
    for case in run.missing:
        checks.setdefault((case.model, case.data, case.reason), []).append(escape(case.check))
    return [
        "",
        f"**Cases without a verdict: {len(run.missing)}**",
        "",
        *(
            f"* {', '.join(names)} on {escape(model)}, {escape(data)}: {escape(reason, LONGEST_REASON)}"
            for (model, data, reason), names in checks.items()
        ),
    ]
