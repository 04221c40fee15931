from __future__ import annotations

import numpy as np
import pytest

from attnaudit import checks
from attnaudit.checks import Agreement, check, from_tables, to_table
from attnaudit.errors import AuditError, CheckError
from attnaudit.verdict_text import failure_message
from tests.units.checks.synthetic_measurements import measured


@check(title="Peak", question="Is one token given everything?", low=0, high=1, worst="highest", unit="weight")
def attention_peak_for_tests(measurements):
    """Largest attention weight."""
    return measurements.scalar("attention.max")


@check(title="Median peak", question="?", statistic="median", needs=("agreement.gradient.meister.inputs",))
def median_peak_for_tests(measurements):
    return measurements.scalar("attention.max")


@check(title="Peaked", question="?", statistic="proportion")
def peaked_for_tests(measurements):
    return np.where(measurements.scalar("attention.max") > 0.5, 1, 0)


def test_a_decorated_function_is_a_check():
    m = measured()
    made = attention_peak_for_tests(at_most=0.99)
    record = made.judge(m)
    assert made.id == "attention_peak_for_tests"
    assert attention_peak_for_tests.__doc__ == "Largest attention weight."
    assert record.value == pytest.approx(m.scalars["attention.max"].mean())
    assert record.verdict == "pass"
    assert record.family == "custom"
    assert record.worst[0].value == m.scalars["attention.max"].max()
    assert failure_message(record).startswith("mean weight 0.")


def test_median_and_proportion():
    m = measured()
    peak = m.scalars["attention.max"]
    assert median_peak_for_tests(severity="report").judge(m).value == np.median(peak)
    assert peaked_for_tests(at_least=0.1).judge(m).value == np.mean(peak > 0.5)
    assert median_peak_for_tests(severity="report").needs() == ("agreement.gradient.meister.inputs",)


@check(title="Undeclared", question="?")
def undeclared_for_tests(measurements):
    return measurements.scalar("uniform.tvd")


@check(title="Failing", question="?")
def failing_for_tests(measurements):
    return measurements.scalar("attention.max") / np.zeros((3, 4))


def test_a_measure_that_is_not_declared_is_missing_even_if_it_was_measured():
    with pytest.raises(CheckError, match=r"No number 'uniform\.tvd' was measured.*needs=\["):
        undeclared_for_tests(severity="report").judge(measured())


def test_an_error_in_a_check_names_the_line():
    with pytest.raises(CheckError, match=r"ValueError at test_custom_check\.py:\d+ in failing_for_tests: operands"):
        failing_for_tests(severity="report").judge(measured())


def test_a_policy_names_the_function():
    made = attention_peak_for_tests(at_most=0.9, inconclusive="warn")
    assert from_tables([to_table(made)], where="here") == [made]


def function(values):
    """Return a function that returns the values."""

    def bad_for_tests(measurements):
        return values

    return bad_for_tests


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, 2.0], "returned shape (2,); expected one number per instance, (40,)"),
        (np.full(40, np.inf), "returned an infinite value for row-0000. Return NaN"),
        (np.full(40, 2.0), "returned 2; expected values between 0 and 1"),
        (["a"] * 40, "failed: ValueError: could not convert"),
    ],
)
def test_invalid_return_values_are_refused(values, message, monkeypatch):
    monkeypatch.setattr("attnaudit.checks.custom_check.checks.register", lambda name: lambda thing: thing)
    made = check(title="t", question="q", low=0, high=1)(function(values))(at_least=0.5)
    with pytest.raises(CheckError) as caught:
        made.judge(measured(40))
    assert message in str(caught.value)


def test_a_proportion_needs_zeros_and_ones(monkeypatch):
    monkeypatch.setattr("attnaudit.checks.custom_check.checks.register", lambda name: lambda thing: thing)
    made = check(title="t", question="q", statistic="proportion")(function(np.full(40, 0.5)))(at_least=0.5)
    with pytest.raises(CheckError, match="expected 0, 1 or NaN"):
        made.judge(measured(40))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"statistic": "meen"}, "unknown statistic 'meen'. Did you mean 'mean'"),
        ({"worst": "low"}, "unknown worst 'low'. Did you mean 'lowest'?"),
        ({"needs": "attention"}, "expected a tuple of names, such as ('attention',)"),
    ],
)
def test_unknown_decorator_arguments_are_refused(arguments, message):
    with pytest.raises(CheckError) as caught:
        check(title="t", question="q", **arguments)
    assert message in str(caught.value)


def test_the_decorator_needs_parentheses():
    with pytest.raises(CheckError, match=r"Write @attnaudit\.checks\.check\(title=\.\.\., question=\.\.\.\)\."):

        @check
        def bare_for_tests(measurements): ...


def test_invalid_call_arguments_are_refused():
    with pytest.raises(CheckError, match=r"unknown argument 'at_mots'. Did you mean 'at_most'"):
        attention_peak_for_tests(at_mots=0.5)
    with pytest.raises(CheckError, match="attention_peak_for_tests: a gate needs a threshold"):
        attention_peak_for_tests()
    with pytest.raises(CheckError, match="at_most is 2; expected a number between 0 and 1"):
        attention_peak_for_tests(at_most=2)


def test_a_name_is_registered_once():
    with pytest.raises(AuditError, match="'Agreement' is registered twice"):
        checks.check(title="t", question="q")(type("f", (), {"__name__": "Agreement", "__module__": "elsewhere"})())
    assert from_tables([{"name": "Agreement", "at_least": 0.1}], where="here") == [Agreement(at_least=0.1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"title": 5}, "title is 5; expected text"),
        ({"unit": None}, "unit is None; expected text"),
        ({"low": "0"}, "low is '0'; expected a number"),
        ({"needs": (1,)}, "needs is (1,); expected a tuple of names"),
    ],
)
def test_decorator_arguments_of_another_type_are_refused(arguments, message):
    with pytest.raises(CheckError) as caught:
        check(**{"title": "t", "question": "q", **arguments})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full(40, 1j), "returned complex numbers; expected real numbers"),
        (np.full(40, "2024-01-01", dtype="datetime64[D]"), "returned dates; expected real numbers"),
        (np.full(40, 3, dtype="timedelta64[s]"), "returned time differences; expected real numbers"),
        ([np.timedelta64(3, "s")] * 40, "returned time differences"),
        (np.full(40, 1e150), "larger than 1e"),
    ],
)
def test_numbers_that_cannot_be_judged(values, message, monkeypatch):
    monkeypatch.setattr("attnaudit.checks.custom_check.checks.register", lambda name: lambda thing: thing)
    made = check(title="t", question="q")(function(values))(severity="report")
    with pytest.raises(CheckError, match=message):
        made.judge(measured(40))


@pytest.mark.parametrize(("missing", "kind"), [(999, np.int64), (999, np.float64), (np.inf, np.float64)])
def test_masked_entries_are_undefined(missing, kind, monkeypatch):
    monkeypatch.setattr("attnaudit.checks.custom_check.checks.register", lambda name: lambda thing: thing)
    numbers = np.tile([0, 1, 1, missing], 10).astype(kind)
    masked = np.ma.masked_greater(numbers, 1)
    made = check(title="t", question="q", low=0, high=1)(function(masked))(at_least=0.1)
    record = made.judge(measured(40))
    assert (record.value, record.n, record.n_defined) == (pytest.approx(2 / 3), 40, 30)


@pytest.mark.parametrize("spread", [1e-3, 1e-15])
@pytest.mark.parametrize("size", [1e17, 1.7e18, 1e90])
def test_large_numbers_are_judged(size, spread, monkeypatch):
    monkeypatch.setattr("attnaudit.checks.custom_check.checks.register", lambda name: lambda thing: thing)
    made = check(title="t", question="q")(function(size * (1 + spread * np.arange(40))))(at_least=0.0)
    record = made.judge(measured(40))
    assert (record.verdict, sum(record.distribution.counts)) == ("pass", 40)


def test_a_table_keeps_the_reading():
    made = attention_peak_for_tests(at_most=0.9, reading="rollout@query=cls")
    assert from_tables([to_table(made)], where="here") == [made]
