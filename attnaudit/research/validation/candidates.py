"""The checks that are tried: which question each answers, and which side is the faithful one.

A check that describes (conicity, entropy of influence) asks neither question. It is tried all the same, since only
planted models can say whether it tells right attention from wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.checks.base import Check, Parameter
from attnaudit.checks.policy import from_tables
from attnaudit.records import Direction
from attnaudit.research.validation.validation_records import Question

#: What `--quick` leaves out, and why.
COSTLY = "left out by --quick: takes as long as half of the others together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """check: without threshold, so that its record holds for any. costly: why --quick leaves it out, or "". shown: a
    policy that does not gate on it still reports it."""

    check: Check
    question: Question
    direction: Direction
    costly: str = ""
    shown: bool = False

    @property
    def title(self) -> str:
        return self.check.description.title


@dataclass(frozen=True, slots=True)
class Tried:
    """A check by the name of its class and its arguments, as in a [[check]] table."""

    name: str
    arguments: dict[str, Parameter]
    question: Question
    direction: Direction
    costly: bool
    shown: bool

    @property
    def table(self) -> dict[str, Parameter]:
        return {"name": self.name, **self.arguments, "severity": "report"}


def _try(
    name: str,
    question: Question,
    direction: Direction = "at_least",
    *,
    costly: bool = False,
    shown: bool = False,
    **arguments: Parameter,
) -> Tried:
    return Tried(name, arguments, question, direction, costly, shown)


TRIED = (
    _try("UniformFragility", "used", measure="tvd"),
    _try("UniformFragility", "used", measure="f1_drop", shown=True),
    _try("PermutationFragility", "used", measure="tvd", shown=True),
    _try("PermutationFragility", "used", measure="f1_drop"),
    _try("DecisionFlip", "used"),
    _try("TopTokenErasure", "used"),
    _try("Agreement", "points", importance="gradient", at="inputs", shown=True),
    _try("Agreement", "points", importance="gradient", at="inputs", preset="jain_wallace"),
    _try("Agreement", "points", importance="input_x_gradient", at="inputs"),
    _try("Agreement", "points", importance="leave_one_out", at="inputs", shown=True),
    _try("Agreement", "points", importance="gradient", at="hidden"),
    _try("Agreement", "points", importance="leave_one_out", at="hidden"),
    _try("Comprehensiveness", "points", operator="deletion", against="random"),
    _try("Comprehensiveness", "points", operator="deletion", against="random", measure="decision"),
    _try("Comprehensiveness", "points", operator="mask", against="random"),
    _try("Comprehensiveness", "points", operator="mask", against="random", measure="decision"),
    _try("Comprehensiveness", "points", operator="deletion", against="signed_loo"),
    _try("Sufficiency", "points", operator="deletion", against="random"),
    _try("Sufficiency", "points", operator="deletion", against="random", measure="decision"),
    _try("Sufficiency", "points", operator="mask", against="random"),
    _try("Sufficiency", "points", operator="mask", against="random", measure="decision"),
    _try("Sufficiency", "points", operator="deletion", against="signed_loo"),
    _try("InformationRanking", "evidence", shown=True),
    _try("InfluenceEntropy", "evidence", "at_most", costly=True, shown=True, of="hidden"),
    _try("AdversarialDivergence", "evidence", "at_most", shown=True, tvd=0.01),
    _try("TokenProbability", "evidence", "at_most", shown=True),
    _try("Conicity", "evidence", "at_most", shown=True),
    _try("InformationRetained", "evidence"),
    _try("ParameterRandomisation", "evidence", "at_most", of="attention"),
)


def candidates(policy: Sequence[Check] = ()) -> list[Candidate]:
    """Every check that is tried, and those of the policy that are not among them, sorted by id.

    A check of the policy takes the place of the tried one with its id, so that its own confidence counts, and keeps a
    threshold that is relative to its references: the interval is then that of the difference.
    """
    made = from_tables([one.table for one in TRIED], where="the checks that are tried")
    found: dict[str, Candidate] = {}
    for check, tried in zip(made, TRIED, strict=True):
        costly = COSTLY if tried.costly else ""
        found[check.id] = Candidate(
            check=check, question=tried.question, direction=tried.direction, costly=costly, shown=tried.shown
        )
    for check in policy:
        known = found.get(check.id)
        relative = isinstance(check.at_least, str) or isinstance(check.at_most, str)
        bare = dataclasses.replace(check, severity="report")
        if not relative:
            bare = dataclasses.replace(bare, at_least=None, at_most=None)
        direction = direction_of(check) or (known.direction if known else check.directions[0])
        found[check.id] = Candidate(check=bare, question=known.question if known else "evidence", direction=direction)
    return [found[name] for name in sorted(found)]


def direction_of(check: Check) -> Direction | None:
    """The side that the check's threshold asks for, or None without one."""
    if check.at_least is not None:
        return "at_least"
    return None if check.at_most is None else "at_most"
