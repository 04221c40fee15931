"""The wording of the report: the names of verdicts and columns, and the headline and notes of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.formatting import plural
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.report.audited_rows import sampled
from attnaudit.report.gate_text import excepted_gates
from attnaudit.report.measured_causes import cause_notes
from attnaudit.report.questions import lead, notes_below_lead, policy_notes, value_below_lead
from attnaudit.report.remedies import next_steps
from attnaudit.report.two_runs.baseline_text import baseline_notes
from attnaudit.report.unvalidated import blocked_reason

VERDICT_NAMES = {
    "pass": "Pass",
    "fail": "Fail",
    "inconclusive": "Inconclusive",
    "undefined": "Undefined",
    "informational": "Informational",
}
#: Verdict -> the words that follow the number of cases with this verdict. "missing" stands for cases without a verdict.
COUNTED = {
    "pass": "passed",
    "fail": "failed",
    "inconclusive": "inconclusive",
    "undefined": "undefined",
    "informational": "informational",
    "missing": "without a verdict",
}
VERDICT_SYMBOLS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "undefined": "∅", "informational": "•"}

IMPORTANCE_NAMES = {
    "gradient.meister": "Gradient norm",
    "gradient.jain_wallace": "Gradient × input, attention held fixed",
    "input_x_gradient": "Input × gradient",
    "leave_one_out": "Leave-one-out",
}
#: Which values of a check are better -> words for the column of thresholds.
BETTER = {"at_least": "higher is better", "at_most": "lower is better", None: "—"}
#: Exit status of a run -> the reason why no gate was judged in it.
NOTHING_AUDITED = {6: "A model could not be loaded or audited", 7: "The data could not be read"}
#: Status of a run -> the verdict whose colour its headline gets.
_STATES = {
    "passed": "pass",
    "failed": "fail",
    "partial": "inconclusive",
    "running": "inconclusive",
    "informational": "undefined",
}
EFFECT_NAMES = {
    "held": "Effect of erasing the unit, with the attention held fixed",
    "live": "Effect of erasing the unit, with the attention computed again",
}
PLACE_NAMES = {"inputs": "at the inputs", "hidden": "at the hidden states"}


def shorten(text: str, limit: int) -> str:
    """Truncate a text to at most `limit` characters. A truncated text ends with an ellipsis.

    Examples:
        >>> shorten("leave-one-out", 6)
        'leave…'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def column_name(name: str) -> str:
    """Return the name of a measured column in words, with its reading if it has one. Unknown names stay unchanged.

    Examples:
        >>> column_name("leave_one_out.inputs")
        'Leave-one-out, at the inputs'
    """
    measure, _, reading = name.partition("/")
    if reading:
        return f"{column_name(measure)}, {reading}"
    if name == "attention":
        return "Attention"
    if name == "attended_tokens.kept":
        return "Kept: 80% of the attention"
    adversarial = re.fullmatch(r"adversarial\.(.+)\.attention", name)
    if adversarial:
        return f"Adversarial attention (TVD ≤ {adversarial[1]})"
    if re.fullmatch(r"retrained\..+\.attention", name):
        adversary = "attention=adversary" in name
        return f"Attention of {'the trained adversary' if adversary else 'a copy trained with another seed'}"
    effect = re.fullmatch(r"token_effect\.(held|live)(\.logits)?", name)
    if effect:
        return EFFECT_NAMES[effect[1]] + (", on the logits" if effect[2] else "")
    sampled = re.fullmatch(r"(leave_one_out\.\w+)\.sampled\.(\d+)(\.change)?", name)
    if sampled:
        return f"{column_name(sampled[1] + (sampled[3] or ''))}, for {int(sampled[2]):,} units drawn at random"
    importance = name.removesuffix(".change")
    stem, _, place = importance.rpartition(".")
    if stem in IMPORTANCE_NAMES and place in PLACE_NAMES:
        suffix = ", change of output (TVD)" if importance != name else ""
        return f"{IMPORTANCE_NAMES[stem]}, {PLACE_NAMES[place]}{suffix}"
    return name


def short_column_name(name: str) -> str:
    """Return the name of a measured column in one to three words, without its reading.

    Examples:
        >>> short_column_name("leave_one_out.inputs")
        'Leave-one-out'
    """
    name = re.sub(r"\.sampled\.\d+", "", name)
    stem, _, ending = name.partition("/")[0].rpartition(".")
    kind = name.partition("/")[0].split(".")[0]
    if kind == "adversarial":
        return "Adversarial"
    if kind == "attended_tokens":
        return "Kept"
    if kind == "token_effect":
        live = " (live)" if ".live" in name else ""
        return f"Effect{live}{', logits' if ending == 'logits' else ''}"
    if ending == "change":
        return f"{short_column_name(stem)}, TVD"
    if stem in IMPORTANCE_NAMES and ending in PLACE_NAMES:
        return IMPORTANCE_NAMES[stem].partition(",")[0] + (", hidden" if ending == "hidden" else "")
    return column_name(name.partition("/")[0])


def role(check: CheckRecord, run: RunRecord) -> str:
    """Return the role of a check in words: informational, or a gate that may be excepted or block the release."""
    if check.severity != "gate":
        return "informational"
    if check.key[:3] in excepted_gates(run):
        return "gate, excepted by the policy"
    return "gate, blocks the release" if check.blocks else "gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The decision of a run in words, with notes and remedies.

    Attributes:
        lead: Why the release is blocked, in words (see `attnaudit.report.questions.lead`); "" if no gate blocks it.
        value_below_lead: The value of the gate that `lead` is about, and its threshold; "" if there is none.
        headline: The decision in a few sentences, with the number of gates.
        state: The verdict whose colour the headline gets: "pass", "fail", "inconclusive" (the run is partial or did not
            end) or "undefined" (nothing was decided).
        notes: Sentences that explain or qualify the decision.
        notes_below_lead: The notes without the sentences that repeat what `lead` says, and without `remarks`.
        remarks: The notes about how the run was measured.
        causes: Sentences about the causes of a failure that the run measured.
        next_steps: Sentences that say what may help if a gate did not pass.
        counts: One entry for each verdict on a gate that occurs: the verdict, its name next to a number (such as
            "failed"), and the number of gates. Checks that are no gates are counted together as informational.
    """

    lead: str
    value_below_lead: str
    headline: str
    state: str
    notes: tuple[str, ...]
    notes_below_lead: tuple[str, ...]
    remarks: tuple[str, ...]
    causes: tuple[str, ...]
    next_steps: tuple[str, ...]
    counts: tuple[tuple[str, str, int], ...]


def outcome(run: RunRecord) -> Outcome:
    """Describe what a run decided. The text gives checks and counts, and never calls a model faithful."""
    gates = [check for check in run.checks if check.severity == "gate"]
    counts: Counter[str] = Counter(gate.verdict for gate in gates)
    counts["informational"] = len(run.checks) - len(gates)
    counts["missing"] = len(run.missing)
    notes = [run.problem[0].upper() + run.problem[1:]] if run.problem else []
    notes += sample_notes(run)
    return Outcome(
        lead=lead(run),
        value_below_lead=value_below_lead(run),
        headline=_headline(run),
        state=_STATES[run.status],
        notes=(*notes, *policy_notes(run), *baseline_notes(run), *measuring_notes(run)),
        notes_below_lead=(*notes, *notes_below_lead(run), *baseline_notes(run, above=lead(run))),
        remarks=tuple(measuring_notes(run)),
        causes=tuple(cause_notes(run)),
        next_steps=tuple(next_steps(run)),
        counts=tuple((verdict, words, counts[verdict]) for verdict, words in COUNTED.items() if counts[verdict]),
    )


def _headline(run: RunRecord) -> str:
    """Return the decision of a run in a few sentences."""
    gates = [check for check in run.checks if check.severity == "gate"]
    blocking = [check for check in gates if check.blocks]
    if run.status == "running":
        return "The process of this run did not end. Nothing was decided."
    if run.status == "informational" and run.gates:
        return (
            "Every gate is informational, because the policy was not validated on these families of models. Nothing "
            "was decided."
        )
    if run.status == "informational":
        what = f"{plural(len(run.checks), 'informational check')} ran." if run.checks else "No check ran."
        return f"No gate was declared, so nothing was decided. {what}"
    excepted = sum(gate.state == "excepted" for gate in run.gates)
    if run.status == "passed" and excepted:
        others = sum(gate.state == "passed" for gate in run.gates)
        passed = f"{others} passed and " if others else ""
        verb = "is" if excepted == 1 else "are"
        return f"No gate blocks this release: {passed}{excepted} {verb} excepted by the policy."
    if run.status == "passed":
        return _passed_sentence(run, gates)
    if run.status == "partial":
        left_out = len(run.gates) > len(gates)
        ran = f"Partial run: {len(gates)} of {plural(len(run.gates), 'gate')} ran." if left_out else "Partial run."
        passed = _clear_gates_sentence(gates, " that ran")
        return f"{ran} {passed} {_left_out_sentences(run)} This run therefore cannot show that the model passes."
    if run.exit_status in NOTHING_AUDITED:
        return f"{NOTHING_AUDITED[run.exit_status]}, so no gate was judged. This release is blocked."
    without = sum(gate.state == "open" for gate in run.gates)
    judged = {check.key[:3] for check in gates}
    unjudged = sum(gate.state == "open" and (gate.model, gate.data, gate.check) not in judged for gate in run.gates)
    reasons = [
        _blocking_sentence(len(gates) + unjudged, blocking) if blocking else "",
        _open_sentence(without) if without else "",
        blocked_reason(run),
    ]
    if any(reasons):
        return f"{' '.join(filter(None, reasons))} This release is blocked."
    return "The run failed for a reason other than a gate. This release is blocked."


def _open_sentence(count: int) -> str:
    return f"{plural(count, 'gate')} {'has' if count == 1 else 'have'} no verdict."


def measuring_notes(run: RunRecord) -> list[str]:
    """Return the notes on how the numbers were measured.

    If the run measured several pairs of a model and a data set, each note names its pair.
    """
    several = len(run.measured) > 1
    notes = [
        f"{record.model} on {record.data}: {note}" if several else note
        for record in run.measured
        for note in record.notes
    ]
    return list(dict.fromkeys(notes))


def _blocking_sentence(gates: int, blocking: Sequence[CheckRecord]) -> str:
    """Return a sentence with the number of gates that block the release, such as '1 of 2 gates failed.'

    Args:
        gates: The number of all gates, including those without a verdict.
        blocking: The gates that block the release.
    """
    if all(gate.verdict == "fail" for gate in blocking):
        what = "failed."
    elif len(blocking) == 1:
        what = f"is {blocking[0].verdict}."
    else:
        what = f"did not pass: {_verdict_counts(blocking)}."
    return f"The only gate {what}" if gates == 1 else f"{len(blocking)} of {gates} gates {what}"


def _passed_sentence(run: RunRecord, gates: Sequence[CheckRecord]) -> str:
    """Return a sentence about the gates of a run that passed. It says so if only a sample was audited."""
    sentence = _clear_gates_sentence(gates)
    rows = sampled(run)
    if rows:
        return f"{sentence} Only a sample was audited: {', '.join(rows)}."
    if any(gate.verdict != "pass" for gate in gates):  # the sentence says already that no gate blocks the release
        return sentence
    return f"{sentence} This audit does not block the release."


def sample_notes(run: RunRecord) -> list[str]:
    """Return a note if a run passed, but only a sample of the data was audited."""
    if run.status != "passed" or not sampled(run):
        return []
    return ["Audit all rows before the release. `attnaudit verify` refuses a sample, unless --allow-sample is given."]


def _clear_gates_sentence(gates: Sequence[CheckRecord], which: str = "") -> str:
    """Return a sentence about the verdicts of gates that do not block the release.

    Args:
        gates: The gates.
        which: A relative clause that says which gates they are, such as " that ran".
    """
    if not gates:
        return "No gate ran."
    if all(gate.verdict == "pass" for gate in gates):
        count = {1: "The only gate", 2: "Both gates"}.get(len(gates), f"All {len(gates)} gates")
        return f"{count}{which} passed."
    undecided = sum(gate.verdict != "pass" for gate in gates)
    settings = f"the settings of {'this gate' if undecided == 1 else 'these gates'} allow"
    return f"No gate{which} blocks this release: {_verdict_counts(gates)}, which {settings}."


def _verdict_counts(checks: Sequence[CheckRecord]) -> str:
    """Return the number of checks of each verdict, such as '1 passed and 2 are inconclusive'."""
    counts = Counter(check.verdict for check in checks)
    parts = [f"{counts['pass']} passed"] if counts["pass"] else []
    parts += [f"{counts['fail']} failed"] if counts["fail"] else []
    for verdict in ("inconclusive", "undefined"):
        if counts[verdict]:
            parts.append(f"{counts[verdict]} {'is' if counts[verdict] == 1 else 'are'} {verdict}")
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _left_out_sentences(run: RunRecord) -> str:
    """Return sentences with the numbers of gates and of test files that were left out of a partial run."""
    gates = sum(gate.state == "not selected" for gate in run.gates)
    files = len(run.files_left_out)
    sentences = []
    if gates:
        what = "The other gate was" if gates == 1 else f"The other {gates} gates were"
        sentences.append(f"{what} not selected.")
    if files:
        what = "1 test file was left out, so its" if files == 1 else f"{files} test files were left out, so their"
        sentences.append(f"{what} gates are unknown.")
    return " ".join(sentences)
