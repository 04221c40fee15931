"""Run one function on many tasks, in one process or in several. If a task fails, the others still run."""

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
    """The outcome of a task that raised an AuditError. `reason` is the message of the error."""

    reason: str


@dataclass(frozen=True, slots=True)
class TaskOutcomes(Generic[TaskT, ResultT]):
    """The results and failures of all tasks, in the order in which the tasks finished.

    Attributes:
        results: Pairs (task, result), one for each task that succeeded.
        failures: Pairs (task, message of the AuditError), one for each task that failed.
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
    """Run `work` on every task. A task that raises an AuditError is listed as a failure, and the others still run.

    Args:
        work: The function to call with each task. It must be defined at module level, so that other processes can
            import it. Its results must be picklable.
        tasks: The arguments of `work`. They must be picklable.
        jobs: The number of processes that share the tasks. With more than one, each process uses one thread.
        label: Returns the text that `progress` shows for a task.
        progress: Called after each task with (number of finished tasks, number of all tasks, label). None to report no
            progress.

    Raises:
        AuditError: A process was killed.
        Exception: `work` raised an error that is not an AuditError.
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
