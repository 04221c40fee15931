"""Audit trained models with the checks of a paper, and store the numbers that its tables and figures need."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit.checks.base import Check
from attnaudit.checks.policy import from_tables, to_table
from attnaudit.errors import AuditError
from attnaudit.models.reference_adapter import ReferenceModel
from attnaudit.progress import ProgressCallback
from attnaudit.records import Record
from attnaudit.research.reproduction.model_plans import Plan, variant
from attnaudit.research.reproduction.train_models import TrainedPlan
from attnaudit.research.study.result_cache import (
    CachedAudit,
    ResultCache,
    cache_key,
    merge_checks,
    outdated_checks,
)
from attnaudit.research.study.run_tasks import run_tasks
from attnaudit.run.judge_models import judge_model

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel
    from attnaudit.engine.measurements import Measurements

#: Decimals of the stored numbers per instance and per token.
DECIMALS = 7


class AuditRequest(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to measure of one model for a paper's tables and figures.

    Attributes:
        check_tables: The checks as [[check]] tables.
        instances: The largest number of test instances to measure; None for all of them.
        token_columns: Names of per-token columns to store, such as "attention".
    """

    check_tables: list[dict[str, str | float | int | bool | None]]
    instances: int | None
    token_columns: list[str]


class AuditTask(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input of a worker process that audits one model.

    Attributes:
        model: The checkpoint folder.
        guide: The checkpoint folder of the model whose attention replaces this model's attention; "" for no
            replacement.
        data: The file of test instances.
        results: The folder of stored results.
        seed: The seed of permutations and intervals.
        plan: The plan that the model was trained from.
        request: What to measure.
    """

    model: str
    guide: str
    data: str
    results: str
    seed: int
    plan: Plan
    request: AuditRequest


class AuditedModel(CachedAudit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The check records of one model, and the numbers per instance that tables and figures need.

    Attributes:
        cpu_seconds: CPU seconds of measuring and judging, summed over runs like `seconds`.
        classes: The class names of the model.
        ids: Instance ids; all lists below are in this order.
        labels: Class indices of the labels.
        predicted: Class indices of the predictions.
        probabilities: One list of class probabilities per instance.
        scalars: Column -> one number per instance; None where it is undefined.
        tokens: The tokens of each instance; empty if no per-token column is stored.
        per_token: Column -> one list of numbers per instance, one number per token; None where it is undefined.
    """

    cpu_seconds: float
    classes: list[str]
    ids: list[str]
    labels: list[int]
    predicted: list[int]
    probabilities: list[list[float]]
    scalars: dict[str, list[float | None]]
    tokens: list[list[str]]
    per_token: dict[str, list[list[float | None]]]


def audit_request(checks: Sequence[Check], *, instances: int | None, token_columns: Sequence[str] = ()) -> AuditRequest:
    """Return a request for these checks and per-token columns. `instances` is None for the whole test set."""
    return AuditRequest(
        check_tables=[to_table(check) for check in checks], instances=instances, token_columns=sorted(token_columns)
    )


def audit_all(
    models: Mapping[Plan, TrainedPlan],
    requests: Sequence[tuple[Plan, AuditRequest]],
    data: Mapping[str, Path],
    *,
    checkpoints: Path,
    results: Path,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> tuple[dict[tuple[Plan, int | None], AuditedModel], dict[Plan, str]]:
    """Audit trained models.

    Args:
        models: The trained models by plan.
        requests: Which plans to audit, and what to measure of each.
        data: Corpus -> the file of its test instances.
        checkpoints: The folder of the checkpoints.
        results: The folder of stored results. Existing results are reused; each new one is written immediately.
        jobs: How many processes share the work, with one thread each.
        progress: Called after each model, with its folder as the note.

    Returns:
        (plan, `instances` of the request) -> its audit, and plan -> why it could not be audited.
    """
    tasks = [
        AuditTask(
            model=str(checkpoints / models[plan].folder),
            guide=str(checkpoints / plan.base.folder) if plan.base and variant(plan.variant).guided else "",
            data=str(data[plan.corpus]),
            results=str(results),
            seed=0,
            plan=plan,
            request=request,
        )
        for plan, request in requests
    ]
    outcomes = run_tasks(audit_model, tasks, jobs=jobs, label=lambda task: task.plan.folder, progress=progress)
    return (
        {(task.plan, task.request.instances): result for task, result in outcomes.results},
        {task.plan: reason for task, reason in outcomes.failures},
    )


def audit_model(task: AuditTask) -> AuditedModel:
    """Return the audit of one model. Checks whose stored record is still valid are not measured again.

    If all records are valid and only a per-token column is missing, all checks of the request are measured again.
    Raises AuditError if the data or the model cannot be loaded, or if nothing can be measured.
    """
    from attnaudit.adapters.loading import load_model
    from attnaudit.data import load, require_two_classes, sample

    request = task.request
    dataset = load(Path(task.data))
    require_two_classes(dataset)
    if request.instances is not None:
        dataset = sample(dataset, request.instances, 0)
    loaded = load_model(task.model)
    if task.guide:
        loaded = _guided(loaded, load_model(task.guide))
    cache = ResultCache(Path(task.results), AuditedModel)
    key = cache_key(model_sha256=loaded.sha256, data_sha256=dataset.sha256(), seed=task.seed)
    cached = cache.read(key)
    checks = from_tables(request.check_tables, where="the checks of this paper")
    outdated = outdated_checks(cached, checks)
    if cached is not None and set(request.token_columns) <= set(cached.per_token) and not outdated:
        return cached
    to_measure = outdated or checks
    started, cpu_started = time.perf_counter(), time.process_time()
    judged = judge_model(loaded, dataset, to_measure, name=Path(task.model).name, seed=task.seed)
    if not judged.measurements:
        raise AuditError(next(iter(judged.skipped.values())))
    result = AuditedModel(
        **merge_checks(cached, to_measure, judged),
        **_merge_columns(cached, judged.measurements, request.token_columns),
        seconds=time.perf_counter() - started + (cached.seconds if cached else 0.0),
        cpu_seconds=time.process_time() - cpu_started + (cached.cpu_seconds if cached else 0.0),
    )
    cache.write(key, result)
    return result


def _guided(loaded: LoadedModel, guide: LoadedModel) -> LoadedModel:
    """Replace the attention weights of one reference model by those of another."""
    assert isinstance(loaded.adapter, ReferenceModel)
    assert isinstance(guide.adapter, ReferenceModel)
    both = hashlib.sha256(f"{loaded.sha256} {guide.sha256}".encode()).hexdigest()
    return dataclasses.replace(loaded, adapter=loaded.adapter.guided_by(guide.adapter), sha256=both)


def _merge_columns(
    cached: AuditedModel | None, measurements: Sequence[Measurements], token_columns: Sequence[str]
) -> dict[str, Any]:
    """Return the per-instance fields of an AuditedModel, with new columns added to the stored ones."""
    first = measurements[0]
    scalars = {} if cached is None else dict(cached.scalars)
    per_token = {} if cached is None else dict(cached.per_token)
    for measured in measurements:
        scalars.update({name: _rounded(column) for name, column in measured.scalars.items()})
        present = [name for name in token_columns if name in measured.per_token]
        per_token.update({name: [_rounded(row) for row in measured.vectors[name]] for name in present})
    return {
        "instances": len(first),
        "classes": list(first.classes),
        "ids": first.ids,
        "labels": first.labels.tolist(),
        "predicted": first.predicted.tolist(),
        "probabilities": [row.tolist() for row in first.vectors["probabilities"]],
        "scalars": scalars,
        "tokens": [list(tokens) for tokens in first.tokens] if per_token else [],
        "per_token": per_token,
    }


def _rounded(values: object) -> list[float | None]:
    """Return an array as a list of rounded numbers, with None instead of NaN."""
    numbers: list[float] = values.tolist()  # type: ignore[attr-defined]
    return [None if math.isnan(x) else round(x, DECIMALS) for x in numbers]
