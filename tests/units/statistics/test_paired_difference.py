"""The difference between two models on the same instances."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from attnaudit.statistics.groups import Groups
from attnaudit.statistics.paired_difference import PairedDifference, paired_difference


def grouped(n: int, sources: int | None = None) -> Groups:
    names = [f"s{i % (sources or n):04d}" for i in range(n)]
    return Groups.of(names, [f"i{i:04d}" for i in range(n)], np.ones(n, dtype=bool))


def difference(candidate: np.ndarray, baseline: np.ndarray, groups: Groups, **options: object) -> PairedDifference:
    generator = np.random.default_rng(0)
    return paired_difference(candidate, baseline, groups, confidence=0.95, generator=generator, **options)  # type: ignore[arg-type]


def test_the_interval_is_close_to_that_of_a_paired_t_test() -> None:
    random = np.random.default_rng(1)
    hard = random.normal(size=400)
    candidate, baseline = hard + random.normal(0, 0.2, 400), hard + random.normal(0.1, 0.2, 400)
    found = difference(candidate, baseline, grouped(400))
    expected = stats.ttest_rel(candidate, baseline).confidence_interval(0.95)
    assert found.value == pytest.approx((candidate - baseline).mean())
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(tuple(expected), abs=0.003)
    np.testing.assert_allclose(found.differences, candidate - baseline)


def test_sources_are_resampled_as_a_whole() -> None:
    random = np.random.default_rng(2)
    shift = np.tile(random.normal(size=40), 10)
    numbers = random.normal(size=400)
    alone, together = (difference(numbers + shift, numbers, grouped(400, n)).interval for n in (None, 40))
    assert alone is not None
    assert together is not None
    assert together.error > 2.5 * alone.error


def test_an_instance_without_a_number_counts_for_the_other_model_only() -> None:
    random = np.random.default_rng(3)
    candidate, baseline = random.random((2, 50))
    candidate[:5] = np.nan
    baseline[3:8] = np.nan  # rows 3 and 4 have no number at all
    found = difference(candidate, baseline, grouped(50))
    assert found.value == pytest.approx(np.nanmean(candidate) - np.nanmean(baseline))
    assert np.flatnonzero(np.isnan(found.differences)).tolist() == [3, 4]
    assert np.nanmean(found.differences) == pytest.approx(found.value)


def test_an_undefined_value_has_no_difference() -> None:
    found = difference(np.full(40, np.nan), np.ones(40), grouped(40))
    assert found.value is None
    assert found.interval is None


def test_equal_numbers_leave_room_for_unseen_instances() -> None:
    numbers = np.random.default_rng(4).random(2000)
    within = difference(numbers, numbers, grouped(2000), bounds=(0.0, 1.0)).interval
    observed = difference(numbers, numbers, grouped(2000)).interval
    assert within is not None
    assert observed is not None
    assert -0.003 < within.low < 0 < within.high < 0.003
    assert within.low <= observed.low < 0
    assert difference(np.ones(50), np.ones(50), grouped(50)).interval is None


def test_a_difference_that_comes_from_few_sources_has_a_wide_interval_with_a_warning() -> None:
    baseline = np.random.default_rng(5).random(500)
    candidate = baseline.copy()
    candidate[:3] -= 0.5
    found = difference(candidate, baseline, grouped(500)).interval
    assert found is not None
    assert "few of the 500 sources" in found.coverage_warning
    assert found.method == "Student's t over sources"
    assert found.high > 0 > found.low


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="40 and 41"):
        difference(np.ones(40), np.ones(41), grouped(40))
