"""The Markdown summary of a run, for a comment on a pull request and for the summary page of a CI job.

Text of models and data sets is escaped, so that it cannot act as markup.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import accumulate

from attnaudit.formatting import duration, number, plural, visible, without_commands
from attnaudit.records import BaselineComparison, CheckCost, CheckRecord, RunRecord
from attnaudit.report.audited_rows import audited_rows
from attnaudit.report.check_costs import CostLine, table_of
from attnaudit.report.gate_lines import question_and_answer
from attnaudit.report.gate_text import device_text, excepted_gates, gate_notes, identity_notes
from attnaudit.report.remedies import remedies_in_short
from attnaudit.report.wording import VERDICT_NAMES, VERDICT_SYMBOLS, outcome, role, shorten
from attnaudit.verdict_text import (
    detected,
    digits,
    headline,
    interval_words,
    planned,
    reference_name,
    requirement_symbol,
)

#: Largest number of characters of most texts in the summary.
LONGEST_TEXT = 160
#: Largest number of characters of a note, and of the reason why a case has no verdict.
LONGEST_REASON = 2_000
#: Largest number of characters of the path of the report.
LONGEST_PATH = 500
#: Text that GitHub turns into a link, a notification or an emoji: @name, #1, GH-1, :// and :name:. GitHub does this
#: after it has rendered the page, so neither a backslash nor an entity prevents it. A zero-width space after the match
#: prevents it.
LINKED = re.compile(r"(?i)@|#(?=\d)|\bgh-(?=\d)|:(?=//)|:(?=[a-z+-][\w+\\-]*:)")
RIGHT_ALIGNED = {"Value", "Earlier", "Now", "Change", "Required", "Instances", "No value"}
COST_COLUMNS = ("Forward passes", "Partial passes", "Backward passes", "Time", "Saved without it")
LAST_COLUMNS = ("Instances", "No value", "Role")
#: Largest number of characters of the summary. GitHub refuses comments of more than 65,536 characters.
MOST_CHARACTERS = 60_000
#: The lines around the part of the summary that is folded. Markdown in it needs empty lines around it.
FOLD = ("<details>", "<summary>Verdicts, reasons and what identifies the run</summary>")
UNFOLD = "</details>"


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
    """Escape characters at the start of a line that would begin a list or underline a heading, such as "-" or "1."."""
    return f"{start[0]}\\" if start[0].isdigit() else f"\\{start[0]}"


def summary(run: RunRecord, *, report: str) -> str:
    """Return the Markdown summary of a run, for a comment on a pull request or the page of a CI job.

    A line with the decision comes first. Below it are the problem that ended the run, the changes since earlier
    releases, if the run compared any, and the gates that did not pass. Everything else is folded: notes and remedies,
    the models and data, the table of verdicts, the cases without a verdict, and what identifies the run. The path of
    the report comes last.

    Args:
        run: The record of the run.
        report: The path of report.html, in a form that the reader can open.

    Returns:
        At most `MOST_CHARACTERS` characters. If lines are left out, the text says how many.
    """
    decided = outcome(run)
    comparisons = [(check, check.comparison) for check in run.checks if check.comparison is not None]
    several = len({(check.model, check.data, check.seed) for check in run.checks}) > 1
    first, *others = [escape(text, LONGEST_REASON) for text in (decided.lead, decided.headline) if text]
    decision = " ".join([f"**{VERDICT_SYMBOLS[decided.state]} {first}**", *others])
    texts = (*decided.notes_below_lead, *decided.remarks, *decided.causes, *remedies_in_short(run))
    notes = [f"{escape(text, LONGEST_REASON)}\n" for text in texts]
    problem, lines = (notes[:1], notes[1:]) if run.problem else ([], notes)  # a problem comes first among the notes
    top = ["## Attention audit", "", decision, "", *problem, *_comparison_lines(comparisons, several)]
    top += _blocking_lines(run)
    lines += [f"* Model {escape(model.name)} (sha256 {escape(model.sha256[:12])})" for model in run.models]
    lines += [
        f"* Data {escape(data.name)}: {audited_rows(data)} (sha256 {escape(data.sha256[:12])})" for data in run.data
    ]
    lines += _verdict_lines(run, several)
    gates = [check for check in run.checks if check.severity == "gate" and check.in_words]
    if gates:
        lines += ["", *(f"* {_named(check, several)}: {escape(check.in_words, LONGEST_REASON)}" for check in gates)]
    noted = [check for check in run.checks if check.note]
    if noted:
        lines += ["", *(f"* {_named(check, several)}: {escape(check.note, LONGEST_REASON)}" for check in noted)]
    undecided = [check for check in run.checks if check.planning is not None]
    if undecided:
        lines += ["", *(f"* {escape(f'{c.check} on {c.model}, {c.data}')}: {planned(c)}" for c in undecided)]
    gates = [check for check in run.checks if check.severity == "gate" and check.detectable_change is not None]
    if gates:
        lines += ["", *(f"* {_named(check, several)}: {escape(detected(check), LONGEST_REASON)}" for check in gates)]
    lines += ["", *(f"* {escape(note, LONGEST_REASON)}" for note in (*gate_notes(run), *identity_notes(run)))]
    lines += [f"* device: {escape(device_text(run.environment))}"] if run.environment is not None else []
    lines += [f"* command: {escape(shlex.join(run.command), LONGEST_REASON)}"]
    lines += [*_missing_lines(run), *_cost_lines(run, several)]
    top = _fitting(top, MOST_CHARACTERS // 3)
    folded = _fitting(lines, MOST_CHARACTERS // 2)
    return "\n".join([*top, "", *FOLD, "", *folded, "", UNFOLD, "", f"Report: {escape(report, LONGEST_PATH)}", ""])


def _fitting(lines: Sequence[str], room: int) -> list[str]:
    """Return the first lines that have at most `room` characters together, and how many lines are left out."""
    lengths = accumulate(len(line) + 1 for line in lines)
    kept = sum(length <= room for length in lengths)
    left_out = len(lines) - kept
    if not left_out:
        return list(lines)
    return [*lines[:kept], "", f"({plural(left_out, 'line')} left out here. The report shows everything.)"]


def _comparison_lines(comparisons: Sequence[tuple[CheckRecord, BaselineComparison]], several: bool) -> list[str]:
    """Return a table of the changes since earlier releases; nothing if the run compared none."""
    if not comparisons:
        return []
    subject = ["Model", "Data"] if several else []
    lines = ["**Changes since earlier releases**", ""]
    lines += _head(["Verdict", "Check", *subject, "Earlier", "Now", "Change", "Interval", "Required"])
    for check, comparison in comparisons:
        verdict, places = check.verdict, digits(check)
        sign = "+" if check.value is not None and check.value > 0 else ""
        cells = [f"{VERDICT_SYMBOLS[verdict]} {VERDICT_NAMES[verdict]}", titled(check)]
        cells += [escape(check.model), escape(check.data)] if several else []
        cells += [number(comparison.baseline, digits=places), number(comparison.candidate, digits=places)]
        cells += [sign + number(check.value, digits=places), interval_words(check), _required(check)]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _blocking_lines(run: RunRecord) -> list[str]:
    """Return the gates that block the release: what each of them measured, or why they have no verdict.

    Gates without a verdict for the same reason share a line.
    """
    blocking = [
        f"* {VERDICT_SYMBOLS[check.verdict]} {escape(question_and_answer(check, run), LONGEST_REASON)} "
        f"({escape(f'{check.check} on {check.model}, {check.data}')}): {escape(_measured(check), LONGEST_REASON)}"
        for check in run.checks
        if check.blocks and check.key[:3] not in excepted_gates(run)
    ]
    by_reason: dict[str, list[str]] = {}
    for gate in run.gates:
        if gate.state == "open":
            by_reason.setdefault(gate.reason, []).append(escape(f"{gate.check} on {gate.model}, {gate.data}"))
    return blocking + [
        f"* no verdict: {'; '.join(names)}: {escape(reason, LONGEST_REASON)}" for reason, names in by_reason.items()
    ]


def _measured(check: CheckRecord) -> str:
    """Return what a case measured; or why it is not comparable with an earlier release, and what to do."""
    not_comparable = check.comparison.not_comparable if check.comparison is not None else ""
    return not_comparable or headline(check)


def _verdict_lines(run: RunRecord, several: bool) -> list[str]:
    """Return the table of verdicts, gates first; nothing if there are none. Comparisons have their own table."""
    checks = sorted((one for one in run.checks if one.comparison is None), key=lambda one: one.severity != "gate")
    if not checks:
        return []
    seeds = len({check.seed for check in run.checks}) > 1
    subject = ["Model", "Data"] if several else []
    lines = ["", *_head(["Verdict", "Check", *subject, "Value", "Interval", "Required", "References", *LAST_COLUMNS])]
    return lines + [f"| {' | '.join(_cells(check, run, several=several, seeds=seeds))} |" for check in checks]


def _head(names: Sequence[str]) -> list[str]:
    """Return the first two lines of a table."""
    right = {*RIGHT_ALIGNED, *COST_COLUMNS}
    return [f"| {' | '.join(names)} |", f"|{'|'.join('---:' if name in right else '---' for name in names)}|"]


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
        titled(check),
        *([model, escape(check.data)] if several else []),
        number(check.value, digits=digits(check)),
        interval_words(check),
        _required(check),
        escape(", ".join(f"{reference_name(check, one)} {number(one.value)}" for one in check.references)) or "—",
        number(check.n),
        number(check.n - check.n_defined),
        role(check, run),
    ]


def _required(check: CheckRecord) -> str:
    """Return the threshold of a check with "≥" or "≤"; an em dash if it has none."""
    return escape(requirement_symbol(check.requirement)) if check.requirement else "—"


def titled(check: CheckRecord) -> str:
    """Return the title of a check with its id in brackets, escaped."""
    return f"{escape(check.title)} ({escape(check.check)})"


def _named(check: CheckRecord, several: bool) -> str:
    """Return the id of a check, with its model and data set if the run has several."""
    return escape(f"{check.check} on {check.model}, {check.data}" if several else check.check)


def _missing_lines(run: RunRecord) -> list[str]:
    """Return lines about the cases without a verdict, one line per model, data set and reason.

    A reason that `_blocking_lines` gives is not repeated.
    """
    if not run.missing:
        return []
    checks: dict[tuple[str, str, str], list[str]] = {}
    for case in run.missing:
        checks.setdefault((case.model, case.data, case.reason), []).append(escape(case.check))
    above = {gate.reason for gate in run.gates if gate.state == "open"}
    return [
        "",
        f"**Cases without a verdict: {len(run.missing)}**",
        "",
        *(
            f"* {', '.join(names)} on {escape(model)}, {escape(data)}: "
            f"{'the reason given above' if reason in above else escape(reason, LONGEST_REASON)}"
            for (model, data, reason), names in checks.items()
        ),
    ]


def _cost_lines(run: RunRecord, several: bool) -> list[str]:
    """Return a table of what each check cost, for each model and data set; nothing if the run did not count passes."""
    lines = []
    for measured in run.measured:
        costs = table_of(measured, run.checks)
        if not costs.counted or not costs.checks:
            continue
        of = f" on {escape(measured.model)}, {escape(measured.data)}" if several else ""
        lines += ["", f"**Cost of each check{of}**", "", *_head(["Check", *COST_COLUMNS])]
        for one in costs.checks:
            lines.append(_cost_row(escape(one.check), one, duration(one.own_seconds)))
        lines += [_cost_row(f"*{name}*", line, "") for name, line in costs.sums]
        lines += ["", costs.explanation]
    return lines


def _cost_row(name: str, line: CheckCost | CostLine, saved: str) -> str:
    counts = [number(count) for count in (line.passes.forward, line.passes.partial, line.passes.backward)]
    return f"| {' | '.join([name, *counts, duration(line.seconds), saved])} |"
