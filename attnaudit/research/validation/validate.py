"""Validate a policy on models whose attention is known to be faithful or unfaithful.

All models are audited. The figures show how often the verdicts are right.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from attnaudit import __version__
from attnaudit.progress import ProgressCallback
from attnaudit.research.reproduction.remedies_file import Remedy, first_of_each_option, read_remedies
from attnaudit.research.validation.audit_population import audit_population
from attnaudit.research.validation.candidate_policy import CandidatePolicy, read_policy
from attnaudit.research.validation.candidates import Candidate, candidates
from attnaudit.research.validation.detection_rates import (
    check_figures,
    half_of,
    left_out,
    policy_figures,
    remedies,
    trends,
)
from attnaudit.research.validation.policy_writer import policy_text
from attnaudit.research.validation.population_reader import dataset_of, read_population
from attnaudit.research.validation.scoring import Gate, JudgedModel, score
from attnaudit.research.validation.threshold_rule import choose
from attnaudit.research.validation.validation_schema import SCHEMA_VERSION, ModelResult, Population, Validation

MAX_INSTANCES = 300
QUICK_INSTANCES = 120
#: The folder below --out that keeps the result of each model.
RESULTS = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """The options of a validation.

    Attributes:
        population: The folder with population.json.
        out: The folder for results.
        policy: The TOML file of the policy to validate. If it is None, the policy that the rule chooses from the tuning
            half of the population is validated.
        seed: The seed of samples, permutations and intervals.
        quick: Whether to measure fewer instances and leave costly checks out.
        jobs: The number of processes that share the work. With more than one, each process uses one thread.
        device: The torch device to measure on.
        remedies: The remedies.json files of reproductions. The chosen policy lists their remedies too.
    """

    population: Path
    out: Path
    policy: Path | None = None
    seed: int = 0
    quick: bool = False
    jobs: int = 1
    device: str = "cpu"
    remedies: Sequence[Path] = ()

    @property
    def max_instances(self) -> int:
        return QUICK_INSTANCES if self.quick else MAX_INSTANCES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audits:
    """The audits of a population.

    Attributes:
        population: The population.
        all_candidates: All candidate checks.
        judged_candidates: The candidate checks that this run judges, without those that --quick leaves out.
        results: Model folder -> result.
        failed: Model folder -> why the model could not be audited.
    """

    population: Population
    all_candidates: Sequence[Candidate]
    judged_candidates: Sequence[Candidate]
    results: Mapping[str, ModelResult]
    failed: Mapping[str, str]

    @property
    def models(self) -> list[JudgedModel]:
        entries = self.population.entries
        return [
            JudgedModel.from_result(entry, self.results[entry.folder])
            for entry in entries
            if entry.folder in self.results
        ]


def validate(options: ValidationOptions, *, progress: ProgressCallback | None = None) -> tuple[Validation, str]:
    """Audit the population, and score every check and the policy on it.

    Args:
        options: The options of the validation.
        progress: Called after each audited model. None to report no progress.

    Returns:
        The result of the validation, and the TOML text of the policy that the rule chooses from the tuning half. The
        text is empty if the rule chooses no gate.

    Raises:
        AuditError: The population, the policy or a file of remedies cannot be read, or a result cannot be written.
    """
    started, created = time.perf_counter(), datetime.now(UTC)
    reproduced = _reproduced(options.remedies)
    population = read_population(options.population)
    for entry in population.entries:
        dataset_of(entry, options.population)
    given = read_policy(options.policy) if options.policy else None
    audits = _audit(population, given, options, progress)
    models, judged_candidates = audits.models, audits.judged_candidates
    chosen = choose(models, judged_candidates, seed=options.seed)
    gates = given.gates if given else chosen
    chosen_text = _chosen_policy_text(models, judged_candidates, chosen, options.seed, reproduced) if chosen else ""
    counts = Counter(f"{model.entry.truth} {model.entry.half}".replace("_", " ") for model in models)
    validation = Validation(
        schema_version=SCHEMA_VERSION,
        created=created.isoformat(timespec="seconds"),
        attnaudit=__version__,
        population=options.population.resolve().name,
        policy=options.policy.name if options.policy else "chosen from the tuning half of this population",
        policy_sha256=hashlib.sha256(options.policy.read_bytes()).hexdigest() if options.policy else "",
        seed=options.seed,
        quick=options.quick,
        max_instances=options.max_instances,
        seconds=time.perf_counter() - started,
        measuring_seconds=sum(result.seconds for result in audits.results.values()),
        models=len(models),
        counts=dict(sorted(counts.items())),
        policy_held_out=policy_figures(half_of(models, "held_out"), gates, seed=options.seed),
        policy_tuning=policy_figures(half_of(models, "tuning"), gates, seed=options.seed),
        checks=[
            check_figures(
                models,
                candidate,
                gates,
                skipped=sum(candidate.check.id in result.skipped for result in audits.results.values()),
                seed=options.seed,
            )
            for candidate in judged_candidates
        ],
        left_out=left_out(models, judged_candidates, seed=options.seed),
        trends=trends(models, gates),
        remedies=remedies(models, gates),
        scores=[score(model, gates) for model in models],
        failed=dict(audits.failed),
        notes=[*population.notes, *_notes(audits, given, chosen)],
    )
    return validation, chosen_text


def families(models: Sequence[JudgedModel]) -> list[str]:
    """Return the names of the encoder families that have both faithful and unfaithful models.

    The names have the form that checkpoints use, such as "pooled attention, bilstm encoder".
    """
    truths: dict[str, set[str]] = {}
    for model in models:
        if model.entry.encoder:
            truths.setdefault(model.entry.encoder, set()).add(model.entry.truth)
    return [
        f"pooled attention, {name} encoder" for name in sorted(truths) if {"faithful", "unfaithful"} <= truths[name]
    ]


def _audit(
    population: Population,
    given: CandidatePolicy | None,
    options: ValidationOptions,
    progress: ProgressCallback | None,
) -> _Audits:
    all_candidates = candidates(given.checks if given else ())
    judged_candidates = [
        candidate
        for candidate in all_candidates
        if not (options.quick and candidate.costly and not _is_gated(candidate, given))
    ]
    results, failed = audit_population(
        population.entries,
        [candidate.check for candidate in judged_candidates],
        population=options.population,
        results=options.out / RESULTS,
        seed=options.seed,
        max_instances=options.max_instances,
        jobs=options.jobs,
        device=options.device,
        progress=progress,
    )
    return _Audits(
        population=population,
        all_candidates=all_candidates,
        judged_candidates=judged_candidates,
        results=results,
        failed=failed,
    )


def _is_gated(candidate: Candidate, given: CandidatePolicy | None) -> bool:
    return given is not None and any(gate.check == candidate.check.id for gate in given.gates)


def _reproduced(files: Sequence[Path]) -> list[Remedy]:
    """Return the remedies in these files. Of several remedies for the same question and option, only the first counts.

    Raises:
        ReportError: A file is missing, or is not a list of remedies.
    """
    return first_of_each_option([remedy for path in files for remedy in read_remedies(path)])


def _chosen_policy_text(
    models: Sequence[JudgedModel],
    judged_candidates: Sequence[Candidate],
    chosen: Sequence[Gate],
    seed: int,
    reproduced: Sequence[Remedy],
) -> str:
    figures = [check_figures(models, candidate, chosen, skipped=0, seed=seed) for candidate in judged_candidates]
    held_out = half_of(models, "held_out")
    gated = {gate.check for gate in chosen}
    reported = [candidate.check.id for candidate in judged_candidates if candidate.reported]
    return policy_text(
        chosen,
        judged_candidates,
        figures,
        policy_figures(held_out, chosen, seed=seed),
        name="default",
        validated_on=families(held_out),
        remedies=remedies(models, chosen),
        reproduced=reproduced,
        evidence=[check for check in reported if check not in gated],
    )


def _notes(audits: _Audits, given: CandidatePolicy | None, chosen: Sequence[Gate]) -> list[str]:
    notes = [
        f"{candidate.check.id}: {candidate.costly}"
        for candidate in audits.all_candidates
        if candidate not in audits.judged_candidates
    ]
    halves = Counter(entry.half for entry in audits.population.entries if entry.truth != "trend")
    if not halves["held_out"]:
        notes.append(
            "no labelled model is held out: the figures are those of the tuning half, and therefore too optimistic"
        )
    if not halves["tuning"]:
        notes.append(
            "no labelled model is in the tuning half: no policy is chosen, and the given policy is evaluated unchanged"
        )
    elif not chosen:
        notes.append("no policy is chosen, because no check discriminates on the tuning half")
    if given is not None and chosen:
        chosen_gates = {gate.text for gate in chosen}
        if chosen_gates != {gate.text for gate in given.gates}:
            notes.append(
                f"the gates of the policy are {'; '.join(gate.text for gate in given.gates)}; "
                f"the tuning half of this population would choose {'; '.join(sorted(chosen_gates))}"
            )
    reasons = Counter(reason for result in audits.results.values() for reason in result.skipped.values())
    notes += [f"a check could not be judged ({count} times): {reason}" for reason, count in sorted(reasons.items())]
    return notes
