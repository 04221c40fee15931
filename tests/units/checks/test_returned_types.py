"""What the methods of a custom `PerInstanceCheck` may return: NumPy numbers, lists, and statistics with an interval."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.checks import PerInstanceCheck
from attnaudit.errors import CheckError
from attnaudit.records import Breakdown, Chart, CheckRecord, Part, Reference, Series
from attnaudit.statistics.vacuous_thresholds import why_vacuous
from tests.units.checks.synthetic_measurements import measured


@dataclass(frozen=True, kw_only=True)
class Length(PerInstanceCheck):
    """The number of tokens. The other fields are what its methods return."""

    returned: ClassVar[Any] = None
    statistic_of: ClassVar[Any] = None
    further: ClassVar[Any] = None

    directions: ClassVar[Any] = ("at_least", "at_most")
    family = "length"
    title = "Texts are long"
    question = "Are the texts long?"
    why = "Short texts have little attention to audit."
    unit = "tokens"
    subject = "length"
    bounds = (0.0, 1e9)

    def needs(self):
        return ()

    def values(self, measurements):
        return np.asarray(measurements.lengths, dtype=np.float64) if self.returned is None else self.returned

    def value(self, measurements, values, groups):
        return super().value(measurements, values, groups) if self.statistic_of is None else self.statistic_of(values)

    def details(self, measurements, values):
        return self.further or {}


class WithInterval(Length):
    def interval(self, measurements, values, groups):
        return None


M = measured()


def returning(kind, *, statistic_of=None, **returned):
    """Return a check whose methods return other things."""
    own = {} if statistic_of is None else {"statistic_of": staticmethod(statistic_of)}
    return type(kind.__name__, (kind,), {**returned, **own})


def judge(kind=Length, **returned):
    return returning(kind, **returned)(severity="report").judge(M)


@pytest.mark.parametrize("statistic", [np.min, np.max, np.median, lambda values: 100.0])
def test_a_statistic_outside_the_interval_of_the_mean_is_an_error(statistic):
    with pytest.raises(CheckError, match=r"Length: value\(\) .* outside the 95% interval .* override"):
        judge(statistic_of=statistic, returned=np.random.default_rng(0).exponential(2.0, 120) ** 2)


def test_a_statistic_inside_the_interval_or_with_its_own_interval_is_accepted():
    assert judge(statistic_of=lambda values: values.mean() + 1e-9).interval is not None
    assert judge(WithInterval, statistic_of=np.min).value == M.lengths.min()


@given(seed=st.integers(0, 1000), n=st.integers(2, 120), sources=st.integers(1, 40), skewed=st.booleans())
def test_the_mean_is_never_outside_its_interval(seed, n, sources, skewed):
    random = np.random.default_rng(seed)
    values = random.lognormal(0, 2, n) if skewed else np.round(random.random(n), 1)
    m = measured(n=n, sources=min(n, sources))
    record = returning(Length, returned=values, statistic_of=np.mean)(severity="report").judge(m)
    assert record.value == pytest.approx(values.mean())


@pytest.mark.parametrize("scalar", [np.float32, np.float64, np.float16, np.int64, np.uint8, np.longdouble])
def test_numpy_scalars_become_built_in_numbers(scalar):
    further = {"a": scalar(2), "b": np.bool_(True), "c": np.str_("d")}
    record = judge(WithInterval, statistic_of=lambda values: scalar(3), further=further)
    assert (record.value, type(record.value)) == (3.0, float)
    assert {type(one) for one in record.details.values()} <= {int, float, str, type(None)}
    assert record.details["a"] == 2
    assert (record.details["b"], record.details["c"]) == (1, "d")
    assert msgspec.convert(msgspec.to_builtins(record), CheckRecord) == record


def test_numpy_scalars_in_charts_references_and_breakdowns_become_built_in_numbers():
    one = np.float32(0.5)

    class WithMore(Length):
        def references(self, measurements, values):
            return (Reference(name="half", value=one, meaning="one half", n=np.int64(3)),)

        def charts(self, measurements, values):
            series = [Series(name="s", x=[one], y=[one])]
            return (Chart(title="t", x_label="x", y_label="y", kind="line", series=series),)

    record = judge(WithMore)
    assert msgspec.convert(msgspec.to_builtins(record), CheckRecord) == record
    assert record.references[0].value == record.charts[0].series[0].y[0] == 0.5
    parts = (Breakdown(by="length", parts=[Part(name="a", n=1, value=one)]),)
    evidence = dataclasses.replace(Length(severity="report").evidence(M), breakdowns=parts)

    class Given(Length):
        def evidence(self, measurements):
            return evidence

    assert msgspec.to_builtins(judge(Given))["breakdowns"][0]["parts"][0]["value"] == 0.5


@pytest.mark.parametrize(
    "returned",
    [
        [0.5] * 120,
        [True] * 60 + [False] * 60,
        np.arange(120) > 59,
        np.full(120, 0.5, dtype=np.float32),
        [0.5] * 119 + [None],
        tuple(range(120)),
        np.ma.masked_greater(np.arange(120, dtype=np.float32), 40),
        np.ma.masked_greater(np.arange(120, dtype=np.float64), 40),
        np.ma.masked_greater(np.arange(120), 40),
    ],
)
def test_values_may_be_any_sequence_of_numbers(returned):
    expected = np.array([np.nan if one is None or one is np.ma.masked else float(one) for one in returned])
    record = judge(returned=returned)
    assert record.value == pytest.approx(np.nanmean(expected))
    assert record.n_defined == np.count_nonzero(~np.isnan(expected))


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (["a"] * 120, r"Length: values\(\) returned a list; expected an array with one number per instance"),
        ([1j] * 120, r"values\(\) returned a list"),
        (np.full(120, "a"), r"values\(\) returned an array of shape \(120,\) and type <U1"),
        ([[1.0], [1.0, 2.0]], r"values\(\) returned a list"),
        (0.5, r"values\(\) returned an array of shape \(\)"),
        (torch.ones(120, requires_grad=True), r"values\(\) returned a Tensor"),
    ],
)
def test_other_values_are_an_error_that_names_the_check(returned, words):
    with pytest.raises(CheckError, match=words):
        judge(returned=returned)


@pytest.mark.parametrize("returned", ["1.0", [1.0, 2.0], 1j, np.array([1.0, 2.0])])
def test_a_value_that_is_no_number_is_an_error(returned):
    with pytest.raises(CheckError, match=r"Length: value\(\) returned .*; expected a number or None"):
        judge(statistic_of=lambda values: returned)
    with pytest.raises(CheckError, match=r"Length: the detail 'a' is .*; expected a number, a text or None"):
        judge(further={"a": returned if not isinstance(returned, str) else [returned]})


def test_a_threshold_far_below_a_huge_bound_is_accepted():
    assert Length(at_least=4.6).judge(M).verdict in ("pass", "fail", "inconclusive")
    with pytest.raises(CheckError, match="can never fail"):
        Length(at_least=1e-7)


@given(limit=st.floats(1e-3, 1e6), high=st.floats(1e7, 1e100), low=st.sampled_from([0.0, -1.0, -1e9]))
def test_no_threshold_clearly_inside_a_huge_range_is_vacuous(limit, high, low):
    assert why_vacuous("at_least", limit, bounds=(low, high)) == ""
    assert why_vacuous("at_most", -limit, bounds=(-high, -low)) == ""
