"""The words of the report: names of verdicts and columns, and the outcome of a run in a sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.formatting import plural
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.report.questions import notes as question_notes
from attnaudit.report.questions import remedies
from attnaudit.verdict_text import shown_verdict

VERDICTS = {
    "pass": "Pass",
    "fail": "Fail",
    "inconclusive": "Inconclusive",
    "undefined": "Undefined",
    "measured": "Measured",
}
SYMBOLS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "undefined": "∅", "measured": "•"}

IMPORTANCE = {
    "gradient.meister": "Gradient norm",
    "gradient.jain_wallace": "Gradient × input, attention held fixed",
    "input_x_gradient": "Input × gradient",
    "leave_one_out": "Leave-one-out",
}

PLACES = {"inputs": "at the inputs", "hidden": "at the hidden states"}


def column(name: str) -> str:
    """A measured column in words, with the reading where it names one; an unknown one keeps its name."""
    plain, _, reading = name.partition("/")
    if reading:
        return f"{column(plain)}, {reading}"
    if name == "attention":
        return "Attention"
    found = re.fullmatch(r"adversarial\.(.+)\.attention", name)
    if found:
        return f"Adversarial attention (TVD ≤ {found[1]})"
    if re.fullmatch(r"retrained\..+\.attention", name):
        return (
            f"Attention of {'the trained adversary' if 'attention=adversary' in name else 'a copy from another seed'}"
        )
    changed = name.removesuffix(".change")
    stem, _, place = changed.rpartition(".")
    if stem in IMPORTANCE and place in PLACES:
        return f"{IMPORTANCE[stem]}, {PLACES[place]}" + (", change of output (TVD)" if changed != name else "")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The run in words. state: "pass", "fail", "inconclusive" (incomplete) or "undefined" (nothing was decided)."""

    sentence: str
    state: str
    notes: tuple[str, ...]
    remedies: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]


def _kinds(checks: Sequence[CheckRecord]) -> str:
    words = {"fail": "failed", "inconclusive": "inconclusive", "undefined": "undefined", "pass": "passed"}
    counts = Counter(c.verdict for c in checks)
    return ", ".join(f"{counts[k]} {words[k]}" for k in ("fail", "inconclusive", "undefined", "pass") if counts[k])


def _declared(gated: Sequence[CheckRecord]) -> int:
    """How many gated checks would have run, had all been selected: those of the policy for each model, data set and
    seed."""
    subjects: dict[tuple[str, str, int], int] = {}
    for one in gated:
        key = (one.model, one.data, one.seed)
        subjects[key] = max(subjects.get(key, 0), one.gated)
    return sum(subjects.values())


def outcome(run: RunRecord) -> Outcome:
    """What the run decided. It names checks and counts; it never calls a model faithful."""
    gated = [c for c in run.checks if c.severity == "gate"]
    blocking = [c for c in run.checks if c.blocks]
    missing = len(run.missing)
    of = f"{len(gated)} gated {'check' if len(gated) == 1 else 'checks'}"
    notes = []
    if blocking:
        state = "fail"
        failed = all(c.verdict == "fail" for c in blocking)
        what = "failed" if failed else f"did not pass ({_kinds(blocking)})"
        so = "this release is blocked" if run.exit_status else "pytest was told to let that go (xfail)"
        sentence = f"{len(blocking)} of {of} {what}: {so}."
        if missing:
            notes.append(f"{plural(missing, 'selected case')} {'has' if missing == 1 else 'have'} no verdict.")
    elif missing:
        state = "inconclusive"
        has = "has" if missing == 1 else "have"
        start = f"None of {of} that ran blocks" if gated else "No gated check ran"
        sentence = f"{start}, but {plural(missing, 'selected case')} {has} no verdict: the audit is incomplete."
    elif not gated:
        state = "undefined"
        sentence = (
            f"No gated check ran, so nothing was decided; {plural(len(run.checks), 'check')} measured for information."
            if run.checks
            else "No check has a verdict: nothing was decided."
        )
    elif all(c.verdict == "pass" for c in gated) and (declared := _declared(gated)) > len(gated):
        state = "inconclusive"
        sentence = f"{len(gated)} of {declared} gated checks ran, and passed; the others were not selected."
    elif all(c.verdict == "pass" for c in gated):
        state = "pass"
        sentence = "The one gated check passed." if len(gated) == 1 else f"All {of} passed."
    else:
        state = "pass"
        other = [c for c in gated if c.verdict != "pass"]
        sentence = f"None of {of} blocks this release; {_kinds(other)}, which by the check's own rule does not block."
    if run.exit_status and not blocking and not missing:
        notes.append(f"pytest ended with status {run.exit_status}: something beside these checks went wrong.")
    notes += question_notes(run)
    notes += measuring_notes(run)
    counts = Counter(shown_verdict(c) for c in run.checks)
    listed = [(k, counts[k]) for k in VERDICTS if counts[k]] + ([("missing", missing)] if missing else [])
    return Outcome(
        sentence=sentence, state=state, notes=tuple(notes), remedies=tuple(remedies(run)), counts=tuple(listed)
    )


def measuring_notes(run: RunRecord) -> list[str]:
    """How the numbers came about, of each model and data set where there are several."""
    several = len(run.measured) > 1
    said = [(f"{one.model} on {one.data}: " if several else "") + note for one in run.measured for note in one.notes]
    return list(dict.fromkeys(said))
