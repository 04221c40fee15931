"""The checks to validate, with the question and the direction of each.

Some checks answer neither question. An example is conicity, which describes the states of the model. Such a check is
validated too, because only planted models can show whether it separates faithful attention from unfaithful attention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.checks.base import Check
from attnaudit.checks.check_arguments import Parameter
from attnaudit.checks.policy import from_tables
from attnaudit.records import Direction
from attnaudit.research.validation.validation_schema import Question

#: Why --quick leaves a costly check out.
COSTLY = "left out by --quick, because it takes about half as long as all other checks together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A check to validate.

    Attributes:
        check: The check. It has no threshold, so that its record can be compared with any threshold. Only a threshold
            that is relative to a reference is kept.
        question: The question that the check answers.
        direction: "at_least" if faithful models are expected to have high values, "at_most" if low values.
        costly: Why --quick leaves the check out. It is "" if --quick includes the check.
        reported: Whether the chosen policy includes the check as evidence if the check does not become a gate.
    """

    check: Check
    question: Question
    direction: Direction
    costly: str = ""
    reported: bool = False

    @property
    def title(self) -> str:
        return self.check.title


@dataclass(frozen=True, slots=True)
class CandidateSpec:
    """A built-in candidate check.

    Attributes:
        name: The class name of the check.
        arguments: The arguments of the check, as in a [[check]] table of a policy file.
        question: The question that the check answers.
        direction: "at_least" if faithful models are expected to have high values, "at_most" if low values.
        costly: Whether --quick leaves the check out.
        reported: Whether the chosen policy includes the check as evidence if the check does not become a gate.
    """

    name: str
    arguments: dict[str, Parameter]
    question: Question
    direction: Direction
    costly: bool
    reported: bool

    @property
    def table(self) -> dict[str, Parameter]:
        return {"name": self.name, **self.arguments, "severity": "report"}


def _spec(
    name: str,
    question: Question,
    direction: Direction = "at_least",
    *,
    costly: bool = False,
    reported: bool = False,
    **arguments: Parameter,
) -> CandidateSpec:
    return CandidateSpec(name, arguments, question, direction, costly, reported)


CANDIDATE_SPECS = (
    _spec("UniformFragility", "used", measure="tvd"),
    _spec("UniformFragility", "used", measure="f1_drop", reported=True),
    _spec("PermutationFragility", "used", measure="tvd", reported=True),
    _spec("PermutationFragility", "used", measure="f1_drop"),
    _spec("DecisionFlip", "used"),
    _spec("TopTokenErasure", "used"),
    _spec("Agreement", "points", importance="gradient", at="inputs", reported=True),
    _spec("Agreement", "points", importance="gradient", at="inputs", preset="jain_wallace"),
    _spec("Agreement", "points", importance="input_x_gradient", at="inputs"),
    _spec("Agreement", "points", importance="leave_one_out", at="inputs", reported=True),
    _spec("Agreement", "points", importance="gradient", at="hidden"),
    _spec("Agreement", "points", importance="leave_one_out", at="hidden"),
    _spec("Comprehensiveness", "points", operator="deletion", against="random"),
    _spec("Comprehensiveness", "points", operator="deletion", against="random", measure="decision"),
    _spec("Comprehensiveness", "points", operator="mask", against="random"),
    _spec("Comprehensiveness", "points", operator="mask", against="random", measure="decision"),
    _spec("Comprehensiveness", "points", operator="deletion", against="signed_loo"),
    _spec("Sufficiency", "points", operator="deletion", against="random"),
    _spec("Sufficiency", "points", operator="deletion", against="random", measure="decision"),
    _spec("Sufficiency", "points", operator="mask", against="random"),
    _spec("Sufficiency", "points", operator="mask", against="random", measure="decision"),
    _spec("Sufficiency", "points", operator="deletion", against="signed_loo"),
    _spec("InformationRanking", "evidence", reported=True),
    _spec("InfluenceEntropy", "evidence", "at_most", costly=True, reported=True, of="hidden"),
    _spec("AdversarialDivergence", "evidence", "at_most", reported=True, tvd=0.01),
    _spec("TokenProbability", "evidence", "at_most", reported=True),
    _spec("Conicity", "evidence", "at_most", reported=True),
    _spec("InformationRetained", "evidence"),
    _spec("ParameterRandomisation", "evidence", "at_most", of="attention"),
)


def candidates(policy: Sequence[Check] = ()) -> list[Candidate]:
    """Return every check to validate: the built-in candidates and the checks of a policy.

    A check of the policy replaces the built-in candidate with the same id, so that the confidence level of the policy
    is used. The severity of each check becomes "report". A threshold that is a number is removed. A threshold that is
    relative to a reference is kept, because the check then computes the interval of the difference from the reference.

    Args:
        policy: The checks of the policy.

    Returns:
        The candidates, sorted by check id.
    """
    built_in = from_tables([spec.table for spec in CANDIDATE_SPECS], where="the built-in candidates")
    by_id: dict[str, Candidate] = {}
    for check, spec in zip(built_in, CANDIDATE_SPECS, strict=True):
        by_id[check.id] = Candidate(
            check=check,
            question=spec.question,
            direction=spec.direction,
            costly=COSTLY if spec.costly else "",
            reported=spec.reported,
        )
    for check in policy:
        replaced = by_id.get(check.id)
        relative = isinstance(check.at_least, str) or isinstance(check.at_most, str)
        ungated = dataclasses.replace(check, severity="report")
        if not relative:
            ungated = dataclasses.replace(ungated, at_least=None, at_most=None)
        direction = direction_of(check) or (replaced.direction if replaced else check.directions[0])
        question: Question = replaced.question if replaced else "evidence"
        by_id[check.id] = Candidate(check=ungated, question=question, direction=direction)
    return [by_id[id_] for id_ in sorted(by_id)]


def direction_of(check: Check) -> Direction | None:
    """Return the direction of a check's threshold, "at_least" or "at_most". Return None if it has no threshold."""
    if check.at_least is not None:
        return "at_least"
    return None if check.at_most is None else "at_most"
