"""Score the checks and the policy of one family of models, and write the policy that `threshold_rule` chooses."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnaudit.research.reproduction.remedies_file import Remedy
from attnaudit.research.validation import figure_text
from attnaudit.research.validation.candidate_policy import CandidatePolicy, shipped_policy
from attnaudit.research.validation.candidates import NOT_QUICK, Candidate
from attnaudit.research.validation.detection_rates import check_figures, half_of, policy_figures, remedies, trends
from attnaudit.research.validation.errors_in_turn import errors, in_turn
from attnaudit.research.validation.figures_schema import InTurn
from attnaudit.research.validation.graded_truth import guarantee, outcomes_by_share, rank_correlations
from attnaudit.research.validation.policy_writer import PolicyBase, policy_text
from attnaudit.research.validation.population_schema import Entry, Family
from attnaudit.research.validation.scoring import Gate, JudgedModel, score
from attnaudit.research.validation.threshold_rule import choose
from attnaudit.research.validation.validation_schema import FamilyFigures, ModelResult

#: The name of a policy in the figures if it has no file, because the rule (`threshold_rule`) chose its gates.
FROM_RULE = "chosen from the tuning half of this population"
#: A chosen policy may claim a whole family only if each of these was left out in turn.
LEFT_OUT: tuple[Literal["mechanism", "encoder"], ...] = ("mechanism", "encoder")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedFamily:
    """The audits of the models of one family.

    Attributes:
        family: The family.
        entries: The entries of the family in the population.
        given: The policy to validate. None to validate the policy that `threshold_rule` chooses.
        all_candidates: All candidate checks of the family.
        judged_candidates: The candidate checks that were judged, without those that --quick leaves out.
        results: Name of an entry -> result. Models that could not be audited have none.
    """

    family: Family
    entries: Sequence[Entry]
    given: CandidatePolicy | None
    all_candidates: Sequence[Candidate]
    judged_candidates: Sequence[Candidate]
    results: Mapping[str, ModelResult]

    @property
    def models(self) -> list[JudgedModel]:
        return [
            JudgedModel.from_result(entry, self.results[entry.name])
            for entry in self.entries
            if entry.name in self.results
        ]


def score_family(audited: AuditedFamily, *, seed: int, reproduced: Sequence[Remedy]) -> tuple[FamilyFigures, str]:
    """Score the checks and the policy of a family.

    Args:
        audited: The audits of the family.
        seed: The seed of the bootstrap intervals of areas under ROC curves.
        reproduced: Remedies from reproductions of papers, for the chosen policy of pooled models.

    Returns:
        The figures, whose field `looks` is still 0, and the TOML text of the policy that `threshold_rule` chooses from
        the tuning half. The text is empty if no gate is chosen.
    """
    models, candidates, given = audited.models, audited.judged_candidates, audited.given
    chosen = choose(models, candidates, seed=seed)
    gates = list(given.gates) if given else chosen
    held_out = half_of(models, "held_out")
    turns = [turn for what in LEFT_OUT if (turn := in_turn(models, candidates, what, seed=seed)) is not None]
    counts = Counter(f"{model.entry.truth} {model.entry.half}".replace("_", " ") for model in models)
    figures = FamilyFigures(
        family=audited.family,
        policy=given.path.name if given else FROM_RULE,
        policy_sha256=hashlib.sha256(given.path.read_bytes()).hexdigest() if given else "",
        gates=[gate.text for gate in gates],
        validated_on=_validated_on(audited),
        basis=_basis(models, gates, turns, by_rule=given is None) if gates else [],
        models=len(models),
        counts=dict(sorted(counts.items())),
        held_out=policy_figures(held_out, gates, seed=seed),
        tuning=policy_figures(half_of(models, "tuning"), gates, seed=seed),
        held_out_errors=errors(held_out, gates) if gates else None,
        in_turn=turns,
        checks=[
            check_figures(models, candidate, gates, skipped=_skipped(audited, candidate), seed=seed)
            for candidate in candidates
        ],
        correlations=rank_correlations(models, candidates, gates),
        outcomes=outcomes_by_share(models, gates) if gates else [],
        guarantee=guarantee(models, gates),
        trends=trends(models, gates),
        remedies=remedies(models, gates),
        scores=[score(model, gates) for model in models],
        looks=0,
        notes=_notes(audited, chosen),
    )
    return figures, _chosen_text(audited, chosen, turns, seed, reproduced) if chosen else ""


def gates_sha256(gates: Sequence[str]) -> str:
    """Return a hash of the gates of a policy that has no file."""
    return hashlib.sha256("\n".join(gates).encode()).hexdigest()


def _chosen_text(
    audited: AuditedFamily, chosen: Sequence[Gate], turns: Sequence[InTurn], seed: int, reproduced: Sequence[Remedy]
) -> str:
    models, candidates = audited.models, audited.judged_candidates
    figures = [check_figures(models, candidate, chosen, skipped=0, seed=seed) for candidate in candidates]
    return policy_text(
        chosen,
        candidates,
        figures,
        policy_figures(half_of(models, "held_out"), chosen, seed=seed),
        validated_on=_validated_on(audited),
        basis=_basis(models, chosen, turns, by_rule=True),
        base=PolicyBase.of(shipped_policy(audited.family)),
        reproduced=reproduced if audited.family == "pooled attention" else (),
    )


def _validated_on(audited: AuditedFamily) -> list[str]:
    return [audited.family] if _both_truths(half_of(audited.models, "held_out")) else []


def _basis(
    models: Sequence[JudgedModel], gates: Sequence[Gate], turns: Sequence[InTurn], *, by_rule: bool
) -> list[str]:
    """Return what a policy was validated on and how often it was wrong, one text per line of a comment.

    Args:
        models: The models of one family.
        gates: The gates of the policy.
        turns: The errors of the policies that `threshold_rule` chooses if each mechanism or encoder is left out in
            turn.
        by_rule: Whether `threshold_rule` chose the gates from the tuning half of these models.
    """
    labelled = [model for model in models if model.entry.truth != "trend"]
    tuning, held_out = half_of(labelled, "tuning"), half_of(labelled, "held_out")
    encoders = sorted({model.entry.encoder for model in labelled} - {""})
    mechanisms = [len({model.entry.mechanism for model in half}) for half in (tuning, held_out)]
    chosen = f"Chosen from {len(tuning)} models with {mechanisms[0]} mechanisms; validated" if by_rule else "Validated"
    lines = [
        f"{chosen} on {len(held_out)} {'other' if by_rule else 'held-out'} models with {mechanisms[1]} mechanisms.",
        f"Encoders: {', '.join(encoders) or 'not stated'}.",
    ]
    lines += [f"Held out: {phrase}." for phrase in figure_text.error_phrases(errors(held_out, gates))]
    for turn in turns:
        phrases = figure_text.error_phrases(turn.total)
        lines += [f"Each {turn.what} left out in turn: {phrase}." for phrase in phrases]
    found = guarantee(models, gates)
    return [*lines, f"{found.sentence}."] if found is not None else lines


def _both_truths(models: Sequence[JudgedModel]) -> bool:
    return {"faithful", "unfaithful"} <= {model.entry.truth for model in models}


def _skipped(audited: AuditedFamily, candidate: Candidate) -> int:
    return sum(candidate.check.id in result.skipped for result in audited.results.values())


def _notes(audited: AuditedFamily, chosen: Sequence[Gate]) -> list[str]:
    given = audited.given
    left_out = [c.check.id for c in audited.all_candidates if c not in audited.judged_candidates]
    notes = [f"{len(left_out)} checks {NOT_QUICK}: {', '.join(left_out)}"] if left_out else []
    halves = Counter(entry.half for entry in audited.entries if entry.truth != "trend")
    if not halves["held_out"]:
        notes.append(
            "no labelled model is held out: the figures are those of the tuning half, and therefore too optimistic"
        )
    if not halves["tuning"]:
        notes.append(
            "no labelled model is in the tuning half: no policy is chosen, and the given policy is evaluated unchanged"
        )
    elif not chosen:
        notes.append("no policy is chosen, because no possible gate separates the models of the tuning half well")
    elif len(chosen) == 1:
        notes.append(f"the chosen policy asks only one question ('{chosen[0].question}')")
    if given is not None and chosen:
        chosen_gates = {gate.text for gate in chosen}
        if chosen_gates != {gate.text for gate in given.gates}:
            notes.append(
                f"the gates of the policy are {'; '.join(gate.text for gate in given.gates)}; "
                f"from the tuning half of this population, the rule would choose {'; '.join(sorted(chosen_gates))}"
            )
    reasons = Counter(reason for result in audited.results.values() for reason in result.skipped.values())
    notes += [f"a check could not be judged ({count} times): {reason}" for reason, count in sorted(reasons.items())]
    return notes
