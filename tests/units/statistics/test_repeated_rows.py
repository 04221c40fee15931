"""Copies of rows give no information, so no interval of a gate may become narrower if every row is repeated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.cohens_kappa import CohensKappa
from attnaudit.statistics.f1_drop import F1Drop
from attnaudit.statistics.groups import Groups, rows_without_copies
from attnaudit.statistics.half_sampling import subsampling_interval
from attnaudit.statistics.intervals import mean_interval, median_interval, proportion_interval, ratio_interval
from attnaudit.statistics.paired_difference import paired_difference
from attnaudit.statistics.statistic_sequences import mean_sequence
from attnaudit.statistics.total_effect_index import TotalEffectIndex
from attnaudit.statistics.weighted_share import weighted_share_interval

LEVEL = 0.95
CLASSES = 3
UNIT = (0.0, 1.0)


class Sample:
    """Rows with values, labels and predictions. `Sample.repeated` returns the same rows several times."""

    def __init__(self, sources, values, others, labels, predicted, replaced, copies=1):
        self.copies = copies
        self.names = [f"s{source:03d}" for source in np.repeat(sources, copies)]
        self.values, self.others = np.repeat(values, copies), np.repeat(others, copies)
        self.labels, self.predicted = np.repeat(labels, copies), np.repeat(predicted, copies)
        self.replaced = np.repeat(replaced, copies, axis=0)
        self.parts = (sources, values, others, labels, predicted, replaced)
        count = len(self.names)
        self.groups = Groups.of(self.names, [f"{row:06d}" for row in range(count)], np.ones(count, dtype=bool))

    def repeated(self, copies):
        return Sample(*self.parts, copies=copies)

    @property
    def balanced(self):
        return WeightedRows.balanced(self.labels, self.groups)

    @property
    def outputs(self):
        return np.column_stack([self.others, 1 - self.others])


def seeded():
    return np.random.default_rng(0)


def f1_drop(sample):
    drop = F1Drop.of(sample.labels, sample.predicted[:, None].astype(float), sample.replaced, classes=CLASSES)
    return drop.interval(sample.groups, confidence=LEVEL)


def drop_of_class_1(sample):
    labels, predicted, replaced = sample.labels > 0, sample.predicted > 0, sample.replaced > 0
    drop = F1Drop.of(labels.astype(np.int64), predicted[:, None].astype(float), replaced.astype(float), classes=2)
    return drop.interval(sample.groups, confidence=LEVEL)


def total_effect(sample, *, smallest=False):
    index = TotalEffectIndex.of(sample.values, sample.outputs, sample.balanced)
    if index is None:
        return None
    estimate = index.interval_of_smallest if smallest else index.interval
    return estimate(confidence=LEVEL, generator=seeded(), largest_change=2.0)


def kappa(sample):
    changed = np.stack([(sample.replaced == c).mean(1) for c in range(CLASSES)], axis=1)
    return CohensKappa.of(sample.predicted, changed).interval(sample.groups, confidence=LEVEL, generator=seeded())


def balanced_ratio(sample):
    return sample.balanced.ratio_interval(
        sample.values - 0.5,
        sample.others + 0.1,
        confidence=LEVEL,
        generator=seeded(),
        bounds=(-5.0, 1.0),
        extremes=(-1.0, 1.0),
    )


def share_of_weight(sample):
    counted = np.where(sample.values > 0.5, sample.others, 0.0)
    return weighted_share_interval(counted, sample.others, sample.balanced, confidence=LEVEL)


def difference(sample):
    return paired_difference(
        sample.values, sample.others, sample.groups, confidence=LEVEL, generator=seeded(), bounds=UNIT
    ).interval


def half_sampled_mean(sample):
    return subsampling_interval(
        lambda rows: float(sample.values[rows].mean()),
        sample.groups,
        observed=float(sample.values.mean()),
        confidence=LEVEL,
        generator=seeded(),
    )


def sequence_of_means(sample):
    order = np.random.default_rng(1).permutation(len(sample.groups))
    return mean_sequence(sample.values, sample.groups, order, bounds=UNIT, confidence=LEVEL).interval()


METHODS = {
    "mean": lambda s: mean_interval(s.values, s.groups, confidence=LEVEL, generator=seeded(), bounds=UNIT),
    "ratio": lambda s: ratio_interval(s.values, s.others + 0.1, s.groups, confidence=LEVEL, generator=seeded()),
    "share of rows": lambda s: proportion_interval((s.values > 0.5) * 1.0, s.groups, confidence=LEVEL),
    "median": lambda s: median_interval(s.values, s.groups, confidence=LEVEL),
    "macro F1 drop": f1_drop,
    "F1 drop": drop_of_class_1,
    "total effect": total_effect,
    "smallest total effect": lambda s: total_effect(s, smallest=True),
    "Cohen's kappa": kappa,
    "pointing": balanced_ratio,
    "pointing, share": share_of_weight,
    "paired difference": difference,
    "half samples": half_sampled_mean,
    "confidence sequence": sequence_of_means,
}


@st.composite
def samples(draw):
    """Few or many sources of one or several rows, with tied values, rare classes and rare changes."""
    count = draw(st.integers(6, 40))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sources = draw(
        st.sampled_from([np.arange(count), np.arange(count) // 2, random.integers(0, max(2, count // 3), count)])
    )
    grid = draw(st.sampled_from([1, 2, 4, 1000]))
    values, others = (random.integers(0, grid + 1, (2, count)) / grid) ** draw(st.sampled_from([1, 4]))
    labels = np.minimum(random.geometric(draw(st.sampled_from([0.4, 0.8])), count) - 1, CLASSES - 1)
    rate = draw(st.sampled_from([0.0, 0.1, 0.5]))

    def noisy(shape):
        changed = random.random(shape) < rate
        of_rows = labels.reshape(-1, *[1] * (len(shape) - 1))
        return np.where(changed, random.integers(0, CLASSES, shape), of_rows)

    return Sample(sources, values, others, labels, noisy((count,)), noisy((count, 2)).astype(float))


def assert_not_narrower(name, sample, copies):
    once, again = METHODS[name](sample), METHODS[name](sample.repeated(copies))
    if once is None:
        assert again is None
        return
    if again is not None:
        tolerance = 1e-6 * max(1.0, min(abs(once.high), 1e6))
        assert again.low <= once.low + tolerance
        assert again.high >= once.high - tolerance


@pytest.mark.parametrize("name", METHODS)
@given(sample=samples(), copies=st.integers(2, 60))
@settings(max_examples=25, deadline=None)
def test_repeating_every_row_narrows_no_interval(name, sample, copies):
    assert_not_narrower(name, sample, copies)


@pytest.mark.parametrize("copies", [1, 2, 10, 60])
def test_a_drop_in_f1_of_repeated_rows_has_the_interval_of_the_rows(copies):
    labels = np.arange(40) % 2
    sample = Sample(np.arange(40), labels, labels, labels, labels, np.stack([labels, labels], axis=1), copies=copies)
    found = drop_of_class_1(sample)
    assert (found.low, found.high) == pytest.approx((-0.0681, 0.0681), abs=1e-4)


def rows_of(values, sources):
    ids = [f"{row:03d}" for row in range(len(values))]
    groups = Groups.of([f"s{one}" for one in sources], ids, np.ones(len(values), dtype=bool))
    return rows_without_copies(np.array(values, dtype=float), groups)


def test_only_rows_that_all_may_be_copies_are_left_out():
    assert rows_of([1, 2, 3, 1], [0, 0, 1, 1]) == 4
    assert rows_of([1, 1, 3, 3], [0, 0, 1, 1]) == 2
    assert rows_of([1, 3, 1, 3], [0, 1, 0, 1]) == 2
    assert rows_of([1, 1, 1, 1, 2, 2], [0, 0, 0, 0, 1, 1]) == 3
    assert rows_of([1, 1, 3, 3, 4], [0, 0, 1, 1, 2]) == 5
    assert rows_of([1, 2, 2, 1], [0, 0, 1, 1]) == 4


def test_sources_with_the_same_share_of_ones_are_no_surer_with_copies():
    values, sources = np.tile([0.0, 1.0], 15), np.repeat(np.arange(15), 2)
    once, again = (
        proportion_interval(
            np.repeat(values, copies),
            Sample(sources, *[values.astype(int)] * 4, values, copies).groups,
            confidence=LEVEL,
        )
        for copies in (1, 20)
    )
    assert (again.low, again.high) == pytest.approx((once.low, once.high))
