"""The summary that a CI job appends to its summary page: Markdown in which no text of the data can act."""

from __future__ import annotations

import re

from attnaudit.formatting import number, visible
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.report.questions import remedies_in_short
from attnaudit.report.wording import SYMBOLS, VERDICTS, outcome
from attnaudit.verdict_text import digits, interval_words, planned, requirement_symbol, shown_verdict

LONGEST = 160
#: The same of why a case has no verdict.
LONGEST_REASON = 2_000


def escape(text: str, longest: int = LONGEST) -> str:
    """Text for one Markdown table cell or line: no markup, no HTML, no line breaks, no links."""
    flat = re.sub(r"\s+", " ", visible(re.sub(r"\s+", " ", text))).strip()
    flat = flat if len(flat) <= longest else flat[: longest - 1] + "…"
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = re.sub(r"([\\`*_{}\[\]|~$!#])", r"\\\1", flat)
    return re.sub(r"(?i)\bwww\.", "www&#46;", flat.replace("://", ":&#8203;//").replace("@", "&#64;"))


def summary(run: RunRecord, *, report: str) -> str:
    """The outcome, the verdict table, the cases without a verdict and where the report is."""
    said = outcome(run)
    several = len({(c.model, c.data, c.seed) for c in run.checks}) > 1
    seeds = len({c.seed for c in run.checks}) > 1
    lines = ["## Attention audit", "", f"**{escape(said.sentence)}**", ""]
    lines += [f"{escape(note, LONGEST_REASON)}\n" for note in (*said.notes, *remedies_in_short(run))]
    for one in run.models:
        lines.append(f"* Model {escape(one.name)} (sha256 {escape(one.sha256[:12])})")
    for data in run.data:
        lines.append(
            f"* Data {escape(data.name)}: {data.audited:,} of {data.rows:,} rows (sha256 {escape(data.sha256[:12])})"
        )
    if run.checks:
        subject = ["Model", "Data"] if several else []
        heads = ["Verdict", "Check", *subject, "Value", "Interval", "Required", "References", "n", "Undefined", "Role"]
        lines += ["", "| " + " | ".join(heads) + " |"]
        right = {"Value", "Required", "n", "Undefined"}
        lines.append("|" + "|".join("---:" if head in right else "---" for head in heads) + "|")
        lines += ["| " + " | ".join(_cells(c, several=several, seeds=seeds)) + " |" for c in run.checks]
    undecided = [c for c in run.checks if c.planning is not None]
    if undecided:
        lines += ["", *(f"* {escape(f'{c.check} on {c.model}, {c.data}')}: {planned(c)}" for c in undecided)]
    if run.missing:
        lines += ["", f"**Cases without a verdict: {len(run.missing)}**", ""]
        alike: dict[tuple[str, str, str], list[str]] = {}
        for m in run.missing:
            alike.setdefault((m.model, m.data, m.reason), []).append(escape(m.check))
        lines += [
            f"* {', '.join(checks)} on {escape(model)}, {escape(data)}: {escape(reason, LONGEST_REASON)}"
            for (model, data, reason), checks in alike.items()
        ]
    lines += ["", f"Report: {escape(report)}", ""]
    return "\n".join(lines)


def _cells(check: CheckRecord, *, several: bool, seeds: bool) -> list[str]:
    model = f"{escape(check.model)}, seed {check.seed}" if seeds else escape(check.model)
    return [
        f"{SYMBOLS[shown_verdict(check)]} {VERDICTS[shown_verdict(check)]}",
        escape(check.check),
        *([model, escape(check.data)] if several else []),
        number(check.value, digits=digits(check)),
        interval_words(check),
        escape(requirement_symbol(check.requirement)) if check.requirement else "—",
        escape(", ".join(f"{r.name} {number(r.value)}" for r in check.references)) or "—",
        f"{check.n:,}",
        f"{check.n - check.n_defined:,}",
        "gate" + (", blocks" if check.blocks else "") if check.severity == "gate" else "report only",
    ]
