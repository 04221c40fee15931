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
from attnaudit.checks.policies.policy import from_tables, to_table
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
    """The measurements that a paper's tables and figures need from one model.

    Attributes:
        check_tables: The checks, each as a [[check]] table of a policy file.
        instances: The largest number of test instances to measure. None for all of them.
        token_columns: The names of the per-token columns to store, such as "attention".
    """

    check_tables: list[dict[str, str | float | int | bool | None]]
    instances: int | None
    token_columns: list[str]


class AuditTask(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The input of a worker process that audits one model.

    Attributes:
        model: The checkpoint folder of the model.
        guide: The checkpoint folder of another model, whose attention weights replace those of this model. It is "" if
            the model uses its own attention.
        data: The path of the file with test instances.
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
        cpu_seconds: CPU time of measuring and judging, in seconds, summed over the runs that added to this result.
        classes: The class names of the model.
        ids: The ids of the measured instances. The lists in the other attributes have the same order.
        labels: For each instance, the index of its label in `classes`.
        predicted: For each instance, the index of the predicted class in `classes`.
        probabilities: For each instance, the probability of each class.
        scalars: Column -> one number per instance. The number is None where it is undefined.
        tokens: For each instance, its tokens. The list is empty if no per-token column is stored.
        per_token: Column -> for each instance, one number per token. The number is None where it is undefined.
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
    """Return a request for some checks and per-token columns.

    Args:
        checks: The checks.
        instances: The largest number of test instances to measure. None for all of them.
        token_columns: The names of the per-token columns to store, such as "attention".
    """
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
        models: Plan -> trained model.
        requests: The plans of the models to audit, each with the measurements that are needed. A plan may occur several
            times with different values of `instances`.
        data: Name of a corpus -> path of its test instances.
        checkpoints: The folder of the checkpoints.
        results: The folder of stored results. Existing results are reused. Each new result is written as soon as its
            model is audited.
        jobs: The number of processes that share the work. With more than one, each process uses one thread.
        progress: Called after each audit, with the folder of the model as the note. None to report no progress.

    Returns:
        Two dictionaries: (plan, `instances` of the request) -> audit, and plan -> why the model could not be audited.

    Raises:
        AuditError: A process was killed.
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
    """Audit one model and store the result.

    A check with a valid stored record is not measured again. There is one exception. If all stored records are valid,
    but a per-token column is missing, all checks of the request are measured again.

    Raises:
        AuditError: The data or the model cannot be loaded, nothing can be measured, or the result cannot be written.
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
    """Return a model with the attention weights of another model.

    Args:
        loaded: The model. It must be a reference model.
        guide: The reference model whose attention weights are used.
    """
    assert isinstance(loaded.adapter, ReferenceModel)
    assert isinstance(guide.adapter, ReferenceModel)
    both = hashlib.sha256(f"{loaded.sha256} {guide.sha256}".encode()).hexdigest()
    return dataclasses.replace(loaded, adapter=loaded.adapter.guided_by(guide.adapter), sha256=both)


def _merge_columns(
    cached: AuditedModel | None, measurements: Sequence[Measurements], token_columns: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of an AuditedModel that describe instances. New columns are added to the stored columns."""
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
    """Return an array as a list of numbers rounded to DECIMALS decimals. NaN becomes None."""
    numbers: list[float] = values.tolist()  # type: ignore[attr-defined]
    return [None if math.isnan(x) else round(x, DECIMALS) for x in numbers]
