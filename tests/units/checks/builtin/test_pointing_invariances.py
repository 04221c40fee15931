"""What the pointing check must not depend on, and how far small changes move it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.records.check_records import NO_BETTER
from tests.strategies import seeds
from tests.units.checks.builtin.test_pointing import Row, plain, some_rows, value, with_rows


@given(some_rows(), st.floats(0.1, 10))
def test_it_does_not_depend_on_the_scale_of_the_effects(rows: list[tuple[Row, Row]], factor: float) -> None:
    assert value([(w, factor * e) for w, e in rows]) == pytest.approx(value(rows), abs=1e-9)


@given(some_rows(), seeds)
def test_it_depends_neither_on_the_order_of_rows_or_tokens_nor_on_copies_nor_on_signs(
    rows: list[tuple[Row, Row]], seed: int
) -> None:
    random, expected = np.random.default_rng(seed), value(rows)
    assert value([rows[i] for i in random.permutation(len(rows))]) == pytest.approx(expected, abs=1e-9)
    assert value([*rows, *rows]) == pytest.approx(expected, abs=1e-9)
    orders = [random.permutation(len(w)) for w, _ in rows]
    assert value([(w[o], e[o]) for (w, e), o in zip(rows, orders, strict=True)]) == pytest.approx(expected, abs=1e-9)
    signs = [random.choice([-1.0, 1.0], len(w)) for w, _ in rows]
    assert value([(w, s * e) for (w, e), s in zip(rows, signs, strict=True)]) == pytest.approx(expected, abs=1e-9)


@given(some_rows())
def test_texts_in_which_nothing_matters_have_no_weight(rows: list[tuple[Row, Row]]) -> None:
    idle = [(np.array([0.9, 0.1]), np.zeros(2))] * 5
    assert value([*rows, *idle]) == pytest.approx(value(rows), abs=1e-9)
    nearly_idle = [(np.array([0.9, 0.1]), np.array([0.0, 1e-9]))] * 5
    assert value([*rows, *nearly_idle]) == pytest.approx(value(rows), abs=1e-6)


@given(some_rows(), st.integers(1, 20))
def test_idle_tokens_without_weight_change_only_the_value_of_uniform_weights(
    rows: list[tuple[Row, Row]], count: int
) -> None:
    longer = [(np.append(w, np.zeros(count)), np.append(e, np.zeros(count))) for w, e in rows]
    after, attention, uniform = plain(longer)
    before, same, higher = plain(rows)
    assert attention == pytest.approx(same)
    assert uniform < higher
    # 1 - C = (1 - c(α)) / (1 - c(uniform)), so the value rises, and at most to c(α).
    assert before - 1e-9 <= after <= attention
    assert value(longer) == pytest.approx(after, abs=1e-9)
    assert 1 - value(longer) == pytest.approx((1 - value(rows)) * (1 - higher) / (1 - uniform), abs=1e-9)


@given(some_rows(), seeds)
def test_moving_negligible_weight_hardly_changes_it(rows: list[tuple[Row, Row]], seed: int) -> None:
    random, moved, bound, total = np.random.default_rng(seed), [], 0.0, 0.0
    for weights, effects in rows:
        source, target = int(weights.argmax()), int(random.integers(len(weights)))
        after = weights.copy()
        after[source] -= 0.001
        after[target] += 0.001
        moved.append((after, effects))
        # The direction of a vector moves by at most the length of the change over the length of the vector.
        shift = np.linalg.norm(after - weights) / np.linalg.norm(weights)
        size = np.abs(effects).max()
        bound, total = bound + size * shift / (1 - shift), total + size
    room = (1 - plain(rows)[2]) * total
    assert abs(value(moved) - value(rows)) <= bound / room + 1e-9


@given(some_rows(least=4), st.floats(0.05, 20))
def test_other_shares_of_the_classes_move_it_only_between_the_values_of_the_classes(
    rows: list[tuple[Row, Row]], share: float
) -> None:
    first, second = rows[::2], [*rows[1::2], rows[-1]]
    copies = max(1, round(share)), max(1, round(1 / share))
    mixed = value(first * copies[0] + second * copies[1])
    ends = [plain(part)[0] for part in (first, second) if any(e.any() for _, e in part)]
    assert min(ends) - 1e-9 <= mixed <= max(ends) + 1e-9


@given(st.floats(0.001, 1000), st.floats(0.001, 1000))
def test_a_class_is_named_whatever_the_size_of_the_effects_in_it_and_in_the_others(own: float, others: float) -> None:
    right, wrong, effects = np.array([0.8, 0.1, 0.1]), np.array([0.1, 0.1, 0.8]), np.array([1.0, 0.0, 0.0])
    rows = [(right, others * effects)] * 30 + [(wrong, own * effects)] * 30
    record = checks.Pointing(severity="report", measure="plain").judge(with_rows(rows, classes=[0] * 30 + [1] * 30))
    assert record.details[NO_BETTER] == "'positive'"
