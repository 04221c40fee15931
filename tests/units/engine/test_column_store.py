"""The columns of a shard are put in order from the rows of its batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attnaudit.engine.column_store import ColumnStore
from attnaudit.engine.columns import Columns
from attnaudit.errors import CheckError

PLANNED: Any = SimpleNamespace(name="mine", measure=SimpleNamespace(depends_on_reading=False), reading="")


def _add(store: ColumnStore, positions: list[int], lengths: list[int], first_value: float, **more: Any) -> None:
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    batch: Any = SimpleNamespace(
        positions=positions, real_on_cpu=real, predicted_on_cpu=np.array([position % 2 for position in positions])
    )
    values = first_value + torch.arange(real.size, dtype=torch.float64).reshape(real.shape)
    columns = Columns(tokens={"weights": values}, vectors={"logits": values[:, :1]}, scalars={"sum": values[:, 0]})
    store.add(batch, columns, PLANNED)


def test_rows_are_in_the_order_of_the_instances() -> None:
    store = ColumnStore(5, first=10)
    _add(store, [13, 10], [3, 2], 0.0)
    _add(store, [14, 11], [1, 1], 100.0)
    weights = store.vectors()["weights"]
    assert weights.counts.tolist() == [2, 1, 0, 3, 1]
    assert weights.values.tolist() == [3, 4, 101, 0, 1, 2, 100]
    logits = store.vectors()["logits"]
    assert logits.counts.tolist() == [1, 1, 0, 1, 1]
    assert logits.values.tolist() == [3, 101, 0, 100]
    np.testing.assert_array_equal(store.scalars["sum"], [3, 101, np.nan, 0, 100])
    assert store.predicted.tolist() == [0, 1, 0, 1, 0]
    assert store.per_token == {"weights"}


def test_a_measure_does_not_replace_the_column_of_another() -> None:
    for kind in ("scalars", "tokens", "vectors"):
        store = ColumnStore(2, first=0)
        _add(store, [0, 1], [2, 2], 0.0)
        real = np.ones((2, 2), dtype=bool)
        batch: Any = SimpleNamespace(positions=[0, 1], real_on_cpu=real, predicted_on_cpu=np.zeros(2))
        name, column = {"scalars": ("sum", torch.ones(2)), "tokens": ("weights", torch.ones(2, 2))}.get(
            kind, ("logits", torch.ones(2, 1))
        )
        other: Any = SimpleNamespace(**{**vars(PLANNED), "name": "other"})
        with pytest.raises(CheckError, match=f"'other': its column '{name}' has the name of a column of .* 'mine'"):
            store.add(batch, Columns(**{kind: {name: column}}), other)
        store.add(batch, Columns(**{kind: {f"other.{name}": column}}), other)


def test_the_latest_rows_count_if_a_batch_runs_again() -> None:
    store = ColumnStore(3, first=0)
    _add(store, [2, 0, 1], [2, 2, 1], 0.0)
    _add(store, [0], [2], 50.0)
    _add(store, [2, 1], [2, 1], 60.0)
    weights = store.vectors()["weights"]
    assert weights.counts.tolist() == [2, 1, 2]
    assert weights.values.tolist() == [50, 51, 62, 60, 61]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"scalars": {"peak": 0.5}}, r"'peak' in .*scalars is of type float; expected a torch tensor of shape \(2,\)"),
        ({"tokens": {"peak": np.ones((2, 2))}}, r"is of type ndarray; expected a torch tensor of shape"),
        (
            {"scalars": {"peak": torch.tensor(0.5)}},
            r"'peak' in .*scalars has shape \(\); expected \(2,\), one number",
        ),
        ({"scalars": {"peak": torch.zeros(1)}}, r"has shape \(1,\); expected \(2,\)"),
        (
            {"tokens": {"weight": torch.zeros(2, 1)}},
            r"'weight' in .*tokens has shape \(2, 1\); expected \(2, 3\)",
        ),
        ({"vectors": {"shares": torch.zeros(2)}}, r"'shares' in .*vectors has shape \(2,\); expected \(2, L\)"),
    ],
)
def test_a_number_for_the_whole_batch_is_refused(columns: Any, message: str) -> None:
    batch: Any = SimpleNamespace(
        positions=[0, 1], real_on_cpu=np.ones((2, 3), dtype=np.bool_), predicted_on_cpu=np.zeros(2)
    )
    with pytest.raises(CheckError, match=f"measure 'mine': .*{message}"):
        ColumnStore(2, first=0).add(batch, Columns(**columns), PLANNED)
