"""Audit every model of a population. Each result is stored, so that a run that was stopped can resume."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from attnaudit.checks.base import Check
from attnaudit.checks.policies.policy import to_table
from attnaudit.errors import AuditError
from attnaudit.instances import Dataset
from attnaudit.progress import ProgressCallback
from attnaudit.records import Record
from attnaudit.research.study.result_cache import ResultCache, cache_key, merge_checks, outdated_checks
from attnaudit.research.study.run_tasks import run_tasks
from attnaudit.research.validation.population_reader import dataset_of
from attnaudit.research.validation.population_schema import Entry
from attnaudit.research.validation.validation_schema import ModelResult
from attnaudit.run.judge_models import JudgedChecks, judge_model

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel


class AuditTask(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input of a worker process that audits one model.

    Attributes:
        entry: The entry of the model in the population.
        population: The folder of the population.
        results: The folder of stored results.
        check_tables: The checks, each as a [[check]] table of a policy file.
        seed: The seed of the sample, of permutations and of intervals.
        max_instances: The largest number of instances to measure.
        device: The torch device to measure on.
    """

    entry: Entry
    population: str
    results: str
    check_tables: list[dict[str, str | float | int | bool | None]]
    seed: int
    max_instances: int
    device: str


def audit_population(
    entries: Sequence[Entry],
    checks: Sequence[Check],
    *,
    population: Path,
    results: Path,
    seed: int,
    max_instances: int,
    jobs: int = 1,
    device: str = "cpu",
    progress: ProgressCallback | None = None,
) -> tuple[dict[str, ModelResult], dict[str, str]]:
    """Audit every model of a population.

    Args:
        entries: The models.
        checks: The checks to judge on each model.
        population: The folder of the population.
        results: The folder of stored results. Existing results are reused. Each new result is written as soon as its
            model is audited.
        seed: The seed of samples, permutations and intervals.
        max_instances: The largest number of instances to measure per model.
        jobs: The number of processes that share the work. With more than one, each process uses one thread.
        device: The torch device to measure on.
        progress: Called after each model, with the name of the entry as the note. None to report no progress.

    Returns:
        Two dictionaries: name of an entry -> result, and name of an entry -> why the model could not be audited.

    Raises:
        ReportError: The results folder cannot be created.
        AuditError: A process was killed.
    """
    ResultCache(results, ModelResult).create_folder()
    check_tables = [to_table(check) for check in checks]
    tasks = [
        AuditTask(
            entry=entry,
            population=str(population),
            results=str(results),
            check_tables=check_tables,
            seed=seed,
            max_instances=max_instances,
            device=device,
        )
        for entry in entries
    ]
    outcomes = run_tasks(audit_model, tasks, jobs=jobs, label=lambda task: task.entry.name, progress=progress)
    return (
        {task.entry.name: result for task, result in outcomes.results},
        {task.entry.name: reason for task, reason in outcomes.failures},
    )


def audit_model(task: AuditTask) -> ModelResult:
    """Audit one model and store the result. A check with a valid stored record is not measured again.

    Returns:
        The result, with the checks of the task only.

    Raises:
        AuditError: The data or the model cannot be loaded, no check can be judged on the model, or the result cannot be
            written.
    """
    from attnaudit.adapters.loading import load_model
    from attnaudit.checks.policies.policy import from_tables

    checks = from_tables(task.check_tables, where="the checks of this validation")
    population = Path(task.population)
    dataset = _load_sample(dataset_of(task.entry, population), task.max_instances, task.seed)
    loaded = load_model(str(population / task.entry.folder))
    data_sha256 = dataset.sha256()
    cache = ResultCache(Path(task.results), ModelResult)
    key = cache_key(
        model_sha256=loaded.sha256,
        data_sha256=data_sha256,
        seed=task.seed,
        device=task.device,
        reading=task.entry.reading,
    )
    cached = cache.read(key)
    to_measure = outdated_checks(cached, checks)
    if cached is not None and not to_measure:
        return _only(checks, cached)
    started = time.perf_counter()
    judged = _judge_under_reading(loaded, dataset, to_measure, task)
    if not judged.records and len(to_measure) == len(checks):
        raise AuditError(next(iter(judged.skipped.values())))
    result = ModelResult(
        key=key,
        model_sha256=loaded.sha256,
        data_sha256=data_sha256,
        instances=len(dataset.instances),
        seconds=time.perf_counter() - started + (cached.seconds if cached else 0.0),
        **merge_checks(cached, to_measure, judged),
    )
    cache.write(key, result)
    return _only(checks, result)


def _judge_under_reading(
    loaded: LoadedModel, dataset: Dataset, checks: Sequence[Check], task: AuditTask
) -> JudgedChecks:
    """Judge the checks under the reading of the entry. Their records keep the ids that they have without a reading.

    The records of models with different readings therefore have the same ids, and can be compared.
    """
    under = [dataclasses.replace(check, reading=task.entry.reading or check.reading) for check in checks]
    name = task.entry.folder.replace("/", ".")
    judged = judge_model(loaded, dataset, under, name=name, seed=task.seed, device=task.device)
    base_id = {changed.id: check.id for changed, check in zip(under, checks, strict=True)}
    return dataclasses.replace(
        judged,
        records=[msgspec.structs.replace(record, check=base_id[record.check]) for record in judged.records],
        skipped={base_id[id_]: reason for id_, reason in judged.skipped.items()},
    )


def _only(checks: Sequence[Check], result: ModelResult) -> ModelResult:
    """Return the result with these checks only. A stored result may have other checks from earlier runs."""
    wanted = {check.id for check in checks}
    return msgspec.structs.replace(
        result,
        fingerprints={id_: text for id_, text in result.fingerprints.items() if id_ in wanted},
        checks=[record for record in result.checks if record.check in wanted],
        skipped={id_: reason for id_, reason in result.skipped.items() if id_ in wanted},
    )


@lru_cache(maxsize=8)
def _load_sample(name: str, max_instances: int, seed: int) -> Dataset:
    from attnaudit.data import load, require_two_classes, sample

    dataset = load(name)
    require_two_classes(dataset)
    return sample(dataset, max_instances, seed)
