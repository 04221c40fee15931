"""Errors that the model raises for a batch: the row that is blamed, and the line that raised the error."""

from __future__ import annotations

from functools import partial

import pytest

from attnaudit.engine.batches.failures import with_its_row
from attnaudit.instances import Instance


@pytest.mark.parametrize(
    ("failing", "named", "finding", "remedy"),
    [
        ({"b"}, "b", "", "shows the traceback), or remove the row."),
        ({"a"}, "a", "", "shows the traceback), or remove the row."),
        ({"a", "b", "c"}, "a and the 2 other rows of its batch", "alone raised an error, too.", "the traceback)."),
        (set(), "a and the 2 other rows of its batch", "alone raised no error.", "the traceback)."),
    ],
)
def test_only_a_row_that_differs_from_its_batch_is_blamed(
    failing: set[str], named: str, finding: str, remedy: str
) -> None:
    def measure_alone(name: str) -> None:
        if name in failing:
            raise ValueError("no number")

    rows = [(Instance(id=name, text="good"), partial(measure_alone, name)) for name in "abc"]
    message = str(with_its_row(ValueError("no batch"), rows))
    assert message.startswith(f"{named}: measuring raised ValueError")
    assert (" at test_failures.py:" in message) == (bool(failing))
    assert finding in message
    assert message.endswith(remedy)
