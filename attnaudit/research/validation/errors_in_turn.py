"""Count the errors of a policy, and test how well `threshold_rule` does on unseen mechanisms and encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.figures_schema import Errors, InTurn, LeftOut, Rate
from attnaudit.research.validation.population_schema import Entry
from attnaudit.research.validation.roc import wilson
from attnaudit.research.validation.scoring import Gate, JudgedModel, score
from attnaudit.research.validation.threshold_rule import LARGEST_FAILING_SHARE, choose

#: What is left out -> the name of the group that an entry belongs to.
GROUP: dict[Literal["mechanism", "encoder"], Callable[[Entry], str]] = {
    "mechanism": lambda entry: entry.mechanism,
    "encoder": lambda entry: entry.encoder,
}


class Rule(Protocol):
    """A rule that chooses the gates of a policy, as `threshold_rule.choose` does."""

    def __call__(self, models: Sequence[JudgedModel], candidates: Sequence[Candidate], *, seed: int) -> list[Gate]:
        """Return the gates, chosen from the tuning half of some models."""
        ...


def errors(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> Errors:
    """Return how often a policy is wrong on some models.

    Args:
        models: The models. Models of unknown truth ("trend") are ignored, and so are graded models whose attention is
            right on more than 60% of their rows or heads.
        gates: The gates of the policy, at least one.
    """

    def count(truth: str, *, alarm: bool) -> Rate:
        alarms = [
            score(model, gates).alarm
            for model in models
            if model.entry.truth == truth and (truth != "graded" or (model.entry.share or 0.0) <= LARGEST_FAILING_SHARE)
        ]
        return wilson(alarms.count(alarm), len(alarms))

    return Errors(
        false_alarms=count("faithful", alarm=True),
        misses=count("unfaithful", alarm=False),
        graded_passes=count("graded", alarm=False),
    )


def in_turn(
    models: Sequence[JudgedModel],
    candidates: Sequence[Candidate],
    what: Literal["mechanism", "encoder"],
    *,
    seed: int,
    rule: Rule = choose,
) -> InTurn | None:
    """Test the rule that chooses policies (`threshold_rule`) on mechanisms or encoders that it has not seen.

    Each mechanism, or each encoder, is left out in turn. A policy is chosen from the tuning half of the other models.
    It is then tested on all models with the mechanism or encoder that was left out.

    Args:
        models: The models of one family. Models of unknown truth ("trend") are ignored.
        candidates: The checks to choose from.
        what: What to leave out in turn: "mechanism" or "encoder".
        seed: The seed of the bootstrap intervals of areas under ROC curves.
        rule: The rule that chooses the gates, such as `threshold_rule.choose`.

    Returns:
        The errors. They are None if there are fewer than two mechanisms or encoders, or if the rule never chooses a
        gate.
    """
    group = GROUP[what]
    labelled = [model for model in models if model.entry.truth != "trend"]
    names = sorted({group(model.entry) for model in labelled} - {""})
    if len(names) < 2:
        return None
    rows = []
    for name in names:
        gates = rule([model for model in labelled if group(model.entry) != name], candidates, seed=seed)
        members = [model for model in labelled if group(model.entry) == name] if gates else []
        rows.append(LeftOut(name=name, errors=errors(members, gates), gates=[gate.text for gate in gates]))
    if not any(row.gates for row in rows):
        return None
    return InTurn(what=what, total=_sum([row.errors for row in rows]), rows=rows)


def _sum(rows: Sequence[Errors]) -> Errors:
    def total(rates: Sequence[Rate]) -> Rate:
        return wilson(sum(rate.hits for rate in rates), sum(rate.n for rate in rates))

    return Errors(
        false_alarms=total([row.false_alarms for row in rows]),
        misses=total([row.misses for row in rows]),
        graded_passes=total([row.graded_passes for row in rows]),
    )
