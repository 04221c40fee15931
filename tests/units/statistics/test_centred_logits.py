"""Centred logits depend neither on a bias per class nor on classes that are not possible answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.arrays import Floats
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.centred_logits import CentredLogits
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.standardised_logits import OtherLogits, StandardisedLogits
from attnaudit.statistics.total_effect_index import TotalEffectIndex
from tests.strategies import seeds

ROWS, CLASSES, CHANGES = 30, 4, 3


def rows_of(count: int) -> WeightedRows:
    ids = [f"{i:05d}" for i in range(count)]
    return WeightedRows.equal(count, Groups.of(ids, ids, np.ones(count, dtype=bool)))


def sample(seed: int) -> tuple[Floats, Floats]:
    """Return the logits of some rows, and those under other attention weights."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(ROWS, CLASSES)) * (1 + random.gamma(2, 1, CLASSES))
    return logits, logits[:, None] + random.normal(size=(ROWS, CHANGES, CLASSES))


def statistics(logits: Floats, others: Floats, open_classes: Floats | None = None) -> Floats:
    """Return two indices, and the influences of the rows on the mean and the scale of standardised logits."""
    rows = rows_of(len(logits))
    centred = CentredLogits.of(logits, rows, open_classes)
    assert centred is not None
    flags = np.ones(logits.shape) if open_classes is None else open_classes
    after = np.where(flags[:, None], others, 0.0)
    after = after - after.sum(2, keepdims=True) / flags.sum(1)[:, None, None]
    moved = np.where(flags[:, None] > 0, after, 0.0).reshape(len(logits), -1)
    standard = StandardisedLogits.of(centred.values, rows, centred.rounding)
    assert standard is not None
    read = OtherLogits(list(moved), np.ones(len(logits), dtype=bool), logits.shape[1], centred)
    changes = standard.squared_changes(centred.values, read)
    outputs = standard.probabilities(centred.values)
    standardised = TotalEffectIndex.of(changes, outputs, rows)
    finite = np.nan_to_num(centred.values, neginf=0.0)
    squared = read.mean_of_rows(lambda z, row: ((np.nan_to_num(z, neginf=0.0) - finite[row]) ** 2).sum(1)[:, None])[
        :, 0
    ]
    plain = TotalEffectIndex.of(squared, centred.outputs(rows), rows, centred.rounding)
    assert plain is not None
    assert standardised is not None
    influences = standard.influences(centred.values)
    np.testing.assert_allclose(rows.mean(influences), 0.0, atol=1e-8 * standard.scale)
    derivatives = standard.derivatives_of_changes(centred.values, read)
    through = (influences * derivatives).sum(1)
    return np.array([plain.value, standardised.value, *through])


@given(seed=seeds, exponent=st.floats(-3, 4), biases=st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4))
def test_a_factor_and_a_bias_per_class_change_nothing(seed: int, exponent: float, biases: list[float]) -> None:
    logits, others = sample(seed)
    factor, bias = 10**exponent, np.array(biases)
    found = statistics(factor * logits + bias * factor, factor * others + bias * factor)
    np.testing.assert_allclose(found, statistics(logits, others), rtol=1e-6, atol=1e-6)


@given(seed=seeds, closed=st.floats(-1e9, 1e9), place=st.integers(0, CLASSES))
def test_a_class_that_is_closed_in_every_row_changes_nothing(seed: int, closed: float, place: int) -> None:
    logits, others = sample(seed)
    flags = np.insert(np.ones((ROWS, CLASSES), dtype=bool), place, False, axis=1)
    with_closed = statistics(np.insert(logits, place, closed, axis=1), np.insert(others, place, closed, axis=2), flags)
    np.testing.assert_allclose(with_closed, statistics(logits, others), rtol=1e-9, atol=1e-12)


@given(seed=seeds, biases=st.lists(st.floats(-1e4, 1e4), min_size=4, max_size=4))
def test_a_bias_changes_nothing_if_the_open_classes_differ_between_rows(seed: int, biases: list[float]) -> None:
    logits, others = sample(seed)
    flags = np.random.default_rng(seed).permuted(np.tile([True, True, True, False], (ROWS, 1)), axis=1)
    bias = np.array(biases)
    np.testing.assert_allclose(
        statistics(logits + bias, others + bias, flags), statistics(logits, others, flags), rtol=1e-6, atol=1e-6
    )


def test_rounding_errors_of_a_class_with_a_very_large_bias_do_not_count() -> None:
    logits = np.random.default_rng(0).normal(size=(ROWS, 3))
    logits[:, 2] = np.where(np.arange(ROWS) % 2, -1e9, -1e9 + 64)
    centred = CentredLogits.of(logits, rows_of(ROWS))
    assert centred is not None
    assert np.abs(centred.values).max() < 5


@pytest.mark.parametrize("bias", [1e6, 1e7, 3e7, 1e8])
def test_equal_logits_are_equal_with_a_bias_of_any_size(bias: float) -> None:
    """Also if float32 keeps a few digits of the class, which then counts as constant."""
    logits = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    logits[:, 0] += np.float32(bias)
    wide = logits.astype(np.float64)
    centred = CentredLogits.of(wide, rows_of(ROWS))
    assert centred is not None
    others = centred.like(wide - wide.mean(1, keepdims=True), np.arange(ROWS))
    np.testing.assert_allclose(others, centred.values, atol=1e-6)


@pytest.mark.parametrize("bias", [0.0, 3.0, -1e6])
def test_logits_that_vary_by_rounding_only_have_no_centred_logits(bias: float) -> None:
    noise = 1e-7 * np.random.default_rng(0).normal(size=(ROWS, 3))
    logits = np.array([1.0, -2.0, 0.5 + bias]) * (1 + noise)
    assert CentredLogits.of(logits, rows_of(ROWS)) is None
    common = np.random.default_rng(1).normal(size=(ROWS, 1))
    assert CentredLogits.of(common * (1 + noise) + [0.0, 0.0, bias], rows_of(ROWS)) is None
    assert CentredLogits.of(np.zeros((ROWS, 3)), rows_of(ROWS)) is None
    assert CentredLogits.of(np.zeros((0, 3)), rows_of(0)) is None
