"""Run one function on many tasks, in one or several processes. If a task fails, the others still run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from attnaudit.errors import AuditError
from attnaudit.processes import spread
from attnaudit.progress import ProgressCallback

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that raised an AuditError; `reason` is its message."""

    reason: str


@dataclass(frozen=True, slots=True)
class TaskOutcomes(Generic[TaskT, ResultT]):
    """The results and failures of all tasks, in the order in which the tasks finished.

    Attributes:
        results: Pairs (task, result).
        failures: Pairs (task, message of the AuditError).
    """

    results: list[tuple[TaskT, ResultT]]
    failures: list[tuple[TaskT, str]]


def run_tasks(
    work: Callable[[TaskT], ResultT],
    tasks: Sequence[TaskT],
    *,
    jobs: int,
    label: Callable[[TaskT], str],
    progress: ProgressCallback | None = None,
) -> TaskOutcomes[TaskT, ResultT]:
    """Run `work` on every task. A task that raises an AuditError is listed as a failure; the others still run.

    Args:
        work: A module-level function, because several jobs call it in other processes.
        tasks: The arguments of `work`; they must be picklable.
        jobs: How many processes share the tasks, with one thread each.
        label: Returns the text that is passed to `progress` for a task.
        progress: Called after every task with (tasks done, all tasks, label).
    """
    outcomes: TaskOutcomes[TaskT, ResultT] = TaskOutcomes([], [])
    for done, (task, result) in enumerate(spread(partial(_attempt, work), tasks, jobs), 1):
        if isinstance(result, Failure):
            outcomes.failures.append((task, result.reason))
        else:
            outcomes.results.append((task, result))
        if progress is not None:
            progress(done, len(tasks), label(task))
    return outcomes


def _attempt(work: Callable[[TaskT], ResultT], task: TaskT) -> ResultT | Failure:
    try:
        return work(task)
    except AuditError as error:
        return Failure(str(error))
