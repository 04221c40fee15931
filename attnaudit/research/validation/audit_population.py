"""Measures every model of a population once, several at a time, and keeps what was found: a killed run goes on where
it stopped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from attnaudit import __version__
from attnaudit.checks.base import Check
from attnaudit.checks.policy import to_table
from attnaudit.errors import AuditError, ReportError
from attnaudit.instances import Dataset
from attnaudit.processes import replace_file, spread
from attnaudit.progress import ProgressCallback
from attnaudit.records import Record
from attnaudit.research.validation.population_reader import dataset_of
from attnaudit.research.validation.validation_records import Entry, ModelResult
from attnaudit.run.judge_models import code_sha256, judge_together, without_charts, words_of


class Task(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker needs to know of one model. tables: the checks as [[check]] tables."""

    entry: Entry
    population: str
    kept: str
    tables: list[dict[str, str | float | int | bool | None]]
    seed: int
    max_instances: int
    device: str


def run_population(
    entries: Sequence[Entry],
    checks: Sequence[Check],
    *,
    population: Path,
    kept: Path,
    seed: int,
    max_instances: int,
    jobs: int = 1,
    device: str = "cpu",
    progress: ProgressCallback | None = None,
) -> tuple[dict[str, ModelResult], dict[str, str]]:
    """(folder -> result, folder -> why it could not be audited) for every entry.

    kept: the folder of results that are there already, and where new ones go as soon as they are found. jobs: how many
    processes share the work, one thread each. progress: called with (done, total, folder). Raises ReportError when
    nothing can be kept.
    """
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"{kept}: cannot be written ({error.strerror}). Give --out a folder that can be.") from error
    tables = [to_table(one) for one in checks]
    tasks = [
        Task(
            entry=entry,
            population=str(population),
            kept=str(kept),
            tables=tables,
            seed=seed,
            max_instances=max_instances,
            device=device,
        )
        for entry in entries
    ]
    found: dict[str, ModelResult] = {}
    failed: dict[str, str] = {}
    for done, (task, result) in enumerate(spread(run_one, tasks, jobs), 1):
        if isinstance(result, ModelResult):
            found[task.entry.folder] = result
        else:
            failed[task.entry.folder] = result
        if progress is not None:
            progress(done, len(tasks), task.entry.folder)
    return found, failed


def run_one(task: Task) -> ModelResult | str:
    """The result of one model, or why there is none. What was kept of it is used, what is new to it measured."""
    from attnaudit.checks.policy import from_tables

    try:
        return _run_one(task, from_tables(task.tables, where="the checks of this validation"))
    except AuditError as error:
        return str(error)


def _run_one(task: Task, checks: Sequence[Check]) -> ModelResult:
    from attnaudit.adapters.loading import load_model

    folder = Path(task.population)
    dataset = _dataset(dataset_of(task.entry, folder), task.max_instances, task.seed)
    loaded = load_model(str(folder / task.entry.folder))
    data_sha256 = dataset.sha256()
    key = _key(loaded.sha256, data_sha256, task)
    path = Path(task.kept) / f"{key}.json"
    before = _read(path)
    asked = {one.id: words_of(one) for one in checks}
    old = {} if before is None else {name: words for name, words in before.asked.items() if asked.get(name) == words}
    new = [one for one in checks if one.id not in old]
    if before is not None and not new:
        return before
    started = time.perf_counter()
    name = task.entry.folder.replace("/", ".")
    judged, skipped, _ = judge_together(loaded, dataset, new, name=name, seed=task.seed, device=task.device)
    if not judged and not old:
        raise AuditError(next(iter(skipped.values())))
    kept = [] if before is None else [one for one in before.checks if one.check in old]
    kept_skips = {} if before is None else {name: why for name, why in before.skipped.items() if name in old}
    result = ModelResult(
        key=key,
        model_sha256=loaded.sha256,
        data_sha256=data_sha256,
        instances=len(dataset.instances),
        seconds=time.perf_counter() - started + (before.seconds if before else 0.0),
        asked={**old, **{one.id: words_of(one) for one in new}},
        checks=sorted([*kept, *map(without_charts, judged)], key=lambda one: one.check),
        skipped={**kept_skips, **skipped},
    )
    _write(path, result)
    return result


@lru_cache(maxsize=8)
def _dataset(name: str, max_instances: int, seed: int) -> Dataset:
    from attnaudit.data import load, require_two_classes, sample

    whole = load(name)
    require_two_classes(whole)
    return sample(whole, max_instances, seed)


def _key(model_sha256: str, data_sha256: str, task: Task) -> str:
    words = (model_sha256, data_sha256, str(task.seed), task.device, __version__, code_sha256())
    return hashlib.sha256("\x1f".join(words).encode()).hexdigest()[:32]


def _read(path: Path) -> ModelResult | None:
    """What was kept; None where there is nothing, or nothing whole (it is then measured again)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ModelResult)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _write(path: Path, result: ModelResult) -> None:
    try:
        replace_file(path, msgspec.json.encode(result))
    except OSError as error:
        raise ReportError(f"{path}: cannot be written ({error.strerror}). Give --out a folder that can be.") from error
