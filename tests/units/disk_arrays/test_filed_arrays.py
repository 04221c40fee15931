"""Arrays in temporary files: numpy gives the same results as for arrays in memory, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnaudit.disk_arrays import filed_blocks
from attnaudit.disk_arrays.filed_arrays import FiledArray, filled, first_rows, from_numbers, written

ROWS = 100


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filed_blocks, "BLOCK", 8)
    monkeypatch.setattr("attnaudit.disk_arrays.filed_arrays.ROWS_AT_ONCE", 32)


def arrays() -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = np.round(random.normal(size=ROWS), 1)
    return {
        "x": x,
        "nan": np.where(random.random(ROWS) < 0.2, np.nan, x),
        "mask": random.random(ROWS) < 0.5,
        "ints": random.integers(0, 5, ROWS),
        "places": random.integers(0, ROWS, 3 * ROWS),
        "two": random.normal(size=(ROWS, 2)),
        "few": np.array([3, 1]),
    }


#: Each expression is computed with arrays in memory and with arrays in files.
IN_FILES = [
    "x + 1",
    "1 - x",
    "x * two[:, 0]",
    "x[:, None] * two",
    "two - two.mean(0)",
    "two ** 2",
    "~mask & (x > 0)",
    "mask & bool((x > 0).any())",
    "np.isnan(nan)",
    "np.where(mask, 0.0, x)",
    "np.where(mask[:, None], 0.0, two)",
    "np.nan_to_num(nan, nan=0.5)",
    "np.isin(ints, [1, 2])",
    "np.column_stack([x, two])",
    "np.concatenate([two, two], axis=1)",
    "np.concatenate([x, x])",
    "np.append(True, x[1:] != x[:-1])",
    "np.diff(np.append(ints, 7))",
    "np.maximum(x, 0.0)",
    "np.clip(x, -0.5, 0.5)",
    "x.clip(-0.5, 0.5)",
    "np.full_like(x, np.nan)",
    "np.ones_like(x)",
    "np.flatnonzero(mask)",
    "np.sort(x)",
    "np.sort(ints)",
    "np.argsort(ints, kind='stable')",
    "np.argsort(-x, kind='stable')",
    "np.sort(np.zeros_like(x))",
    "np.cumsum(ints)",
    "x[mask]",
    "two[mask]",
    "x[places]",
    "two[places]",
    "x[::-1].copy()",
    "mask.astype(np.float64)",
    "two @ np.array([2.0, 3.0])",
    "two.sum(1)",
    "two.max(1)",
    "two.max(-1, keepdims=True)",
    "two.mean(1)",
    "np.exp(two)",
]
SMALL = [
    "x.sum()",
    "x.mean()",
    "x.std(ddof=1)",
    "mask.mean()",
    "mask.sum()",
    "mask.any(), mask.all()",
    "x.max(), x.min(), np.ptp(x)",
    "two.sum(0)",
    "two.sum()",
    "x @ x",
    "x.sum(-1), x.max(axis=-1)",
    "np.nanmax(nan), np.nanmin(nan), np.nanmedian(nan)",
    "np.nanquantile(nan, 0.25)",
    "np.median(x), np.median(x[1:]), np.median(ints)",
    "np.quantile(x, [0.1, 0.5, 0.999])",
    "np.quantile(ints, np.arange(1, 4) / 4, method='higher')",
    "np.count_nonzero(mask)",
    "np.bincount(ints)",
    "np.bincount(ints, x, 9)",
    "np.unique(ints)",
    "np.histogram(np.clip(x, -1, 1), bins=24, range=(-1, 1))",
    "np.searchsorted(np.sort(x), 0.05)",
    "np.percentile(ints, 10), np.percentile(x, [5, 50])",
    "x[few], two[few], x[5], x[3:6], x[-few], two[places[:5]]",
    "x[mask][:3].tolist()",
    "np.linalg.norm(x)",
    "np.nansum(nan), np.nanmean(nan)",
    "np.median(two, axis=0)",
    "np.dot(x, x)",
    "two.T[1][:4].tolist()",
]


def in_files(given: dict[str, Any]) -> dict[str, Any]:
    return {name: one if name == "few" else written([one]) for name, one in given.items()}


@pytest.mark.parametrize("expression", IN_FILES + SMALL)
def test_results_equal_those_in_memory(expression: str) -> None:
    expected = eval(expression, {"np": np, **arrays()})
    found = eval(expression, {"np": np, **in_files(arrays())})
    assert isinstance(found, FiledArray) == (expression in IN_FILES), type(found)
    for one, other in zip(
        found if isinstance(found, tuple) else [found],
        expected if isinstance(expected, tuple) else [expected],
        strict=True,
    ):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-12)


def set_by_mask(x: Any, two: Any, mask: Any, places: Any) -> None:
    x[mask] = 7.0
    two[mask] = two[mask] + 1


def set_by_places(x: Any, two: Any, mask: Any, places: Any) -> None:
    x[places] = 3.0
    x[places] = places.astype(np.float64)
    two[places] = np.zeros(2)


def set_by_slice(x: Any, two: Any, mask: Any, places: Any) -> None:
    x[:50] = x[50:] * 2
    two[:, 1] = x
    two[3:5] = 1.0
    x[...] = two[:, 0]


def set_in_place(x: Any, two: Any, mask: Any, places: Any) -> None:
    x += 1
    x[1:] -= two[1:, 0].copy()
    mask &= x > 0
    np.multiply(x, 2.0, out=two[:, 0])
    x[mask] += 1


def set_overlapping(x: Any, two: Any, mask: Any, places: Any) -> None:
    x[1:] -= x[:-1]
    x[:-3] = x[3:]
    two[:, 0] = two[::-1, 0]
    np.add(two[:, ::-1], 1.0, out=two)


@pytest.mark.parametrize("change", [set_by_mask, set_by_places, set_by_slice, set_in_place, set_overlapping])
def test_changes_equal_those_in_memory(change: Callable[..., None]) -> None:
    expected, found = arrays(), in_files(arrays())
    for given in (expected, found):
        change(*(given[name] for name in ("x", "two", "mask", "places")))
    for name in ("x", "two", "mask"):
        np.testing.assert_array_equal(np.asarray(found[name]), expected[name])


def test_new_arrays_are_in_files_if_they_have_many_rows() -> None:
    assert isinstance(filled((20, 2), np.nan), FiledArray)
    assert np.isnan(filled((20, 2), np.nan)).all()
    assert type(filled(5, 1)) is np.ndarray
    assert filled(0, 1).shape == (0,)
    assert from_numbers(range(30), np.int64).tolist() == list(range(30))
    assert from_numbers(range(8), np.int64).tolist() == list(range(8))
    assert from_numbers([], np.float64).shape == (0,)


def test_the_first_rows_are_those_of_a_stable_sort() -> None:
    given = arrays()
    expected = np.lexsort([given["x"], given["ints"]])[:10]
    assert first_rows(10, written([given["ints"]]), written([given["x"]])).tolist() == expected.tolist()
    assert first_rows(10, given["x"][:0]).tolist() == []
