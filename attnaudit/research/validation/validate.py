"""Validate the policies on models whose attention is known to be faithful or unfaithful.

All models are audited. The figures show how often the verdicts are right, separately for each family of models.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from attnaudit import __version__
from attnaudit.checks.base import Check
from attnaudit.errors import invalid_input
from attnaudit.progress import ProgressCallback
from attnaudit.research.reproduction.remedies_file import Remedy, first_of_each_option, read_remedies
from attnaudit.research.validation.audit_population import audit_population
from attnaudit.research.validation.candidate_policy import CandidatePolicy, policy_for, read_policy
from attnaudit.research.validation.candidates import candidates
from attnaudit.research.validation.invariances import measure_invariances
from attnaudit.research.validation.looks_log import log_look
from attnaudit.research.validation.policy_writer import written_policy
from attnaudit.research.validation.population_reader import dataset_of, read_population
from attnaudit.research.validation.population_schema import FAMILIES, Family, Population
from attnaudit.research.validation.score_family import AuditedFamily, gates_sha256, score_family
from attnaudit.research.validation.validation_schema import SCHEMA_VERSION, FamilyFigures, Look, Validation

MAX_INSTANCES = 300
QUICK_INSTANCES = 100
#: The folder below --out that keeps the result of each model.
RESULTS = "measured"
#: Family -> the file of the given policy, with the figures of this run.
VALIDATED: Mapping[Family, str] = {
    "pooled attention": "validated_policy.toml",
    "transformer": "validated_transformer.toml",
}
#: Family -> the file of the policy that the rule chooses.
CHOSEN: Mapping[Family, str] = {"pooled attention": "chosen_policy.toml", "transformer": "chosen_transformer.toml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """The options of a validation.

    Attributes:
        population: The folder with population.json.
        out: The folder for results.
        policies: The TOML files of the policies to validate. If none of them covers a family, the policy that
            `threshold_rule` chooses from the tuning half is validated for this family.
        seed: The seed of samples, permutations and intervals.
        quick: Whether to measure fewer instances and fewer checks.
        jobs: The number of processes that share the work. With more than one, each process uses one thread.
        device: The torch device to measure on.
        invariances: Whether to measure how much the values of gates change under changes that make a model no more and
            no less faithful.
        remedies: The remedies.json files of reproductions. The chosen policy lists their remedies too.
    """

    population: Path
    out: Path
    policies: Sequence[Path] = ()
    seed: int = 0
    quick: bool = False
    jobs: int = 1
    device: str = "cpu"
    invariances: bool = True
    remedies: Sequence[Path] = ()

    @property
    def max_instances(self) -> int:
        return QUICK_INSTANCES if self.quick else MAX_INSTANCES


def validate(
    options: ValidationOptions, *, progress: ProgressCallback | None = None
) -> tuple[Validation, dict[str, str]]:
    """Audit the population, and score every check and the policy of each family.

    Each run that scores held-out models adds a line to looks.jsonl in the folder for results.

    Args:
        options: The options of the validation.
        progress: Called after each audited model. None to report no progress.

    Returns:
        The result of the validation, and a dictionary: name of a file -> the TOML text of a policy. Each family has up
        to two policies: the given policy with the figures of this run, and the policy that `threshold_rule` chooses
        from the tuning half, if it chooses a gate.

    Raises:
        AuditError: The population, a policy or a file of remedies cannot be read, several policies cover a family, or a
            result cannot be written.
    """
    started, created = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    with invalid_input():
        reproduced = _reproduced(options.remedies)
        population = read_population(options.population)
        for entry in population.entries:
            dataset_of(entry, options.population)
        policies = [read_policy(path) for path in options.policies]
    families: list[FamilyFigures] = []
    texts: dict[str, str] = {}
    failed: dict[str, str] = {}
    measuring_seconds = 0.0
    gates: dict[str, Check] = {}
    with invalid_input():
        given = {family: policy_for(policies, family) for family in FAMILIES}
    for family in FAMILIES:
        if not any(entry.family == family for entry in population.entries):
            continue
        audited, not_audited = _audit(population, family, given[family], options, progress)
        figures, text = score_family(audited, seed=options.seed, reproduced=reproduced)
        families.append(_logged(figures, population, options.out, created))
        failed |= not_audited
        gates |= {
            candidate.check.id: candidate.check
            for candidate in audited.judged_candidates
            if candidate.may_gate or any(check.check == candidate.check.id and check.gated for check in figures.checks)
        }
        measuring_seconds += sum(result.seconds for result in audited.results.values())
        if text:
            texts[CHOSEN[family]] = text
        if (policy := given[family]) is not None:
            texts[VALIDATED[family]] = written_policy(figures, policy.path)
    validation = Validation(
        schema_version=SCHEMA_VERSION,
        created=created,
        attnaudit=__version__,
        population=options.population.resolve().name,
        population_sha256=population.sha256,
        seed=options.seed,
        quick=options.quick,
        max_instances=options.max_instances,
        seconds=0.0,
        measuring_seconds=measuring_seconds,
        families=families,
        invariances=measure_invariances(list(gates.values()), seed=options.seed) if options.invariances else [],
        failed=failed,
        notes=population.notes,
    )
    return msgspec.structs.replace(validation, seconds=time.perf_counter() - started), texts


def _audit(
    population: Population,
    family: Family,
    given: CandidatePolicy | None,
    options: ValidationOptions,
    progress: ProgressCallback | None,
) -> tuple[AuditedFamily, dict[str, str]]:
    """Return the audits of the models of a family, and: name of an entry -> why it could not be audited."""
    entries = [entry for entry in population.entries if entry.family == family]
    all_candidates = candidates(given.checks if given else (), family=family)
    gated = {gate.check for gate in given.gates} if given else set()
    judged_candidates = [
        candidate for candidate in all_candidates if candidate.quick or not options.quick or candidate.check.id in gated
    ]
    results, failed = audit_population(
        entries,
        [candidate.check for candidate in judged_candidates],
        population=options.population,
        results=options.out / RESULTS,
        seed=options.seed,
        max_instances=options.max_instances,
        jobs=options.jobs,
        device=options.device,
        progress=progress,
    )
    audited = AuditedFamily(
        family=family,
        entries=entries,
        given=given,
        all_candidates=all_candidates,
        judged_candidates=judged_candidates,
        results=results,
    )
    return audited, failed


def _logged(figures: FamilyFigures, population: Population, out: Path, created: str) -> FamilyFigures:
    """Log that the held-out half was scored, and return the figures with the number of looks."""
    if figures.held_out is None or figures.held_out_errors is None:
        return figures
    look = Look(
        date=created,
        population_sha256=population.sha256,
        family=figures.family,
        gates=figures.gates,
        policy_sha256=figures.policy_sha256 or gates_sha256(figures.gates),
        errors=figures.held_out_errors,
    )
    return msgspec.structs.replace(figures, looks=log_look(out, look))


def _reproduced(files: Sequence[Path]) -> list[Remedy]:
    """Return the remedies in these files. Of several remedies for the same question and option, only the first counts.

    Raises:
        ReportError: A file is missing, or is not a list of remedies.
    """
    return first_of_each_option([remedy for path in files for remedy in read_remedies(path)])
