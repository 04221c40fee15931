"""Audits trained models with the checks that users declare, and keeps what a table or a figure may need."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from attnaudit import __version__
from attnaudit.checks.base import Check
from attnaudit.checks.policy import from_tables, to_table
from attnaudit.errors import AuditError, ReportError
from attnaudit.models.reference_adapter import ReferenceModel
from attnaudit.processes import replace_file, spread
from attnaudit.progress import ProgressCallback
from attnaudit.records import CheckRecord, Record
from attnaudit.research.reproduction.model_plans import Plan, variant
from attnaudit.research.reproduction.train_models import TrainedPlan
from attnaudit.run.judge_models import code_sha256, judge_together, without_charts, words_of

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel
    from attnaudit.engine.measurements import Measurements


class Asked(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The audit of one model. tables: its checks as [[check]] tables. instances: how many of the test set, None for
    all. tokens: per-token columns to keep, such as "attention"."""

    tables: list[dict[str, str | float | int | bool | None]]
    instances: int | None
    tokens: list[str]


class Task(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """guide: the checkpoint whose weights stand in place of the model's; "" without one."""

    model: str
    guide: str
    data: str
    kept: str
    seed: int
    plan: Plan
    asked: Asked


class Measured(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an audit found. asked: check -> its arguments. skipped: check -> why it could not be judged. scalars: column
    -> a number per instance; per_token: column -> a list per instance, beside the tokens. None is undefined."""

    asked: dict[str, str]
    checks: list[CheckRecord]
    skipped: dict[str, str]
    instances: int
    seconds: float
    cpu_seconds: float
    classes: list[str]
    ids: list[str]
    labels: list[int]
    predicted: list[int]
    probabilities: list[list[float]]
    scalars: dict[str, list[float | None]]
    tokens: list[list[str]]
    per_token: dict[str, list[list[float | None]]]


def asked(checks: Sequence[Check], *, instances: int | None, tokens: Sequence[str] = ()) -> Asked:
    return Asked(tables=[to_table(one) for one in checks], instances=instances, tokens=sorted(tokens))


def audit_all(
    models: Mapping[Plan, TrainedPlan],
    wanted: Sequence[tuple[Plan, Asked]],
    data: Mapping[str, Path],
    *,
    folder: Path,
    kept: Path,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> tuple[dict[tuple[Plan, int | None], Measured], dict[Plan, str]]:
    """((plan, instances) -> what was found, plan -> why it could not be audited).

    folder: of the checkpoints. kept: the folder of what was measured before, and where the new goes at once."""
    tasks = [
        Task(
            model=str(folder / models[plan].folder),
            guide=str(folder / plan.base.folder) if plan.base and variant(plan.variant).guided else "",
            data=str(data[plan.corpus]),
            kept=str(kept),
            seed=0,
            plan=plan,
            asked=one,
        )
        for plan, one in wanted
    ]
    found: dict[tuple[Plan, int | None], Measured] = {}
    failed: dict[Plan, str] = {}
    for done, (task, result) in enumerate(spread(audit_one, tasks, jobs), 1):
        if isinstance(result, Measured):
            found[task.plan, task.asked.instances] = result
        else:
            failed[task.plan] = result
        if progress is not None:
            progress(done, len(tasks), task.plan.folder)
    return found, failed


def audit_one(task: Task) -> Measured | str:
    """What was kept of the audit and what is new to it; or why there is nothing."""
    try:
        return _audit(task)
    except AuditError as error:
        return str(error)


def _audit(task: Task) -> Measured:
    from attnaudit.adapters.loading import load_model
    from attnaudit.data import load, require_two_classes, sample

    whole = load(Path(task.data))
    require_two_classes(whole)
    dataset = whole if task.asked.instances is None else sample(whole, task.asked.instances, 0)
    loaded = load_model(task.model)
    if task.guide:
        loaded = _guided(loaded, load_model(task.guide))
    path = Path(task.kept) / f"{_key(loaded.sha256, dataset.sha256(), task)}.json"
    before = _read(path)
    checks = from_tables(task.asked.tables, where="the checks of this paper")
    words = {one.id: words_of(one) for one in checks}
    have = {} if before is None else before.asked
    new = [one for one in checks if have.get(one.id) != words[one.id]]
    if before is not None and set(task.asked.tokens) <= set(before.per_token) and not new:
        return before
    started, cpu_started = time.perf_counter(), time.process_time()
    name = Path(task.model).name
    records, skipped, taken = judge_together(loaded, dataset, new or checks, name=name, seed=task.seed)
    if not taken:
        raise AuditError(next(iter(skipped.values())))
    result = _merged(before, taken, task.asked.tokens)
    again = {one.id for one in new or checks}
    old = [] if before is None else [one for one in before.checks if one.check not in again]
    reasons = {} if before is None else {name: why for name, why in before.skipped.items() if name not in again}
    result = msgspec.structs.replace(
        result,
        asked={**have, **words},
        checks=sorted([*old, *map(without_charts, records)], key=lambda one: one.check),
        skipped={**reasons, **skipped},
        seconds=result.seconds + time.perf_counter() - started,
        cpu_seconds=result.cpu_seconds + time.process_time() - cpu_started,
    )
    try:
        replace_file(path, msgspec.json.encode(result))
    except OSError as error:
        raise ReportError(f"{path}: cannot be written ({error.strerror}). Give --out a folder that can be.") from error
    return result


def _guided(loaded: LoadedModel, guide: LoadedModel) -> LoadedModel:
    assert isinstance(loaded.adapter, ReferenceModel)
    assert isinstance(guide.adapter, ReferenceModel)
    both = hashlib.sha256(f"{loaded.sha256} {guide.sha256}".encode()).hexdigest()
    return dataclasses.replace(loaded, adapter=loaded.adapter.guided_by(guide.adapter), sha256=both)


def _merged(before: Measured | None, taken: Sequence[Measurements], wanted: Sequence[str]) -> Measured:
    first = taken[0]
    scalars = {} if before is None else dict(before.scalars)
    per_token = {} if before is None else dict(before.per_token)
    for one in taken:
        scalars.update({name: _plain(column) for name, column in one.scalars.items()})
        per_token.update({name: [_plain(row) for row in one.vectors[name]] for name in wanted if name in one.per_token})
    return Measured(
        asked={},
        checks=[],
        skipped={},
        instances=len(first),
        seconds=0.0 if before is None else before.seconds,
        cpu_seconds=0.0 if before is None else before.cpu_seconds,
        classes=list(first.classes),
        ids=first.ids,
        labels=first.labels.tolist(),
        predicted=first.predicted.tolist(),
        probabilities=[row.tolist() for row in first.vectors["probabilities"]],
        scalars=scalars,
        tokens=[list(one) for one in first.tokens] if per_token else [],
        per_token=per_token,
    )


def _plain(values: object) -> list[float | None]:
    numbers: list[float] = values.tolist()  # type: ignore[attr-defined]
    return [None if math.isnan(x) else round(x, 7) for x in numbers]


def _key(model_sha256: str, data_sha256: str, task: Task) -> str:
    words = (model_sha256, data_sha256, str(task.seed), __version__, code_sha256())
    return hashlib.sha256("\x1f".join(words).encode()).hexdigest()[:32]


def _read(path: Path) -> Measured | None:
    """None where there is nothing, or nothing whole (it is then measured again)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Measured)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
