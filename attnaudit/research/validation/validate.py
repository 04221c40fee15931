"""One validation from beginning to end."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from attnaudit import __version__
from attnaudit.progress import ProgressCallback
from attnaudit.research.reproduction.remedies_file import Remedy, first_of_each_option, read_remedies
from attnaudit.research.validation.audit_population import run_population
from attnaudit.research.validation.candidate_policy import Given, read_policy
from attnaudit.research.validation.candidates import Candidate, candidates
from attnaudit.research.validation.policy_writer import policy_text
from attnaudit.research.validation.population_reader import dataset_of, read_population
from attnaudit.research.validation.scoring import Gate, Judged, score
from attnaudit.research.validation.threshold_rule import choose
from attnaudit.research.validation.validation_figures import (
    check_figures,
    half_of,
    left_out,
    policy_figures,
    remedies,
    trends,
)
from attnaudit.research.validation.validation_records import SCHEMA_VERSION, ModelResult, Population, Validation

MAX_INSTANCES = 300
QUICK_INSTANCES = 120
KEPT = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """population: the folder with population.json. policy: a TOML file, or None for the one that the rule chooses from
    this population's own tuning half. jobs: processes. quick: fewer instances, and no costly check. remedies: files
    with remedies, as `attnaudit reproduce` writes them, that the chosen policy names too."""

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


def validate(options: Options, *, progress: ProgressCallback | None = None) -> tuple[Validation, str]:
    """Measure the population, score every check and the policy. Returns the record, and the text of the policy that the
    tuning half would choose ("" where it is too small to choose from). Raises AuditError.
    """
    started, created = time.perf_counter(), datetime.now(UTC)
    reproduced = _reproduced(options.remedies)
    population = read_population(options.population)
    for entry in population.entries:
        dataset_of(entry, options.population)
    given = read_policy(options.policy) if options.policy else None
    tried = candidates(given.checks if given else ())
    wanted = [one for one in tried if not (options.quick and one.costly and not _gated(one, given))]
    results, failed = run_population(
        population.entries,
        [one.check for one in wanted],
        population=options.population,
        kept=options.out / KEPT,
        seed=options.seed,
        max_instances=options.max_instances,
        jobs=options.jobs,
        device=options.device,
        progress=progress,
    )
    models = [Judged.of(one, results[one.folder]) for one in population.entries if one.folder in results]
    chosen = choose(models, wanted, seed=options.seed)
    gates = given.gates if given else chosen
    text = _chosen_text(models, wanted, chosen, options.seed, reproduced) if chosen else ""
    notes = [*population.notes, *_notes(population, tried, wanted, results, given, chosen)]
    policy = "chosen from the tuning half of this population"
    if options.policy is not None:
        policy = options.policy.name
    return (
        Validation(
            schema_version=SCHEMA_VERSION,
            created=created.isoformat(timespec="seconds"),
            attnaudit=__version__,
            population=options.population.resolve().name,
            policy=policy,
            policy_sha256=hashlib.sha256(options.policy.read_bytes()).hexdigest() if options.policy else "",
            seed=options.seed,
            quick=options.quick,
            max_instances=options.max_instances,
            seconds=time.perf_counter() - started,
            measuring_seconds=sum(one.seconds for one in results.values()),
            models=len(models),
            counts=dict(sorted(Counter(f"{m.entry.truth} {m.entry.half}".replace("_", " ") for m in models).items())),
            policy_held_out=policy_figures(half_of(models, "held_out"), gates, seed=options.seed),
            policy_tuning=policy_figures(half_of(models, "tuning"), gates, seed=options.seed),
            checks=[
                check_figures(
                    models,
                    one,
                    gates,
                    skipped=sum(one.check.id in found.skipped for found in results.values()),
                    seed=options.seed,
                )
                for one in wanted
            ],
            left_out=left_out(models, wanted, seed=options.seed),
            trends=trends(models, gates),
            remedies=remedies(models, gates),
            scores=[score(one, gates) for one in models],
            failed=failed,
            notes=notes,
        ),
        text,
    )


def _gated(one: Candidate, given: Given | None) -> bool:
    return given is not None and any(gate.check == one.check.id for gate in given.gates)


def _reproduced(files: Sequence[Path]) -> list[Remedy]:
    """The remedies of all files; of several for one option, the first. Raises ReportError for a file that cannot be
    read."""
    return first_of_each_option([remedy for path in files for remedy in read_remedies(path)])


def _chosen_text(
    models: Sequence[Judged],
    tried: Sequence[Candidate],
    chosen: Sequence[Gate],
    seed: int,
    reproduced: Sequence[Remedy] = (),
) -> str:
    figures = [check_figures(models, one, chosen, skipped=0, seed=seed) for one in tried]
    held = half_of(models, "held_out")
    gated = {gate.check for gate in chosen}
    return policy_text(
        chosen,
        tried,
        figures,
        policy_figures(held, chosen, seed=seed),
        name="default",
        validated_on=families(held),
        remedies=remedies(models, chosen),
        reproduced=reproduced,
        evidence=[one.check.id for one in tried if one.shown and one.check.id not in gated],
    )


def families(models: Sequence[Judged]) -> list[str]:
    """The families of models that have both faithful and unfaithful members, as a checkpoint names its own."""
    truths: dict[str, set[str]] = {}
    for one in models:
        if one.entry.encoder:
            truths.setdefault(one.entry.encoder, set()).add(one.entry.truth)
    return [
        f"pooled attention, {name} encoder" for name in sorted(truths) if {"faithful", "unfaithful"} <= truths[name]
    ]


def _notes(
    population: Population,
    tried: Sequence[Candidate],
    wanted: Sequence[Candidate],
    results: dict[str, ModelResult],
    given: Given | None,
    chosen: Sequence[Gate],
) -> list[str]:
    notes = [f"{one.check.id}: {one.costly}" for one in tried if one not in wanted]
    halves = Counter(one.half for one in population.entries if one.truth != "trend")
    if not halves["held_out"]:
        notes.append("no labelled model is held out: the figures are those of the tuning half, which flatter")
    if not halves["tuning"]:
        notes.append(
            "no labelled model is in the tuning half: nothing is chosen here, the given policy is tried as it is"
        )
    elif not chosen:
        notes.append("the tuning half chooses no policy: no check discriminates on it")
    if given is not None:
        chosen_words = {gate.words for gate in chosen}
        if chosen and chosen_words != {gate.words for gate in given.gates}:
            notes.append(
                f"the policy tried is {'; '.join(gate.words for gate in given.gates)}; "
                f"the tuning half of this population would choose {'; '.join(sorted(chosen_words))}"
            )
    reasons = Counter(why for one in results.values() for why in one.skipped.values())
    notes += [f"{count} times a check could not be judged: {why}" for why, count in sorted(reasons.items())]
    return notes
