"""Read the policy to validate: its checks, its gates and the question that each gate answers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from attnaudit.checks.base import Check
from attnaudit.checks.policy import load_policy
from attnaudit.errors import CheckError
from attnaudit.research.validation.candidates import candidates, direction_of
from attnaudit.research.validation.scoring import Gate
from attnaudit.research.validation.threshold_rule import QUESTIONS
from attnaudit.research.validation.validation_schema import Question

SHIPPED_POLICY = "policy.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePolicy:
    """A policy to validate.

    Attributes:
        checks: All checks of the policy, gated or not.
        gates: The gated checks with their thresholds.
    """

    checks: tuple[Check, ...]
    gates: tuple[Gate, ...]


def read_policy(path: Path) -> CandidatePolicy:
    """Read a policy from a TOML file.

    A gate answers the question "used" or "points" if the policy lists its check under that question. Otherwise, it
    answers the question of the built-in candidate with the same check id, or "evidence" if there is none.

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
    return CandidatePolicy(checks=tuple(policy), gates=tuple(gates))


def shipped_policy() -> Path | None:
    """Return the path of the default policy that is installed with attnaudit. Return None if there is none."""
    resource = files("attnaudit.run") / "templates" / SHIPPED_POLICY
    with as_file(resource) as path:
        return path if path.is_file() else None
