"""The samples that a sequential run measures: when they end, and which errors in the rows end them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnaudit.data.draws import Draws, open_draws
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import DataError
from attnaudit.instances import Dataset
from attnaudit.registry import datasets, register_dataset
from attnaudit.run.audited_data import data_notes
from attnaudit.run.sequential_rows import candidate_samples


class Gates:
    """Gates that settle after some rows, or need a fixed number of them.

    Args:
        settle_at: The number of rows at which they settle; None for never.
        fixed: Whether they need a fixed number.
    """

    gates = ("gate",)

    def __init__(self, settle_at: int | None = None, *, fixed: bool = False) -> None:
        self._settle_at = settle_at
        self._fixed = fixed

    def are_settled(self, measurements: Measurements) -> bool:
        return self._settle_at is not None and len(measurements) >= self._settle_at

    def fixed(self, measurements: Measurements) -> dict[str, str]:
        return {"gate": "why"} if self._fixed else {}


def measure(rows: Dataset, done: int) -> Measurements:
    return Measurements(
        model="m",
        data=rows.name,
        seed=0,
        classes=("no", "yes"),
        instances=list(rows.instances),
        sources=[f"row {instance.id}" for instance in rows.instances],
        tokens=[instance.text.split() for instance in rows.instances],
        labels=np.zeros(len(rows.instances), dtype=np.int64),
        predicted=np.zeros(len(rows.instances), dtype=np.int64),
        scalars={},
        vectors={},
        per_token=set(),
    )


def samples(draws: Draws, gates: Any, limit: int | None = None) -> list[tuple[int, DataError | None]]:
    """Return the size of every sample, and the error that ended the rows; at the end, an error that was raised."""
    found: list[tuple[int, DataError | None]] = []
    try:
        for rows, error in candidate_samples(draws, limit, gates, measure=measure, refuse=lambda rows: None):
            found.append((len(rows.instances), error))
            if gates.are_settled(measure(rows, 0)):
                break
    except DataError as error:
        found.append((-1, error))
    return found


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_known", dict(datasets._known))


def test_an_endless_stream_that_starts_again_is_an_error(registered: None) -> None:
    @register_dataset("cycle", order="random")
    def cycle() -> Iterator[dict[str, str]]:
        for number in itertools.cycle(range(300)):
            yield {"text": f"text {number}"}

    ((size, error),) = samples(open_draws("cycle", 0), Gates())
    assert (size, "none of rows 501 to 750 of the stream is new" in str(error)) == (-1, True), error
    assert samples(open_draws("cycle", 0), Gates(), limit=600) == [(600, None)]
    assert samples(open_draws("cycle", 0), Gates(settle_at=750)) == [(750, None)]


def broken_file(folder: Path, at: int) -> Draws:
    """Return the rows of a file, one of which is broken: the one that is drawn after `at` others."""
    path = folder / "rows.jsonl"
    lines = [json.dumps({"text": f"text {i}", "label": "yes"}) for i in range(600)]
    path.write_text("\n".join(lines))
    order = [int(one.where.rpartition(":")[2]) for one in open_draws(path, 0, lazily=True).first(None).instances]
    lines[order[at] - 1] = "{"
    path.write_text("\n".join(lines))
    return open_draws(path, 0, lazily=True)


def test_an_error_after_the_rows_that_decided_is_noted(tmp_path: Path) -> None:
    draws = broken_file(tmp_path, 400)
    ((size, error),) = samples(draws, Gates(settle_at=400))
    assert size == 400
    assert error is not None
    notes = data_notes(draws.first(400), draws, error)
    assert notes[0].startswith("The gates were decided on 400 rows. A later row of the data contains an error: ")
    assert "not valid JSON" in notes[0]
    assert notes[1].startswith("The labels of the audited rows are all 'yes', so accuracy and F1 say little")


def test_an_error_among_a_fixed_number_of_rows_keeps_those_that_were_measured(tmp_path: Path) -> None:
    (kept, error), (end, raised) = samples(broken_file(tmp_path, 400), Gates(fixed=True))
    assert (kept, end) == (250, -1)
    assert error is raised is not None
    assert samples(broken_file(tmp_path, 400), Gates(fixed=True), limit=300) == [(300, None)]
