"""Trends over a grid against scipy, and the records of charts over it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from attnaudit.research.reproduction.audit_models import AuditedModel
from attnaudit.research.reproduction.figures.paper_figures import draw
from attnaudit.research.reproduction.grids import (
    grid_chart,
    overlaid_histograms,
    trend_of_means,
    trend_of_texts,
)
from attnaudit.research.reproduction.paper_tables import Models, Result, RowPlan
from attnaudit.research.reproduction.train_models import TrainedPlan

GRID = {"low": -1.0, "middle": 0.0, "high": 0.5}
ROW = RowPlan(name="sst/bilstm", title="SST, BiLSTM", corpus="sst")


def result(values: list[float | None]) -> Result:
    audit = AuditedModel(
        fingerprints={},
        checks=[],
        skipped={},
        instances=len(values),
        seconds=0.0,
        cpu_seconds=0.0,
        classes=["no", "yes"],
        ids=[str(i) for i in range(len(values))],
        labels=[0] * len(values),
        predicted=[0] * len(values),
        probabilities=[[1.0, 0.0]] * len(values),
        scalars={"x": values},
        tokens=[],
        per_token={},
    )
    return Result(trained=cast(TrainedPlan, SimpleNamespace()), audits=(audit,))


def models(*columns: list[float | None]) -> Models:
    return {role: result(values) for role, values in zip(GRID, columns, strict=True)}


@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=3, max_size=3))
def test_both_trends_match_scipy(columns: list[list[float]]) -> None:
    made = models(*(list(values) for values in columns))
    over_means = kendalltau(list(GRID.values()), [math.fsum(values) / 4 for values in columns]).statistic
    over_texts = kendalltau(np.repeat(list(GRID.values()), 4), np.concatenate(columns)).statistic
    for read, expected, n in (
        (trend_of_means, over_means, 3),
        (trend_of_texts, over_texts, 12),
    ):
        tau, counted = read(GRID, "x")(made)
        assert counted == n
        if math.isnan(expected):
            assert tau is None
        else:
            assert tau == pytest.approx(expected)


def test_undefined_numbers_are_left_out_and_one_model_has_no_trend() -> None:
    made = models([0.5, None], [0.4, 0.2], [None, None])
    assert trend_of_means(GRID, "x")(made) == (-1.0, 2)
    assert trend_of_texts(GRID, "x")(made)[1] == 3
    assert trend_of_means(GRID, "x")(models([0.5], [None], [None])) == (None, 1)


def test_a_grid_is_drawn_as_lines() -> None:
    figure = grid_chart(ROW, "tau", "τ by λ", "λ", "τ", {"gradient": {-1.0: 0.3, 0.5: 0.1}, "other": {-1.0: 0.2}})
    assert figure.chart is not None
    assert figure.row == ROW.name
    assert [(one.name, one.x, one.y) for one in figure.chart.series] == [
        ("gradient", [-1.0, 0.5], [0.3, 0.1]),
        ("other", [-1.0], [0.2]),
    ]
    assert draw(figure) is not None


def test_overlaid_histograms_are_shares_of_their_own_values() -> None:
    values = {"a": [-2.0, -0.9, -0.4, 0.1, 1.0], "b": [0.6, 0.7], "none": []}
    figure = overlaid_histograms(ROW, "n", "t", "x", values, low=-1.0, high=1.0, bins=4, caption="c")
    assert figure.chart is not None
    assert [one.x for one in figure.chart.series] == [[-0.75, -0.25, 0.25, 0.75]] * 3
    assert [one.y for one in figure.chart.series] == [[0.4, 0.2, 0.2, 0.2], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert figure.chart.series[0].name == "a (n=5)"
    assert draw(figure) is not None
