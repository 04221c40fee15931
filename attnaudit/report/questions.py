"""Text about the policy of a run: its questions with their answers, and the models it was not validated for."""

from __future__ import annotations

from attnaudit.formatting import number
from attnaudit.records import CheckRecord, PolicyQuestion, RunRecord
from attnaudit.report.unvalidated import unvalidated_notes
from attnaudit.verdict_text import digits, required_words


def policy_notes(run: RunRecord) -> list[str]:
    """Return sentences that explain the outcome of a run by its policy.

    There is one for each model on whose family the policy was not validated, and one for each question with a gate that
    blocks the release.
    """
    answers = [f"“{question.asks}” {_answer(run, blocking)}" for question, blocking in _blocked_questions(run)]
    return [*unvalidated_notes(run), *answers]


def _blocked_questions(run: RunRecord) -> list[tuple[PolicyQuestion, list[CheckRecord]]]:
    """Return the questions with at least one gate that blocks the release, each together with these gates."""
    questions = run.declared_policy.questions if run.declared_policy else []
    blocking = [
        (question, [check for check in run.checks if check.check in question.checks and check.blocks])
        for question in questions
    ]
    return [(question, checks) for question, checks in blocking if checks]


def _answer(run: RunRecord, blocking: list[CheckRecord]) -> str:
    """Return the answer to a question with its reasons, and with what the values of the gates mean in words.

    The answer is "No" if one of the gates that block the release failed. Otherwise it is "Unclear".
    """
    several = len({(check.model, check.data, check.seed) for check in run.checks}) > 1
    reasons = [_shortfall(check, f" for {check.model} on {check.data}" if several else "") for check in blocking]
    answer = "No" if any(check.verdict == "fail" for check in blocking) else "Unclear"
    words = dict.fromkeys(check.in_words for check in blocking if check.in_words)
    return " ".join([f"{answer}: {'; '.join(reasons)}.", *words])


def _shortfall(check: CheckRecord, subject: str) -> str:
    """Return a clause that says why a gate did not pass.

    If it failed, the clause gives its value and its threshold. Otherwise it gives its verdict.
    """
    if check.verdict != "fail" or check.requirement is None:
        return f"{check.check}{subject} is {check.verdict}"
    value = number(check.value, digits=digits(check))
    return f"{check.check}{subject} is {value}, but {required_words(check.requirement)} is required"
