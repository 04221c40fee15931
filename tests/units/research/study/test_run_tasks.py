"""Tasks run in one process or several; a task that cannot be done does not stop the others."""

from __future__ import annotations

import pytest

from attnaudit.errors import ModelError
from attnaudit.research.study.run_tasks import run_tasks


def half(number: int) -> int:
    if number % 2:
        raise ModelError(f"{number} is odd")
    return number // 2


def crash(number: int) -> int:
    raise ZeroDivisionError


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_and_failures_are_kept_apart(jobs: int) -> None:
    calls: list[tuple[int, int, str]] = []
    outcomes = run_tasks(half, [2, 3, 4], jobs=jobs, label=str, progress=lambda *call: calls.append(call))
    assert sorted(outcomes.results) == [(2, 1), (4, 2)]
    assert outcomes.failures == [(3, "3 is odd")]
    assert [done for done, _, _ in calls] == [1, 2, 3]
    assert {total for _, total, _ in calls} == {3}
    assert sorted(note for _, _, note in calls) == ["2", "3", "4"]


def test_an_error_in_the_code_is_not_a_failed_task() -> None:
    with pytest.raises(ZeroDivisionError):
        run_tasks(crash, [1], jobs=1, label=str)
