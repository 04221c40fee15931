"""What a run says about its policy's questions: which one failed, what may help, and where the policy was tried."""

from __future__ import annotations

from attnaudit.records import CheckRecord, RunRecord

NOT_VALIDATED = "not validated for this family"


def notes(run: RunRecord) -> list[str]:
    """Sentences about the policy: nothing where it says nothing of itself."""
    return [*answers(run), *families(run)]


def answers(run: RunRecord) -> list[str]:
    """Per question that has a gated check which did not pass: the question, the checks, and the remedies, which for
    a model of another family are said to be measured elsewhere."""
    policy = run.declared_policy
    said = []
    several = len({(one.model, one.data, one.seed) for one in run.checks}) > 1
    for question in policy.questions if policy else ():
        blocked = [one for one in run.checks if one.check in question.checks and one.blocks]
        if not blocked:
            continue
        verdicts = "; ".join(f"{one.check}{_of(one) if several else ''}: {one.verdict}" for one in blocked)
        said.append(f"“{question.asks}” was not answered with yes ({verdicts}).")
        where = "" if _measured_on(run, blocked) else " (measured on other families of models)"
        said += [f"What may help{where}: {remedy}" for remedy in question.remedies]
    return said


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
