from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnaudit.statistics.groups import Groups
from attnaudit.statistics.half_sampling import subsampling_interval
from attnaudit.statistics.interval_estimate import bracket, widened
from attnaudit.statistics.intervals import (
    linearised_interval,
    mean_interval,
    median_interval,
    proportion_interval,
    ratio_interval,
)


def ids(n):
    return [f"{i:05d}" for i in range(n)]


def everything(n, sources=None):
    names = ids(n) if sources is None else [f"s{source}" for source in sources]
    return Groups.of(names, ids(n), np.ones(n, dtype=bool))


def shares(totals):
    """First sum over the second."""
    return totals[:, 0] / totals[:, 1]


def generator(seed=0):
    return np.random.default_rng(seed)


def test_mean_of_a_normal_sample_has_student_t_interval():
    values = generator(1).normal(0.3, 0.2, 400)
    found = mean_interval(values, everything(400), confidence=0.95, generator=generator())
    low, high = stats.t.interval(0.95, 399, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_few_sources_have_exactly_the_student_t_interval_of_their_means():
    sources = np.repeat(np.arange(6), 10)
    values = generator(2).normal(0, 1, 6)[sources] + generator(3).normal(0, 0.1, 60)
    found = mean_interval(values, everything(60, sources), confidence=0.9, generator=generator())
    means = np.array([values[sources == s].mean() for s in range(6)])
    low, high = stats.t.interval(0.9, 5, means.mean(), stats.sem(means))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.method == "Student's t over sources"


def test_coverage_of_a_skewed_mean_is_no_worse_than_that_of_the_t_interval():
    random, inside, inside_t = generator(4), 0, 0
    for trial in range(150):
        values = random.lognormal(0, 1, 40)
        true = np.exp(0.5)
        found = mean_interval(values, everything(40), confidence=0.95, generator=generator(trial))
        inside += found.low <= true <= found.high
        low, high = stats.t.interval(0.95, 39, values.mean(), stats.sem(values))
        inside_t += low <= true <= high
    assert inside >= inside_t
    assert inside / 150 >= 0.88


def test_rows_of_one_source_widen_the_interval():
    sources = np.repeat(np.arange(30), 10)
    values = generator(5).normal(0, 1, 30)[sources] + generator(6).normal(0, 0.1, 300)
    together = mean_interval(values, everything(300, sources), confidence=0.95, generator=generator())
    apart = mean_interval(values, everything(300), confidence=0.95, generator=generator())
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_duplicated_rows_that_share_a_source_change_nothing():
    values = generator(7).normal(0, 1, 50)
    once = mean_interval(values, everything(50), confidence=0.95, generator=generator())
    sources = np.repeat(np.arange(50), 3)
    tripled = Groups.of([ids(50)[s] for s in sources], ids(150), np.ones(150, dtype=bool))
    thrice = mean_interval(np.repeat(values, 3), tripled, confidence=0.95, generator=generator())
    assert (once.low, once.high) == pytest.approx((thrice.low, thrice.high))


def test_ratio_of_sums_agrees_with_scipy_bca():
    random = generator(8)
    below = random.gamma(2.0, 1.0, 300)
    above = 0.5 * below + random.normal(0, 0.3, 300)
    found = ratio_interval(above, below, everything(300), confidence=0.95, generator=generator())
    expected = stats.bootstrap(
        (above, below), lambda a, b, axis: a.sum(axis) / b.sum(axis), paired=True, method="BCa", rng=generator(9)
    ).confidence_interval
    width = expected.high - expected.low
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.1 * width)


def test_ratio_to_what_may_be_nothing_has_no_interval():
    below = generator(19).normal(0.1, 1.0, 200)
    assert ratio_interval(np.ones(200), below, everything(200), confidence=0.95, generator=generator()) is None


def test_ratio_that_is_the_same_everywhere_may_have_missed_the_extremes():
    below = generator(20).beta(2.0, 2.0, 50)
    asked = {"confidence": 0.95, "generator": generator()}
    assert ratio_interval(0.25 * below, below, everything(50), **asked) is None
    found = ratio_interval(0.25 * below, below, everything(50), **asked, extremes=(-1.0, 1.0))
    z2 = stats.t.ppf(0.975, 49) ** 2
    ends = [(0.25 * below.sum() + z2 * end) / (below.sum() + z2) for end in (-1, 1)]
    assert (found.low, found.high) == pytest.approx(ends)
    assert found.at(0.9975).low < found.low < 0.25 < found.high


def test_a_first_row_with_nothing_below_is_no_error():
    above = np.repeat([0.0, 1.0], [10, 40])
    found = ratio_interval(
        above, above, everything(50), confidence=0.95, generator=generator(), extremes=(-1.0, 1.0), bounds=(-1.0, 1.0)
    )
    assert 0.7 < found.low < found.high == 1.0


def test_median_of_independent_rows_has_the_exact_order_statistics():
    for n in (30, 101, 400):
        values = generator(10).gamma(2.0, 1.0, n)
        found = median_interval(values, everything(n), confidence=0.95)
        rank = int(stats.binom.ppf(0.025, n, 0.5))  # the largest symmetric pair of ranks that holds 95%
        ordered = np.sort(values)
        allowed = range(rank - 2, rank + 1)
        assert found.low in ordered[list(allowed)]
        assert found.high in ordered[[n - 1 - r for r in allowed]]


def test_median_among_ties_may_be_one_value_and_equal_values_are_a_point():
    values = np.repeat([0.0, 0.5, 1.0], [10, 60, 10])
    found = median_interval(values, everything(80), confidence=0.95)
    assert (found.low, found.high) == (0.5, 0.5)
    assert median_interval(np.ones(40), everything(40), confidence=0.95).at(0.99).high == 1.0


def test_median_of_copies_is_no_surer_than_that_of_the_sources():
    values = generator(14).gamma(2.0, 1.0, 60)
    once = median_interval(values, everything(60), confidence=0.95)
    copies = median_interval(np.repeat(values, 5), everything(300, np.repeat(np.arange(60), 5)), confidence=0.95)
    assert (copies.low, copies.high) == pytest.approx((once.low, once.high), abs=0.3)
    assert copies.high - copies.low > 0.7 * (once.high - once.low)


def test_proportion_is_wilson_with_t_quantile():
    values = (generator(12).random(4000) < 0.3).astype(float)
    found = proportion_interval(values, everything(4000), confidence=0.95)
    expected = stats.binomtest(int(values.sum()), 4000).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=2e-4)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_proportion_that_is_all_or_none_keeps_a_width(share):
    found = proportion_interval(np.full(50, share), everything(50), confidence=0.95)
    assert 0.05 < found.high - found.low < 0.1
    assert found.low <= share <= found.high


def test_equal_values_may_have_missed_others():
    asked = {"confidence": 0.95, "generator": generator()}
    assert mean_interval(np.full(40, 0.1), everything(40), **asked) is None  # nothing says how far others may lie
    none = mean_interval(np.zeros(40), everything(40), **asked, bounds=(0.0, 1.0))
    wilson = proportion_interval(np.zeros(40), everything(40), confidence=0.95)
    for level in (0.95, 0.9975):
        assert (none.at(level).low, none.at(level).high) == pytest.approx((wilson.at(level).low, wilson.at(level).high))
    found = mean_interval(np.full(40, 0.1), everything(40), **asked, bounds=(0.0, 1.0))
    missed = none.high
    assert (found.low, found.high) == pytest.approx((0.1 * (1 - missed), 0.1 + 0.9 * missed))
    grouped = mean_interval(np.zeros(40), everything(40, np.arange(40) % 8), **asked, bounds=(0.0, 1.0))
    assert grouped.high > 2 * none.high
    assert grouped.coverage_warning == "there are only 8 independent sources"


def test_sources_that_weigh_as_few_have_student_t():
    sources = np.repeat(np.arange(20), [200, *[1] * 19])
    groups, values = everything(219, sources), generator(24).normal(0, 1, 20)[sources]
    spread = mean_interval(values, groups, confidence=0.95, generator=generator())
    assert groups.effective < 2
    assert spread.method == "Student's t over sources"
    assert spread.coverage_warning.startswith(
        "most rows come from a few of the 20 sources, and all sources together give only as much information as 1.2 "
    )


def test_one_source_of_nearly_all_rows_says_little():
    sources = np.repeat(np.arange(11), [10_000, *[1] * 10])
    values = (sources > 0).astype(float)
    found = mean_interval(values, everything(10_010, sources), confidence=0.95, generator=generator(), bounds=(0, 1))
    assert found.high == 1.0


def test_one_pair_of_rows_does_not_make_a_median_of_ties_surer():
    values = np.repeat([0.0, 1.0], [140, 160])
    pair = np.concatenate([[0, 0], np.arange(1, 299)])
    for groups in (everything(300), everything(300, pair)):
        found = median_interval(values, groups, confidence=0.95)
        assert (found.low, found.high) == (0.0, 1.0)


def test_a_proportion_that_few_sources_hold_counts_sources():
    sources = np.repeat(np.arange(15), 20)
    values = np.zeros(300)
    values[:6] = 1
    found = proportion_interval(values, everything(300, sources), confidence=0.95)
    counted = 6 / 300, stats.t.ppf(0.975, 14) ** 2
    centre = (counted[0] + counted[1] / 30) / (1 + counted[1] / 15)
    reach = np.sqrt(counted[1] * counted[0] * (1 - counted[0]) / 15 + counted[1] ** 2 / 900) / (1 + counted[1] / 15)
    assert found.high == pytest.approx(centre + reach)
    assert found.low < 6 / 300


def test_pseudo_sources_are_as_large_as_that_of_an_average_row():
    kinds = np.array([[1.0, 1.0], [-1.0, 1.0]])
    columns = np.column_stack([np.zeros(200), np.ones(200)])
    spreads = [
        linearised_interval(shares, columns.__getitem__, everything(200, sources), pseudo=kinds, confidence=0.95)
        for sources in (None, np.repeat(np.arange(50), 4))
    ]
    # Nothing differs, so all error is that of the pseudo-sources: two of 1 row each, then two of 4 rows each.
    assert spreads[0].error == pytest.approx(np.sqrt(2) / 202, rel=1e-3)
    assert spreads[1].error == pytest.approx(np.sqrt(2 * 4**2) / 208, rel=1e-3)


def test_a_second_cause_of_error_widens():
    values = generator(25).normal(0, 1, 400)
    spread = mean_interval(values, everything(400), confidence=0.95, generator=generator())
    wider = widened(spread, 0.1, 2, "and over copies", (-0.4, 0.4))
    for level in (0.8, 0.95):
        own, reach = spread.at(level), stats.t.ppf((1 + level) / 2, 2) * 0.1
        half = np.hypot((own.high - own.low) / 2, reach)
        middle = (own.high + own.low) / 2
        expected = np.clip([middle - half, middle + half], -0.4, 0.4)
        assert [wider.at(level).low, wider.at(level).high] == pytest.approx(expected)
    assert wider.error == pytest.approx(np.hypot(spread.error, 0.1))


def test_one_value_unlike_all_others_gives_a_finite_interval():
    values = np.zeros(50)
    values[3] = 1.0
    found = mean_interval(values, everything(50), confidence=0.95, generator=generator(), bounds=(0.0, 1.0))
    assert 0.0 == found.low < 0.02 < found.high < 1.0


def test_one_source_has_no_interval():
    sources = np.zeros(50, dtype=int)
    values = generator().random(50)
    groups = everything(50, sources)
    assert mean_interval(values, groups, confidence=0.95, generator=generator()) is None
    assert median_interval(values, groups, confidence=0.95) is None
    assert linearised_interval(shares, np.ones((50, 2)).__getitem__, groups, pseudo=np.eye(2), confidence=0.95) is None
    assert proportion_interval(values.round(), groups, confidence=0.95) is None


def test_subsampling_of_a_mean_is_near_the_t_interval():
    values = generator(13).normal(0, 1, 300)
    found = subsampling_interval(
        lambda rows: float(values[rows].mean()),
        everything(300),
        observed=float(values.mean()),
        confidence=0.95,
        generator=generator(),
    )
    low, high = stats.t.interval(0.95, 299, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low))


def test_difference_of_paired_proportions_is_the_adjusted_wald_interval():
    """Agresti & Min 2005: half a pair in each of four cells, then the ordinary interval."""
    changes = np.repeat([1.0, -1.0, 0.0], [7, 2, 51])
    columns = np.column_stack([changes, np.ones(60)])
    kinds = np.array([[1.0, 1.0], [-1.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    found = linearised_interval(shares, columns.__getitem__, everything(60), pseudo=kinds, confidence=0.95)
    centre = 5 / 62
    error = np.sqrt(((7.5 + 2.5) / 62 - centre**2) / 62)
    reach = stats.t.ppf(0.975, 59) * error
    assert (found.low, found.high) == pytest.approx((centre - reach, centre + reach), abs=1e-3)


def test_no_difference_at_all_keeps_a_width():
    columns = np.column_stack([np.zeros(40), np.ones(40)])
    kinds = np.array([[1.0, 1.0], [-1.0, 1.0]])
    found = linearised_interval(shares, columns.__getitem__, everything(40), pseudo=kinds, confidence=0.95)
    assert found.low < -0.02 < 0.02 < found.high


def test_an_undefined_statistic_has_no_linearised_interval():
    with np.errstate(invalid="ignore", divide="ignore"):
        found = linearised_interval(
            shares, np.zeros((40, 2)).__getitem__, everything(40), pseudo=np.array([[1.0, 1.0]]), confidence=0.95
        )
    assert found is None


def test_a_higher_confidence_is_never_a_shorter_interval():
    values = generator(15).beta(1, 20, 80)
    groups = everything(80)
    spreads = [
        mean_interval(values, groups, confidence=0.95, generator=generator()),
        median_interval(values, groups, confidence=0.95),
        proportion_interval((values > 0.05).astype(float), groups, confidence=0.95),
        linearised_interval(
            shares, np.column_stack([values, np.ones(80)]).__getitem__, groups, pseudo=np.ones((1, 2)), confidence=0.95
        ),
    ]
    for spread in spreads:
        ends = [spread.at(level) for level in (0.5, 0.9, 0.95, 0.99, 0.9999)]
        assert all(a.low >= b.low and a.high <= b.high for a, b in itertools.pairwise(ends))
        assert (spread.low, spread.high) == (ends[2].low, ends[2].high)


def test_beyond_the_last_resamples_the_tail_still_grows():
    values = generator(16).normal(0, 1, 200)
    spread = mean_interval(values, everything(200), confidence=0.95, generator=generator())
    reach = [spread.at(level).high - values.mean() for level in (0.999, 0.99999)]
    expected = stats.norm.ppf(0.999995) / stats.norm.ppf(0.9995)
    assert reach[1] / reach[0] == pytest.approx(expected, rel=0.1)


def test_a_bracket_reaches_from_the_lower_to_the_upper():
    values = generator(17).random(60)
    below = mean_interval(values, everything(60), confidence=0.95, generator=generator())
    above = mean_interval(values + 0.1, everything(60), confidence=0.95, generator=generator())
    both = bracket(below, above)
    assert (both.low, both.high) == (below.low, above.high)


def test_a_source_that_holds_most_rows_widens_a_mean():
    sizes = np.array([1] * 12 + [48])
    sources = np.repeat(np.arange(13), sizes)
    values = generator(18).normal(0, 1, 13)[sources]
    groups = everything(60, sources)
    assert groups.effective == pytest.approx(60**2 / (12 + 48**2))
    spread = mean_interval(values, groups, confidence=0.95, generator=generator())
    totals = np.array([values[sources == s].sum() for s in range(13)])
    without = (totals.sum() - totals) / (60 - sizes)
    jackknife = np.sqrt(12 / 13 * ((without - values.mean()) ** 2).sum())
    assert spread.error == pytest.approx(jackknife)


@settings(max_examples=25)
@given(
    values=st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=60),
    seed=st.integers(0, 5),
    sources=st.integers(1, 20),
    data=st.data(),
)
def test_interval_is_deterministic_finite_within_bounds_and_free_of_order(values, seed, sources, data):
    numbers = np.array(values)
    names, rows = [f"s{i % sources}" for i in range(len(values))], ids(len(values))
    order = np.array(data.draw(st.permutations(range(len(values)))))
    chosen = np.ones(len(values), dtype=bool)
    first = mean_interval(
        numbers, Groups.of(names, rows, chosen), confidence=0.95, generator=generator(seed), bounds=(-1.0, 1.0)
    )
    again = mean_interval(
        numbers[order],
        Groups.of([names[i] for i in order], [rows[i] for i in order], chosen),
        confidence=0.95,
        generator=generator(seed),
        bounds=(-1.0, 1.0),
    )
    assert (first is None) == (again is None)
    if first is not None and again is not None:
        assert first.at(0.95) == again.at(0.95)
        assert first.at(0.99) == again.at(0.99)
        assert -1 <= first.low <= first.high <= 1


@pytest.mark.parametrize("step", [1.0, 0.1])
def test_sources_with_the_same_mean_have_no_interval_without_bounds(step):
    """Although the rows of a source differ, nothing says how much the means of other sources would differ."""
    values, sources = step * np.array([0.0, 1, 2, 0, 1, 2, 0, 1, 2]), ["a", "a", "a", "b", "b", "b", "c", "c", "c"]
    groups = Groups.of(sources, ids(9), np.ones(9, dtype=bool))
    assert mean_interval(values, groups, confidence=0.95, generator=generator()) is None


def test_sources_with_the_same_share_have_the_interval_of_equal_rows():
    """Such as one flipped decision in each source of two texts."""
    flips, sources = np.array([0.0, 1.0] * 5), [f"s{i // 2}" for i in range(10)]
    groups = Groups.of(sources, ids(10), np.ones(10, dtype=bool))
    spread = mean_interval(flips, groups, confidence=0.95, generator=generator(), bounds=(0.0, 1.0))
    assert spread.low < 0.3
    assert spread.high > 0.7


def test_strong_skewness_of_few_sources_is_said():
    values = generator(21).lognormal(0, 1.5, 200)
    spread = mean_interval(values, everything(200), confidence=0.95, generator=generator())
    assert spread.coverage_warning.startswith(f"the values are strongly skewed (skewness {stats.skew(values):.1f})")
    mirrored = mean_interval(-values, everything(200), confidence=0.95, generator=generator())
    assert f"skewness -{stats.skew(values):.1f}" in mirrored.coverage_warning
    many = generator(21).lognormal(0, 1.5, 600)
    assert mean_interval(many, everything(600), confidence=0.95, generator=generator()).coverage_warning == ""
    even = generator(22).normal(0, 1, 200)
    assert mean_interval(even, everything(200), confidence=0.95, generator=generator()).coverage_warning == ""


def test_few_sources_are_said():
    values = generator(23).normal(0, 1, 40)
    spread = mean_interval(values, everything(40, np.arange(40) % 8), confidence=0.95, generator=generator())
    assert spread.coverage_warning.startswith("there are only 8 independent sources")
