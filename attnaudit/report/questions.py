"""What a run says about its policy's questions: which one failed, what may help, and where the policy was tried."""

from __future__ import annotations

from itertools import zip_longest

from attnaudit.records import CheckRecord, PolicyQuestion, RunRecord

NOT_VALIDATED = "not validated for this family"
ELSEWHERE = " (measured on other families of models)"

#: So many remedies are shown before one asks for more.
FIRST_REMEDIES = 3


def notes(run: RunRecord) -> list[str]:
    """Sentences about the policy: nothing where it says nothing of itself."""
    said = [
        f"“{question.asks}” was not answered with yes ({_verdicts(run, blocked)})."
        for question, blocked in _failed(run)
    ]
    return [*said, *families(run)]


def remedies(run: RunRecord) -> list[str]:
    """What is known to help where a question failed, in the policy's order and, where several failed, of each in turn;
    for a model of another family it is said to be measured elsewhere."""
    asked = [
        [f"What may help{'' if _measured_on(run, blocked) else ELSEWHERE}: {remedy}" for remedy in question.remedies]
        for question, blocked in _failed(run)
    ]
    return list(dict.fromkeys(one for turn in zip_longest(*asked) for one in turn if one is not None))


def remedies_in_short(run: RunRecord) -> list[str]:
    """The first remedies, and how many more the report names."""
    found = remedies(run)
    more = len(found) - FIRST_REMEDIES
    return found if more <= 0 else [*found[:FIRST_REMEDIES], f"What may help: {more} more in the report"]


def _failed(run: RunRecord) -> list[tuple[PolicyQuestion, list[CheckRecord]]]:
    """The questions that have a gated check which did not pass, with those checks."""
    policy = run.declared_policy
    asked = [
        (question, [one for one in run.checks if one.check in question.checks and one.blocks])
        for question in (policy.questions if policy else ())
    ]
    return [(question, blocked) for question, blocked in asked if blocked]


def _verdicts(run: RunRecord, blocked: list[CheckRecord]) -> str:
    several = len({(one.model, one.data, one.seed) for one in run.checks}) > 1
    return "; ".join(f"{one.check}{_of(one) if several else ''}: {one.verdict}" for one in blocked)


def _measured_on(run: RunRecord, blocked: list[CheckRecord]) -> bool:
    """Whether a blocked model is of a family that the policy, and with it its remedies, was tried on; also where the
    policy names none."""
    names = {one.model for one in blocked}
    known = run.declared_policy.validated_on if run.declared_policy else []
    return not known or any(one.name in names and one.family in known for one in run.models)


def families(run: RunRecord) -> list[str]:
    """Models of families on which the policy was never tried against known truth."""
    policy = run.declared_policy
    if policy is None or not policy.name:
        return []
    where = ", ".join(policy.validated_on) or "no family of models"
    return [
        f"{one.name}: the policy '{policy.name}' is {NOT_VALIDATED} ({one.family or 'not stated'}). "
        f"Its verdicts were tried against known truth on: {where}."
        for one in run.models
        if one.family not in policy.validated_on
    ]


def _of(one: CheckRecord) -> str:
    return f" of {one.model} on {one.data}"
