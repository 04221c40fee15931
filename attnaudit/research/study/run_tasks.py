"""Run one function on many tasks, in one process or several, and continue with the other tasks if one fails."""

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
    """Why a task could not be done, in the words of its AuditError."""

    reason: str


@dataclass(frozen=True, slots=True)
class TaskOutcomes(Generic[TaskT, ResultT]):
    """The results and failures of all tasks, in the order in which the tasks finished.

    Attributes:
        results: (task, its result).
        failures: (task, why it has no result).
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
        work: A module-level function; with several jobs it is called in other processes.
        tasks: The arguments of `work`, which can be pickled.
        jobs: How many processes share the tasks, with one thread each.
        label: Task -> the note that `progress` gets when the task is finished.
        progress: Called after every task.
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
