from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from attnaudit.engine.measurements import Measurements
from attnaudit.instances import Instance
from attnaudit.statistics.f1_drop import F1Drop


def drop_of(m, replaced):
    """The drop between the predictions of measurements and replaced ones."""
    return F1Drop.of(m.labels, m.predicted[:, None].astype(float), replaced, classes=len(m.classes))


def measured(classes, n=150, seed=0, replacements=7):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, n)

    def noisy(rate):
        return np.where(random.random(n) < rate, random.integers(0, classes, n), labels)

    m = Measurements(
        model="m",
        data="d",
        seed=0,
        classes=tuple(f"c{i}" for i in range(classes)),
        instances=[Instance(id=f"{i:04d}", text=f"{i}") for i in range(n)],
        sources=[f"{i:04d}" for i in range(n)],
        tokens=[["a", "b"]] * n,
        labels=labels,
        predicted=noisy(0.2),
    )
    return m, np.column_stack([noisy(0.5) for _ in range(replacements)]).astype(float)


def sklearn_f1(labels, predicted, classes):
    if classes == 2:
        return f1_score(labels, predicted, pos_label=1)
    return f1_score(labels, predicted, average="macro")


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_drop_agrees_with_sklearn(classes):
    m, replaced = measured(classes)
    groups = m.groups(np.ones(len(m), dtype=bool))
    f1, mean, drop = drop_of(m, replaced).value(groups)
    assert f1 == pytest.approx(sklearn_f1(m.labels, m.predicted, classes))
    assert mean == pytest.approx(np.mean([sklearn_f1(m.labels, column, classes) for column in replaced.T]))
    assert drop == pytest.approx(f1 - mean)


def test_a_class_that_neither_occurs_nor_is_predicted_is_left_out_of_the_macro_mean():
    m, replaced = measured(3)
    m.labels[m.labels == 2] = 0
    m.predicted[m.predicted == 2] = 0
    replaced[replaced == 2] = 0
    groups = m.groups(np.ones(len(m), dtype=bool))
    f1, _, _ = drop_of(m, replaced).value(groups)
    assert f1 == pytest.approx(sklearn_f1(m.labels, m.predicted, 3))


def test_interval_is_near_scipys_bca_where_many_decisions_change():
    m, replaced = measured(2, n=400, replacements=1)
    groups = m.groups(np.ones(len(m), dtype=bool))
    found = drop_of(m, replaced).interval(groups, confidence=0.95)

    def f1(labels, predicted):  # a thousand calls of scikit-learn take seconds
        return 2 * (labels * predicted).sum() / (labels.sum() + predicted.sum())

    def drop(labels, predicted, other):
        return f1(labels, predicted) - f1(labels, other)

    assert f1(m.labels, m.predicted) == pytest.approx(sklearn_f1(m.labels, m.predicted, 2))

    expected = stats.bootstrap(
        (m.labels, m.predicted, replaced[:, 0]),
        drop,
        paired=True,
        vectorized=False,
        n_resamples=600,
        method="BCa",
        rng=np.random.default_rng(1),
    ).confidence_interval
    width = expected.high - expected.low
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.15 * width)


def test_no_changed_decision_keeps_a_width():
    for classes in (2, 3):
        m, _ = measured(classes, n=40)
        groups = m.groups(np.ones(len(m), dtype=bool))
        drop = drop_of(m, np.repeat(m.predicted[:, None].astype(float), 3, axis=1))
        found = drop.interval(groups, confidence=0.95)
        assert found.low < -0.01 < 0.01 < found.high
