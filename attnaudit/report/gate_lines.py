"""The lines that the terminal shows after a run, one per gate."""

from __future__ import annotations

from dataclasses import dataclass

from attnaudit.formatting import number
from attnaudit.records import CheckRecord, GateRecord, RunRecord
from attnaudit.records.unit_names import names_of
from attnaudit.verdict_text import headline, reason_in_full

#: Verdict -> the answer to the question of the policy to which a gate belongs.
ANSWERS = {
    "pass": "Yes",
    "fail": "No",
    "inconclusive": "Unclear",
    "undefined": "No answer",
    "informational": "Not decided",
}
#: State of a gate -> the words at the beginning of its line. A gate with another state has its verdict there.
STATE_WORDS = {
    "open": "no verdict",
    "excepted": "excepted",
    "not selected": "not selected",
    "informational": "informational",
}
#: The words of lines that come first, in this order.
FIRST = ("fail", "undefined", "inconclusive", "no verdict")


@dataclass(frozen=True, slots=True)
class GateLine:
    """The line of a gate.

    Attributes:
        word: The verdict on the gate, such as "fail", or its state, such as "no verdict".
        text: The question of the policy and its answer, or else the claim of the check; then the numbers that decide
            the verdict.
    """

    word: str
    text: str


def gate_lines(run: RunRecord) -> dict[str, list[GateLine]]:
    """Return the lines of the gates, grouped by model and data set: heading -> lines. Gates that did not pass come
    first.
    """
    lines: dict[str, list[GateLine]] = {}
    for gate in run.gates:
        lines.setdefault(_heading(gate.model, gate.data, run), []).append(_line(gate, run))
    return {heading: sorted(own, key=_rank) for heading, own in lines.items()}


def _rank(line: GateLine) -> int:
    return FIRST.index(line.word) if line.word in FIRST else len(FIRST)


def _heading(model: str, data: str, run: RunRecord) -> str:
    """Return the names of a model and a data set, with the target, the number of texts and the accuracy in brackets.

    The target is left out if it is the predicted class. Facts that the run did not record are left out too.
    """
    target = next((one.target for one in run.models if one.name == model), None)
    explained = f"explained: {target.text}; " if target else ""
    measured = next((one for one in run.measured if (one.model, one.data) == (model, data)), None)
    if measured is None:
        return f"{model} on {data}"
    facts = names_of(measured.unit_names).count_of_rows(measured.instances)
    facts += f", accuracy {number(measured.accuracy)}" if measured.accuracy is not None else ""
    return f"{model} on {data} ({explained}{facts})"


def _line(gate: GateRecord, run: RunRecord) -> GateLine:
    key = (gate.model, gate.data, gate.check)
    record = next((one for one in run.checks if one.key[:3] == key), None)
    asks = asked(gate.check, run)
    if record is None:
        return GateLine(STATE_WORDS.get(gate.state, gate.state), f"{asks} ({gate.check})" if asks else gate.check)
    if gate.state in STATE_WORDS:
        return GateLine(STATE_WORDS[gate.state], f"{asks or record.title}: {headline(record)}")
    said = question_and_answer(record, run)
    allowed = "; the policy allows this" if gate.state == "passed" and record.verdict != "pass" else ""
    return GateLine(record.verdict, f"{said}: {headline(record)}{_further_reason(record)}{allowed}")


def question_and_answer(record: CheckRecord, run: RunRecord) -> str:
    """Return the question of the policy to which a gate belongs, with its answer; or else what the check claims."""
    asks = asked(record.check, run)
    return f"{asks} {ANSWERS[record.verdict]}" if asks else _claim(record)


def asked(check: str, run: RunRecord) -> str:
    """Return the question of the policy to which a check belongs; "" if it belongs to none."""
    questions = run.declared_policy.questions if run.declared_policy else []
    return next((question.asks for question in questions if check in question.checks), "")


def _further_reason(record: CheckRecord) -> str:
    """Return why the verdict is undefined, as a clause; "" if the headline or a note of the run says why."""
    in_headline = reason_in_full(record) != record.reason
    in_note = record.comparison is not None and record.comparison.not_comparable
    return "" if record.verdict != "undefined" or in_headline or in_note else f"; {record.reason}"


def _claim(record: CheckRecord) -> str:
    """Return what a check claims or, if it failed, what this says about the model."""
    return record.when_failed if record.verdict == "fail" and record.when_failed else record.title
