"""Text about the policy of a run: its questions with their answers, and the models it was not validated for."""

from __future__ import annotations

from attnaudit.formatting import left_out, number, plural
from attnaudit.records import CheckRecord, ModelRecord, PolicyQuestion, RunRecord
from attnaudit.records.check_records import NO_BETTER
from attnaudit.records.unit_names import names_of
from attnaudit.report.gate_lines import asked
from attnaudit.report.unvalidated import unvalidated_notes
from attnaudit.verdict_text import (
    digits,
    interval_range,
    interval_words,
    reason_in_full,
    required_words,
    wider_interval_that_decides,
)

#: Verdicts that block a release, the most serious one first.
BLOCKING = ("fail", "undefined", "inconclusive")


def seriousness(check: CheckRecord) -> int:
    """Return the rank of a gate by how serious its verdict is. The most serious verdict has rank 0."""
    return BLOCKING.index(check.verdict) if check.verdict in BLOCKING else len(BLOCKING)


def unseen_mixers_sentence(model: ModelRecord) -> str:
    """Return a sentence that names the modules which carry information between tokens without visible weights."""
    return f"{model.name}: {left_out(model.unseen_mixers)}. No reading of its attention shows what these modules do."


def target_sentence(model: ModelRecord) -> str:
    """Return a sentence that says which output of a model was explained. It is "" if this is the predicted class."""
    if model.target is None:
        return ""
    undefined = ""
    if model.no_decision:
        undefined = " This output is not a decision between classes, so values that need a decision are undefined."
    return f"{model.name}: the audit explains {model.target.text}.{undefined}"


def leading_gate(run: RunRecord) -> CheckRecord | None:
    """Return the gate that blocks the release and has the most serious verdict; None if no gate blocks it."""
    blocking = [check for check in run.checks if check.blocks and check.verdict in BLOCKING]
    return min(blocking, key=seriousness, default=None)


def lead(run: RunRecord) -> str:
    """Return why a release is blocked, as a headline: the most serious gate in words, without its value.

    It is "" if no gate blocks the release, or if the run decides nothing.
    """
    gate = _gate_of_lead(run)
    if gate is None:
        return ""
    subject = f" {gate.model} on {gate.data}:" if _several(run) else ""
    others = sum(check.blocks for check in run.checks) - 1
    more = f" {plural(others, 'more gate')} did not pass." if others else ""
    return f"Blocked.{subject} {_in_one_sentence(gate, run)}{more}"


def value_below_lead(run: RunRecord) -> str:
    """Return the value of the gate in the headline and its threshold, as a sentence.

    If the gate is inconclusive, the sentence has the interval that decides it. It is "" if there is no headline of
    `lead`, or if the gate has no value.
    """
    gate = _gate_of_lead(run)
    if gate is None or gate.verdict == "undefined" or gate.requirement is None:
        return ""
    name = gate.value_name[:1].upper() + gate.value_name[1:]
    value, limit = number(gate.value, digits=digits(gate)), required_words(gate.requirement)
    if gate.verdict == "inconclusive" and gate.interval is not None:
        wider = wider_interval_that_decides(gate)
        in_wider = f"{value}, {wider.level} interval {interval_range(wider, digits(gate))}" if wider else ""
        value = in_wider or interval_words(gate)
    return f"{name} {value}; the policy requires {limit}."


def _several(run: RunRecord) -> bool:
    """Return whether the checks are about several models, data sets or seeds, so that a text has to say which."""
    return len({(check.model, check.data, check.seed) for check in run.checks}) > 1


def _gate_of_lead(run: RunRecord) -> CheckRecord | None:
    """Return the gate that the headline is about; None if no gate blocks the release or the run decides nothing."""
    return leading_gate(run) if run.status == "failed" else None


def _in_one_sentence(gate: CheckRecord, run: RunRecord) -> str:
    """Return why a gate blocks the release, as a sentence."""
    asked = _asked(gate, run)
    if gate.verdict == "undefined" or gate.requirement is None:
        return f"{asked} has no answer: {reason_in_full(gate)}."
    if gate.verdict == "fail":
        return f"{gate.when_failed or f'“{gate.title}” does not hold'}."
    return f"{asked} is not decided{'' if gate.interval is not None else f': {gate.reason}'}."


def _asked(gate: CheckRecord, run: RunRecord) -> str:
    """Return the question of the policy to which a gate belongs, or else the title of the gate, in quotation marks."""
    return f"“{asked(gate.check, run) or gate.title}”"


def policy_notes(run: RunRecord) -> list[str]:
    """Return sentences that explain the outcome of a run in terms of its policy.

    The sentences are about

    * models whose explained output is not the predicted class,
    * models with modules that mix tokens without attention weights,
    * models of families on which the policy was not validated,
    * gates that pass although attention points at nothing on the instances of a predicted class, and
    * questions of the policy with a gate that blocks the release.
    """
    answers = [f"“{question.asks}” {_answer(run, blocking)}" for question, blocking in _blocked_questions(run)]
    unseen = [unseen_mixers_sentence(model) for model in run.models if model.unseen_mixers]
    targets = list(filter(None, map(target_sentence, run.models)))
    return [*targets, *unseen, *unvalidated_notes(run), *class_notes(run), *answers]


def class_notes(run: RunRecord) -> list[str]:
    """Return a sentence for each passing gate of `Pointing` with predicted classes on which attention does not point.

    A class whose effects are small has little weight in the value of the gate.
    """
    several = _several(run)
    return [
        f"{f'{gate.model} on {gate.data}: ' if several else ''}{_asked(gate, run)} passes on all "
        f"{names_of(gate.unit_names).rows} together. But on those predicted as {gate.details[NO_BETTER]}, attention "
        "points no better than equal weights do. Do not show attention as the reason for these predictions."
        for gate in run.checks
        if gate.severity == "gate" and gate.verdict == "pass" and NO_BETTER in gate.details
    ]


def notes_below_lead(run: RunRecord) -> list[str]:
    """Return the sentences of `policy_notes`, without those that repeat what `lead` says."""
    gate = leading_gate(run)
    if gate is None or not lead(run):
        return policy_notes(run)
    by_lead = [blocking for _, blocking in _blocked_questions(run) if blocking == [gate]]
    repeated = {f"{_asked(gate, run)} {_answer(run, blocking)}" for blocking in by_lead}
    rest = [note for note in policy_notes(run) if note not in repeated]
    return [gate.in_words, *rest] if repeated and gate.in_words else rest


def _blocked_questions(run: RunRecord) -> list[tuple[PolicyQuestion, list[CheckRecord]]]:
    """Return the questions with at least one gate that blocks the release, each together with these gates."""
    questions = run.declared_policy.questions if run.declared_policy else []
    blocking = [
        (question, [check for check in run.checks if check.check in question.checks and check.blocks])
        for question in questions
    ]
    return [(question, checks) for question, checks in blocking if checks]


def _answer(run: RunRecord, blocking: list[CheckRecord]) -> str:
    """Return the answer to a question, the reasons for it, and the meaning of the values of its gates.

    The answer is "No" if one of the gates that block the release failed. Otherwise it is "Unclear".
    """
    several = _several(run)
    reasons = [_shortfall(check, f" for {check.model} on {check.data}" if several else "") for check in blocking]
    answer = "No" if any(check.verdict == "fail" for check in blocking) else "Unclear"
    words = dict.fromkeys(check.in_words for check in blocking if check.in_words)
    return " ".join([f"{answer}: {'; '.join(reasons)}.", *words])


def _shortfall(check: CheckRecord, subject: str) -> str:
    """Return a clause that says why a gate did not pass.

    If it failed, the clause gives its value and its threshold. If it is undefined, the clause gives the reason.
    """
    if check.verdict == "undefined":
        return f"{check.check}{subject} is undefined ({reason_in_full(check)})"
    if check.verdict != "fail" or check.requirement is None:
        return f"{check.check}{subject} is {check.verdict}"
    value = number(check.value, digits=digits(check))
    return f"{check.value_name} {value} ({check.check}{subject}), required {required_words(check.requirement)}"
