"""A check of one's own: a function from measurements to one number per instance."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnaudit.arrays import Floats
from attnaudit.checks.base import HOW_TO_READ, TOKEN_COLUMNS, Check, Description, Parameter
from attnaudit.checks.evidence import Evidence, mean_of, reasons
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AuditError, CheckError, nearest, raised_at
from attnaudit.readings import split
from attnaudit.records import WorstOrder
from attnaudit.registry import checks
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval, median_interval, proportion_interval

Measure = Callable[[Measurements], ArrayLike]
STATISTICS = ("mean", "median", "proportion")
LARGEST = 1e100


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What `check` was told about a function."""

    name: str
    measure: Measure
    needs: tuple[str, ...]
    statistic: str
    description: Description


@dataclass(frozen=True, kw_only=True)
class CustomCheck(Check):
    """A decorated function with a threshold; made by calling what `check` returned."""

    definition: Definition = field(repr=False)

    @property
    def subject(self) -> str:
        return self.definition.name

    @property
    def description(self) -> Description:
        return self.definition.description

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {name: getattr(self, name) for name in Check.argument_names()}

    @property
    def _name(self) -> str:
        return self.definition.name

    def needs(self) -> tuple[str, ...]:
        return self.definition.needs

    def evidence(self, measurements: Measurements) -> Evidence:
        values = self._values(measurements)
        missing = np.isnan(values)
        kept = values[~missing]
        statistic = self.definition.statistic
        value = mean_of(values) if statistic != "median" else (float(np.median(kept)) if len(kept) else None)
        groups = Groups.of(measurements.instances, ~missing)
        interval = self._interval(measurements, values, groups)
        return Evidence(
            value=value,
            interval=interval,
            no_interval="all values are alike: give the check low and high, between which others may lie"
            if interval is None and len(groups) > 1
            else "",
            defined=~missing,
            undefined=reasons(("the check returned NaN", missing)),
            values=values,
            values_label=f"{self.definition.name} per instance",
        )

    def _interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        generator = self.generator(measurements, "interval")
        if self.definition.statistic == "median":
            return median_interval(values, groups, confidence=self.confidence)
        if self.definition.statistic == "proportion":
            return proportion_interval(values, groups, confidence=self.confidence)
        return mean_interval(
            values, groups, confidence=self.confidence, generator=generator, bounds=self.description.bounds
        )

    def _measures(self) -> list[str]:
        """The measures that it has asked for, and those behind them."""
        from attnaudit.engine.planning import resolve

        return [one.measure.name for one in resolve([split(need)[0] for need in self.needs()]).measures]

    def _values(self, measurements: Measurements) -> Floats:
        name, n, said = self._name, len(measurements), self.description
        try:
            given = self.definition.measure(measurements.of(self._measures()))
            if np.iscomplexobj(given):
                raise CheckError(f"check '{name}' returned complex numbers, expected real ones.")
            values = np.asarray(given, dtype=np.float64)
        except AuditError:
            raise
        except Exception as error:
            frozen = "read-only" in str(error)
            mend = " What was measured is shared by all checks: change a copy, x.copy()." if frozen else ""
            raise CheckError(
                f"check '{name}' failed: {type(error).__name__}{raised_at(error)}: {error}.{mend}"
            ) from error
        if values.shape != (n,):
            raise CheckError(f"check '{name}' returned shape {values.shape}, expected one number per instance, ({n},).")
        known = values[~np.isnan(values)]
        if not np.isfinite(known).all():
            raise CheckError(f"check '{name}' returned an infinite value; return NaN where it is undefined.")
        if len(known) and np.abs(known).max() > LARGEST:
            raise CheckError(f"check '{name}' returned a value beyond {LARGEST:g}: rescale it.")
        outside = known[(known < said.low) | (known > said.high)]
        if len(outside):
            raise CheckError(
                f"check '{name}' returned {outside[0]:g}, expected values between {said.low:g} and {said.high:g}."
            )
        if self.definition.statistic == "proportion" and not np.isin(known, (0.0, 1.0)).all():
            raise CheckError(f"check '{name}': a proportion needs 0 or 1 per instance, or NaN where undefined.")
        return values


class CheckFactory:
    """What `check` returns: call it with a threshold to declare the check."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        functools.update_wrapper(self, definition.measure)

    def __call__(self, **arguments: Any) -> CustomCheck:
        unknown = sorted(set(arguments) - set(self.argument_names()))
        if unknown:
            raise CheckError(
                f"{self.definition.name}: unknown argument '{unknown[0]}'. {nearest(unknown[0], self.argument_names())}"
            )
        return CustomCheck(definition=self.definition, **arguments)

    def argument_names(self) -> tuple[str, ...]:
        return Check.argument_names()


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
) -> Callable[[Measure], CheckFactory]:
    """Decorator: makes a check of a function `measurements -> (n,)` numbers, NaN where undefined.

    needs: measures to take, such as "agreement.gradient.meister.inputs"; predictions and attention always are there.
    statistic: "mean", "median" or "proportion" (of ones). low, high: the values it can take, to refuse impossible
    thresholds. worst: "lowest" or "highest" values are shown as examples. The function's name is the check's id and its
    name in policies.

        @checks.check(title="Attention is not a spike", question="Is one token given all the weight?", low=0, high=1)
        def attention_peak(measurements):
            return measurements.scalar("attention.max")

        @audit(attention_peak(at_most=0.9))
        def test_attention(check): ...
    """
    if statistic not in STATISTICS:
        raise CheckError(f"check: unknown statistic {statistic!r}. {nearest(statistic, STATISTICS)}")
    if worst not in ("lowest", "highest"):
        raise CheckError(f"check: unknown worst {worst!r}. {nearest(worst, ('lowest', 'highest'))}")
    if isinstance(needs, str):
        raise CheckError(f"check: needs is {needs!r}, expected a tuple of names, such as ({needs!r},).")
    texts = {"title": title, "question": question, "why": why, "how_to_read": how_to_read, "unit": unit}
    for argument, text in texts.items():
        if not isinstance(text, str):
            raise CheckError(f"check: {argument} is {text!r}, expected text.")
    for argument, names in (("needs", needs), ("token_columns", token_columns)):
        if not all(isinstance(one, str) for one in names):
            raise CheckError(f"check: {argument} is {names!r}, expected a tuple of names.")
    for argument, bound in (("low", low), ("high", high)):
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or math.isnan(bound):
            raise CheckError(f"check: {argument} is {bound!r}, expected a number.")
    if statistic == "proportion":
        low, high = 0.0, 1.0

    def declare(measure: Measure) -> CheckFactory:
        name = getattr(measure, "__name__", "")
        if not name.isidentifier():
            raise CheckError(f"check: expected a named function, but got {measure!r}.")
        factory = CheckFactory(
            Definition(
                name=name,
                measure=measure,
                needs=tuple(needs),
                statistic=statistic,
                description=Description(
                    family="custom",
                    title=title,
                    question=question,
                    why=why,
                    how_to_read=how_to_read,
                    statistic=statistic,
                    unit=unit,
                    value_name=f"{statistic} {unit or name}",
                    low=low,
                    high=high,
                    worst=worst,
                    token_columns=tuple(token_columns),
                ),
            )
        )
        checks.register(name)(factory)
        return factory

    return declare
