"""Mark all cases of a parametrized test as slow, except those that every run should include."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest


def slow_except(cases: Iterable[Any], ordinary: Container[Any] | Callable[[Any], bool]) -> list[Any]:
    """Return the cases, with the mark "slow" for all that are not ordinary.

    Args:
        cases: The values for `pytest.mark.parametrize`: one value for each case, or a tuple of values.
        ordinary: The cases without the mark, or a function that is true for them.
    """
    fast = ordinary if callable(ordinary) else ordinary.__contains__
    marked = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*values, marks=() if fast(values if len(values) > 1 else values[0]) else pytest.mark.slow)
        for values in marked
    ]
