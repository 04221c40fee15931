"""Text about the policy of a run: its questions with their answers, remedies, and the models it was validated for."""

from __future__ import annotations

from itertools import zip_longest

from attnaudit.formatting import number, plural
from attnaudit.model_families import covers
from attnaudit.records import CheckRecord, PolicyQuestion, RunRecord
from attnaudit.report.unvalidated import unvalidated_notes
from attnaudit.verdict_text import digits, required_words

MEASURED_ELSEWHERE = " (measured on other model families)"

#: How many remedies are shown at first. The report shows the others on request.
FIRST_REMEDIES = 3


def policy_notes(run: RunRecord) -> list[str]:
    """Return sentences that explain the outcome of a run by its policy.

    There is one for each model on whose family the policy was not validated, and one for each question with a gate that
    blocks the release.
    """
    answers = [f"“{question.asks}” {_answer(run, blocking)}" for question, blocking in _blocked_questions(run)]
    return [*unvalidated_notes(run), *answers]


def remedies(run: RunRecord) -> list[str]:
    """Return the remedies for the questions with a gate that blocks the release.

    Returns:
        The remedies in the order of the policy. If several questions have remedies, the list takes one from each
        question in turn. A note marks remedies that were measured only on families of models other than the audited
        one.
    """
    by_question = [
        [
            f"What may help{'' if _measured_on_family(run, blocking) else MEASURED_ELSEWHERE}: {remedy}"
            for remedy in question.remedies
        ]
        for question, blocking in _blocked_questions(run)
    ]
    return list(dict.fromkeys(remedy for turn in zip_longest(*by_question) for remedy in turn if remedy is not None))


def remedies_in_short(run: RunRecord) -> list[str]:
    """Return the first remedies and, if there are more, a sentence with the number of the others."""
    every = remedies(run)
    more = len(every) - FIRST_REMEDIES
    if more <= 0:
        return every
    return [*every[:FIRST_REMEDIES], f"The report lists {plural(more, 'more thing')} that may help."]


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


def _measured_on_family(run: RunRecord, blocking: list[CheckRecord]) -> bool:
    """Return whether the policy was validated on the family of a model that these gates block.

    Remedies were measured on the same families. The result is also True if the policy names no family.
    """
    names = {check.model for check in blocking}
    validated = run.declared_policy.validated_on if run.declared_policy else []
    return not validated or any(model.name in names and covers(validated, model.family) for model in run.models)
