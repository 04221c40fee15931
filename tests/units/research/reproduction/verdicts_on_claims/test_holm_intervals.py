"""Holm's correction of several t-intervals, compared with SciPy's tests and with the definition of the method."""

from __future__ import annotations

import statistics

import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from attnaudit.research.reproduction.verdicts_on_claims.holm_intervals import (
    ERROR,
    MeanInterval,
    holm_intervals,
    mean_interval,
)

VALUES = st.lists(st.floats(-1, 1), min_size=2, max_size=8)


@given(VALUES)
def test_the_interval_matches_scipys_t_interval(values: list[float]) -> None:
    found = mean_interval(values)
    assert found.mean == pytest.approx(statistics.fmean(values))
    error = scipy.stats.sem(values)
    if error > 1e-9:
        low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=found.mean, scale=error)
        assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_without_values_there_is_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


@given(st.lists(VALUES, min_size=1, max_size=6))
def test_an_interval_excludes_zero_exactly_where_holms_method_rejects_it(families: list[list[float]]) -> None:
    assume(all(statistics.stdev(values) > 1e-6 for values in families))
    p_values = [float(scipy.stats.ttest_1samp(values, 0.0).pvalue) for values in families]
    order = sorted(range(len(families)), key=p_values.__getitem__)
    limits = {place: ERROR / (len(families) - rank) for rank, place in enumerate(order)}
    assume(all(abs(p_values[place] - limit) > 1e-9 for place in order for limit in limits.values()))
    rejected, going = set(), True
    for place in order:
        going = going and p_values[place] <= limits[place]
        if going:
            rejected.add(place)
    intervals = holm_intervals(families)
    excluding = {
        place
        for place, one in enumerate(intervals)
        if one.low is not None and one.high is not None and (one.low > 0 or one.high < 0)
    }
    assert excluding == rejected


def test_a_single_interval_is_not_corrected_and_single_values_do_not_count() -> None:
    values = [0.1, 0.2, 0.4]
    assert holm_intervals([values]) == [mean_interval(values)]
    with_single = holm_intervals([values, [0.5]])
    assert with_single == [mean_interval(values), mean_interval([0.5])]
    assert (with_single[1].low, with_single[1].high) == (None, None)


def test_equal_values_come_first_and_have_no_width() -> None:
    equal, spread = holm_intervals([[0.2, 0.2], [0.1, 0.5, 0.3]])
    assert (equal.low, equal.high) == (0.2, 0.2)
    assert spread == mean_interval([0.1, 0.5, 0.3])


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (0.0123, -0.1, 0.1246, "+0.012 [−0.100, 0.125]"),
        (-2.5e-4, -0.023, 0.022, "0.000 [−0.023, 0.022]"),
        (0.01, 2.5e-4, 0.02, "+0.010 [0.0003, 0.020]"),
        (-0.01, -0.02, -4e-5, "−0.010 [−0.020, −0.00004]"),
        (0.0, 0.0, 0.0, "0.000 [0.000, 0.000]"),
        (0.4, None, None, "+0.400 (one seed)"),
    ],
)
def test_a_limit_near_zero_shows_on_which_side_it_is(
    mean: float, low: float | None, high: float | None, text: str
) -> None:
    assert MeanInterval(mean=mean, low=low, high=high, n=3).text() == text
