"""Samples are seeded, nested, and independent of the order of the rows."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.data import sample
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance
from tests.strategies import with_permutation


def dataset(ids: list[str]) -> Dataset:
    instances = tuple(Instance(id=one, text=f"text {one}", label="x", where=f"f:{n}") for n, one in enumerate(ids))
    return Dataset(name="d", source="s", description="", instances=instances, classes=("x", "y"), rows=len(ids))


def ids(data: Dataset) -> list[str]:
    return [one.id for one in data.instances]


many = st.lists(st.text(max_size=4), min_size=1, max_size=20, unique=True)


@given(with_permutation(many), st.integers(1, 20), st.integers())
def test_order_of_the_rows_does_not_matter(orders: tuple[list[str], list[str]], size: int, seed: int) -> None:
    first, second = (sample(dataset(order), size, seed) for order in orders)
    if size < len(orders[0]):
        assert ids(first) == ids(second)
    assert set(ids(first)) == set(ids(second))
    assert len(ids(first)) == min(size, len(orders[0]))


@given(many, st.integers(1, 20), st.integers(0, 100))
def test_smaller_sample_is_part_of_a_larger_one(names: list[str], size: int, seed: int) -> None:
    assert set(ids(sample(dataset(names), size, seed))) <= set(ids(sample(dataset(names), size + 1, seed)))


def test_seed_decides_and_is_recorded() -> None:
    full = dataset([str(n) for n in range(200)])
    chosen = sample(full, 50, 3)
    assert ids(chosen) == ids(sample(full, 50, 3))
    assert set(ids(chosen)) != set(ids(sample(full, 50, 4)))
    assert (chosen.sample_seed, chosen.rows, chosen.classes) == (3, 200, ("x", "y"))
    assert chosen.sha256() != full.sha256()


def test_every_instance_is_equally_likely() -> None:
    full = dataset([str(n) for n in range(20)])
    counts = Counter(one for seed in range(2000) for one in ids(sample(full, 5, seed)))
    # 2000 samples at p = 1/4 have a standard deviation of 19.4; the bounds are five standard deviations from 500.
    assert all(403 <= counts[str(n)] <= 597 for n in range(20))


def test_data_that_are_small_enough_are_returned_unchanged() -> None:
    full = dataset(["b", "a"])
    assert sample(full, 2, 0) is full
    assert full.sample_seed is None


def test_rows_are_counted_if_the_data_set_does_not_state_them() -> None:
    assert sample(dataclasses.replace(dataset(["a", "b"]), rows=-1), 1, 0).rows == 2


@pytest.mark.parametrize("size", [0, -3])
def test_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(DataError, match=f"max_instances is {size}: expected at least 1"):
        sample(dataset(["a"]), size, 0)
