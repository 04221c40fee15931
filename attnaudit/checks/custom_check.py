"""Custom checks. They are made from functions that return one number per instance."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from attnaudit.arrays import Floats
from attnaudit.checks.base import HOW_TO_READ, TOKEN_COLUMNS
from attnaudit.checks.evidence import Mask
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.disk_arrays.filed_arrays import FiledArray
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AuditError, CheckError, nearest, raised_at
from attnaudit.readings import split
from attnaudit.records import WorstOrder
from attnaudit.registry import checks
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import median_interval, proportion_interval

Function = Callable[[Measurements], ArrayLike]
P = ParamSpec("P")
R = TypeVar("R")
STATISTICS = ("mean", "median", "proportion")
#: The largest magnitude of a value. Sums of powers of larger values could overflow.
LARGEST = 1e100
#: Kinds of NumPy arrays that a check may not return, although NumPy can convert them to real numbers.
_REFUSED = {"c": "complex numbers", "M": "dates", "m": "time differences"}


@dataclass(frozen=True, kw_only=True)
class CustomCheck(PerInstanceCheck):
    """The base class of custom checks.

    The decorator `check` creates one subclass for each function. The arguments of the decorator become class attributes
    of the subclass.
    """

    lists_classes: ClassVar[bool] = False
    has_custom_texts: ClassVar[bool] = True
    function: ClassVar[Function]
    required_measures: ClassVar[tuple[str, ...]]

    family = "custom"
    values_range = None

    @property
    def name_in_errors(self) -> str:
        return self.subject

    def needs(self) -> tuple[str, ...]:
        return self.required_measures

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (("the check returned NaN", undefined),)

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        if self.statistic == "median":
            defined = values[~np.isnan(values)]
            return float(np.median(defined)) if len(defined) else None
        return super().value(measurements, values, groups)

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        if self.statistic == "median":
            return median_interval(values, groups, confidence=self.confidence)
        if self.statistic == "proportion":
            return proportion_interval(values, groups, confidence=self.confidence)
        return super().interval(measurements, values, groups)

    def no_interval(self, measurements: Measurements, value: float | None, groups: Groups) -> str:
        if len(groups) < 2:
            return ""
        return (
            "all values are equal, so an interval can be computed only if the check declares low and high, the range "
            "of possible values"
        )

    def values(self, measurements: Measurements) -> Floats:
        """Call the function of the check, and validate the values that it returns.

        Args:
            measurements: The measurements under one reading. The function receives only the measures that it declared.

        Returns:
            (n,) values, NaN where undefined or masked.

        Raises:
            CheckError: The function raised an error, did not return n real numbers, or returned an invalid number. Each
                number must be NaN or lie within the bounds. With statistic="proportion", it must be NaN, 0 or 1.
        """
        from attnaudit.engine.planning import resolve

        name, (low, high) = self.subject, self.bounds
        declared = [planned.measure.name for planned in resolve([split(need)[0] for need in self.needs()]).measures]
        try:
            returned = type(self).function(measurements.of(declared))
            values = _real_numbers(returned, name)
        except AuditError:
            raise
        except Exception as error:
            remedy = (
                " All checks share the measurements, so make changes in a copy: x.copy()."
                if "read-only" in str(error)
                else ""
            )
            raise CheckError(
                f"check '{name}' failed: {type(error).__name__}{raised_at(error)}: {error}.{remedy}"
            ) from error
        n = len(measurements)
        if values.shape != (n,):
            raise CheckError(f"check '{name}' returned shape {values.shape}; expected one number per instance, ({n},).")
        defined = values[~np.isnan(values)]
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            first = measurements.instances[int(infinite[0])]
            raise CheckError(
                f"check '{name}' returned an infinite value for {first.where or first.id}. Return NaN where the value "
                "is undefined."
            )
        if len(defined) and np.abs(defined).max() > LARGEST:
            raise CheckError(
                f"check '{name}' returned a value larger than {LARGEST:g} in magnitude. Rescale the values."
            )
        outside = defined[(defined < low) | (defined > high)]
        if len(outside):
            raise CheckError(f"check '{name}' returned {outside[0]:g}; expected values between {low:g} and {high:g}.")
        if self.statistic == "proportion" and not np.isin(defined, (0.0, 1.0)).all():
            raise CheckError(
                f"check '{name}' returned values other than 0 and 1; with statistic='proportion', expected 0, 1 or "
                "NaN (undefined) for each instance."
            )
        return values


def _real_numbers(returned: Any, name: str) -> Floats:
    """Return the result of the function of a check as an array of real numbers, NaN where the result is masked."""
    array: Any = np.asanyarray(returned)
    if array.dtype.kind in _REFUSED:
        raise CheckError(f"check '{name}' returned {_REFUSED[array.dtype.kind]}; expected real numbers.")
    if isinstance(array, np.ma.MaskedArray):
        return np.asarray(np.ma.filled(array.astype(np.float64), np.nan))
    return array.astype(np.float64) if isinstance(array, FiledArray) else np.asarray(array, dtype=np.float64)


class CheckFactory:
    """The object that replaces a function with the decorator `check`. A call with a threshold declares the check."""

    def __init__(self, kind: type[CustomCheck]) -> None:
        self.kind = kind
        functools.update_wrapper(self, kind.function)

    def __call__(self, **arguments: Any) -> CustomCheck:
        """Declare the check.

        Args:
            **arguments: The arguments that all checks have in common (see `CheckArguments`), such as at_least=0.3.

        Raises:
            CheckError: An argument is unknown or invalid.
        """
        unknown = sorted(set(arguments) - set(self.argument_names()))
        if unknown:
            raise CheckError(
                f"{self.kind.__name__}: unknown argument '{unknown[0]}'. {nearest(unknown[0], self.argument_names())}"
            )
        return self.kind(**arguments)

    def argument_names(self) -> tuple[str, ...]:
        """Return the names of all arguments."""
        return self.kind.argument_names()


def _by_name(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose error for an unnamed argument says how to write the decorator `check`."""

    @functools.wraps(function)
    def call(*unnamed: P.args, **named: P.kwargs) -> R:
        if unnamed:
            raise CheckError(
                f"check: found {unnamed[0]!r}; expected arguments with names. Write "
                "@attnaudit.checks.check(title=..., question=...)."
            )
        return function(*unnamed, **named)

    return call


@_by_name
def check(
    *,
    needs: Sequence[str] = (),
    title: str,
    question: str,
    why: str = "",
    how_to_read: str = HOW_TO_READ,
    statistic: str = "mean",
    unit: str = "",
    low: float = -math.inf,
    high: float = math.inf,
    worst: WorstOrder = "lowest",
    token_columns: Sequence[str] = TOKEN_COLUMNS,
) -> Callable[[Function], CheckFactory]:
    """Return a decorator that turns a function into a check.

    The function receives the measurements and returns n numbers, one per instance. A number is NaN where the value is
    undefined. The name of the function becomes the id of the check and its name in policies.

        @checks.check(title="Attention is not a spike", question="Is one token given all the weight?", low=0, high=1)
        def attention_peak(measurements):
            return measurements.scalar("attention.max")

        @audit(attention_peak(at_most=0.9))
        def test_attention(check): ...

    Args:
        needs: The names of the measures that the function reads, such as "agreement.gradient.meister.inputs".
            Predictions and attention are always measured.
        title: The claim that the check tests.
        question: The question that the check answers.
        why: Why the answer matters.
        how_to_read: How to interpret the value.
        statistic: How the values of the instances are combined: "mean", "median" or "proportion". With "proportion",
            each value is 0, 1 or NaN, and the statistic is the share of ones.
        unit: The unit of the value; "" if it has none.
        low: The smallest possible value. A smaller value or threshold is an error. For a proportion, `low` and `high`
            are ignored, because its bounds are 0 and 1.
        high: The largest possible value. A larger value or threshold is an error.
        worst: Which instances are listed as the worst: those with the "lowest" or the "highest" values.
        token_columns: The names of the columns that the report draws as heatmaps (see `Check.token_columns`).

    Raises:
        CheckError: An argument is invalid, or the decorated object is not a named function.
        AuditError: Another check has the name of the function.
    """
    if statistic not in STATISTICS:
        raise CheckError(f"check: unknown statistic {statistic!r}. {nearest(statistic, STATISTICS)}")
    if worst not in ("lowest", "highest"):
        raise CheckError(f"check: unknown worst {worst!r}. {nearest(worst, ('lowest', 'highest'))}")
    if isinstance(needs, str):
        raise CheckError(f"check: needs is {needs!r}; expected a tuple of names, such as ({needs!r},).")
    texts = {"title": title, "question": question, "why": why, "how_to_read": how_to_read, "unit": unit}
    for argument, text in texts.items():
        if not isinstance(text, str):
            raise CheckError(f"check: {argument} is {text!r}; expected text.")
    for argument, names in (("needs", needs), ("token_columns", token_columns)):
        if not all(isinstance(name, str) for name in names):
            raise CheckError(f"check: {argument} is {names!r}; expected a tuple of names.")
    for argument, bound in (("low", low), ("high", high)):
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or math.isnan(bound):
            raise CheckError(f"check: {argument} is {bound!r}; expected a number.")

    def declare(function: Function) -> CheckFactory:
        name = getattr(function, "__name__", "")
        if not name.isidentifier():
            raise CheckError(f"check: expected a named function, but got {function!r}.")
        facts = {
            **texts,
            "__doc__": function.__doc__,
            "__module__": function.__module__,
            "function": staticmethod(function),
            "required_measures": tuple(needs),
            "subject": name,
            "statistic": statistic,
            "value_name": f"{statistic} {unit or name}",
            "values_label": f"{name} per instance",
            "bounds": (0.0, 1.0) if statistic == "proportion" else (low, high),
            "worst": worst,
            "token_columns": tuple(token_columns),
        }
        factory = CheckFactory(types.new_class(name, (CustomCheck,), exec_body=lambda body: body.update(facts)))
        checks.register(name)(factory)
        return factory

    return declare
