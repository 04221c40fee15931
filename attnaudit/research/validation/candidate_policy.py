"""The policy that is tried: its checks, and its gates with the question each answers."""

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

SHIPPED = "policy.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    checks: tuple[Check, ...]
    gates: tuple[Gate, ...]


def read_policy(path: Path) -> Given:
    """The policy of a TOML file. Raises CheckError where nothing in it is gated, or it cannot be read."""
    checks = load_policy(path)
    questions = {one.check.id: one.question for one in candidates(checks)}
    for asked in checks.record.questions:
        for question in QUESTIONS:
            if asked.name == question:
                questions.update(dict.fromkeys(asked.checks, question))
    gates = []
    for one in checks:
        direction = direction_of(one)
        at = one.at_least if direction == "at_least" else one.at_most
        if isinstance(at, str):
            raise CheckError(f"{path}: {one.id}: a policy is tried by thresholds that are numbers, but got '{at}'.")
        if one.severity == "gate" and direction is not None and at is not None:
            gates.append(Gate(check=one.id, question=questions[one.id], direction=direction, threshold=at))
    if not gates:
        raise CheckError(f'{path}: no check is gated, so there is no policy to try. Give one severity = "gate".')
    return Given(checks=tuple(checks), gates=tuple(gates))


def shipped_policy() -> Path | None:
    """The default policy as it is installed; None in a version that ships none."""
    found = files("attnaudit.run") / "templates" / SHIPPED
    with as_file(found) as path:
        return path if path.is_file() else None
