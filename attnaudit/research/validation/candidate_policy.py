"""Read the policy to validate: its checks, its gates and the question that each gate answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from attnaudit.checks.base import Check
from attnaudit.checks.policies.policy import load_policy
from attnaudit.errors import CheckError
from attnaudit.research.validation.candidates import candidates, direction_of
from attnaudit.research.validation.figures_schema import Question
from attnaudit.research.validation.population_schema import Family
from attnaudit.research.validation.scoring import Gate
from attnaudit.research.validation.threshold_rule import QUESTIONS

#: Family -> the name of its policy, which is installed with attnaudit.
SHIPPED_POLICIES: Mapping[Family, str] = {"pooled attention": "policy.toml", "transformer": "transformer.toml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePolicy:
    """A policy to validate.

    Attributes:
        checks: All checks of the policy, gated or not.
        gates: The gated checks with their thresholds.
        validated_on: The families that the policy states in `validated_on`.
        path: The file of the policy.
    """

    checks: tuple[Check, ...]
    gates: tuple[Gate, ...]
    validated_on: tuple[str, ...]
    path: Path

    def covers(self, family: Family) -> bool:
        """Return whether the policy is for a family: it names the family, a part of it ("FAMILY, …") or no family."""
        return not self.validated_on or any(
            name == family or name.startswith(f"{family},") for name in self.validated_on
        )


def policy_for(policies: Sequence[CandidatePolicy], family: Family) -> CandidatePolicy | None:
    """Return the policy that covers a family. Return None if there is none.

    Raises:
        CheckError: Several policies cover the family.
    """
    covering = [policy for policy in policies if policy.covers(family)]
    if len(covering) > 1:
        names = " and ".join(str(policy.path) for policy in covering)
        raise CheckError(
            f"{names} both cover the family '{family}', so it is unclear which to validate. Give one of them, or state "
            "the families of each with `validated_on` in its [policy] table."
        )
    return covering[0] if covering else None


def read_policy(path: Path) -> CandidatePolicy:
    """Read a policy from a TOML file.

    A gate answers the question "used", "points" or "enough" if the policy lists its check under that question.
    Otherwise, it answers the question of the built-in candidate with the same check id, or "evidence" if there is none.

    Raises:
        CheckError: The file cannot be read, a threshold is relative to a reference, or no check is gated.
    """
    policy = load_policy(path)
    questions: dict[str, Question] = {candidate.check.id: candidate.question for candidate in candidates(policy)}
    for declared in policy.record.questions:
        for question in QUESTIONS:
            if declared.name == question:
                questions.update(dict.fromkeys(declared.checks, question))
    gates = []
    for check in policy:
        direction = direction_of(check)
        threshold = check.at_least if direction == "at_least" else check.at_most
        if isinstance(threshold, str):
            raise CheckError(
                f"{path}: {check.id}: the threshold '{threshold}' is relative to a reference. A policy can be "
                "validated only if its thresholds are numbers. Give a number."
            )
        if check.severity == "gate" and direction is not None and threshold is not None:
            gates.append(Gate(check=check.id, question=questions[check.id], direction=direction, threshold=threshold))
    if not gates:
        raise CheckError(
            f'{path}: no check is gated, so there is no policy to validate. Set severity = "gate" for at '
            "least one check."
        )
    return CandidatePolicy(
        checks=tuple(policy), gates=tuple(gates), validated_on=tuple(policy.record.validated_on), path=path
    )


def shipped_policy(family: Family) -> Path:
    """Return the path of the policy that is installed with attnaudit for a family."""
    with as_file(files("attnaudit.run") / "templates" / SHIPPED_POLICIES[family]) as path:
        return path
