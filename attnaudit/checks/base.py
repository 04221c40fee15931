"""What every check is: arguments that are validated when it is declared, and a way from measurements to a record."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.evidence import Evidence, histogram, joined, reasons, worst_instances
from attnaudit.checks.reading_sweep import swept
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError, nearest
from attnaudit.readings import FORM, named
from attnaudit.readings import parse as parse_reading
from attnaudit.records import CheckRecord, Direction, InconclusiveRule, Requirement, Severity, WorstOrder
from attnaudit.registry import checks
from attnaudit.seeding import keyed_generator
from attnaudit.statistics.decision import decision
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate, bracket, shifted
from attnaudit.statistics.intervals import mean_interval
from attnaudit.statistics.threshold import Expression, parse
from attnaudit.statistics.verdict import blocks

Parameter = str | float | int | bool | None
LN2 = math.log(2)
HOW_TO_READ = "The value is compared with the threshold together with its confidence interval."
TOKEN_COLUMNS = ("attention", "gradient.meister.inputs", "leave_one_out.inputs", "adversarial.*")


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a check is in words. value_name: how its number is called in a message. low, high: the values it can take.
    worst: which instances to look at first. token_columns: what is drawn over their tokens, where it was measured;
    a name that ends in '*' stands for the first measured one that begins so. references: those that are a mean over the
    same instances as the value, so that a threshold can be relative to them."""

    family: str
    title: str
    question: str
    why: str
    statistic: str
    unit: str
    value_name: str
    how_to_read: str = HOW_TO_READ
    low: float = -math.inf
    high: float = math.inf
    worst: WorstOrder = "lowest"
    token_columns: tuple[str, ...] = TOKEN_COLUMNS
    references: tuple[str, ...] = ()

    @property
    def bounds(self) -> tuple[float, float]:
        return (self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A measure, a statistic and a threshold.

    at_least, at_most: the threshold, a number or an expression of the check's references, such as "floor + 0.2" or
    "floor + 0.5 * (ceiling - floor)"; a gate has exactly one, a check that only reports may have none. severity: "gate"
    fails its pytest case, "report" never does. confidence: of the two-sided interval over instances. inconclusive: what
    a gate does when the threshold lies inside the interval ("fail", "warn" or "pass"). reading: which attention is the
    explanation, such as "cls@layer=-1,heads=mean" (see attnaudit.readings); the model's own by default; with "*" for
    the layer or the heads, all of them are reported side by side. Arguments that cannot be meant raise CheckError.
    """

    at_least: float | str | None = None
    at_most: float | str | None = None
    severity: Severity = "gate"
    confidence: float = 0.95
    inconclusive: InconclusiveRule = "fail"
    reading: str | None = None

    directions: ClassVar[tuple[Direction, ...]] = ("at_least", "at_most")

    def __post_init__(self) -> None:
        self.choose("severity", ("gate", "report"))
        self.choose("inconclusive", ("fail", "warn", "pass"))
        self.number("confidence", 0.5, 0.999)
        self._validate_reading()
        self.validate()
        self._validate_threshold()

    @property
    def id(self) -> str:
        """The name of this check in case ids and records: its subject, and the reading where one is named."""
        return named(self.subject, self.reading or "")

    @property
    def subject(self) -> str:
        """What is checked, such as 'agreement.gradient.meister.inputs'."""
        raise NotImplementedError

    @property
    def description(self) -> Description:
        raise NotImplementedError

    def needs(self) -> tuple[str, ...]:
        """The measures to take, by their plain names."""
        raise NotImplementedError

    def needs_under_reading(self) -> tuple[str, ...]:
        """The measures to take, under the reading of this check."""
        return tuple(named(need, self.reading or "") for need in self.needs())

    def evidence(self, measurements: Measurements) -> Evidence:
        """The statistic, its interval and what is shown beside it."""
        raise NotImplementedError

    def validate(self) -> None:
        """Checks the arguments of its own. Raises CheckError."""

    @property
    def family(self) -> str:
        return self.description.family

    @property
    def threshold(self) -> tuple[Direction, float | Expression] | None:
        """Which side is required, and of what."""
        for direction in ("at_least", "at_most"):
            given = getattr(self, direction)
            if given is not None:
                return direction, parse(given, self.description.references) if isinstance(given, str) else given
        return None

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The arguments, defaults filled in; with the name of the class they are a [[check]] table."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}

    @classmethod
    def argument_names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(cls) if f.init)

    def generator(self, measurements: Measurements, purpose: str) -> np.random.Generator:
        """Random numbers that depend on the run's seed, this check's id and the purpose alone."""
        return keyed_generator(measurements.seed, "check", self.id, purpose)

    def judge(self, measurements: Measurements, *, gated: int = 1) -> CheckRecord:
        """Judge what was measured.

        Args:
            measurements: what was measured of one model on one data set.
            gated: how many gated checks the policy has, for which a failure is corrected.

        Raises:
            CheckError: if a measure of this check was not taken.
        """
        readings = measurements.readings_of(self.reading or "")
        matrix = None
        if self.reading and parse_reading(self.reading).many:
            evidence, matrix = swept(self, measurements, readings)
        else:
            measurements = measurements.under(readings[0])
            evidence = self.evidence(measurements)
        reading = "" if matrix else readings[0]
        evidence, requirement = self._against_threshold(measurements, evidence)
        description = self.description
        gated = max(1, gated) if self.severity == "gate" else 1
        decided = decision(
            value=evidence.value,
            estimate=evidence.interval,
            requirement=requirement,
            n=len(measurements),
            n_defined=int(evidence.defined.sum()),
            confidence=self.confidence,
            gated=gated,
            no_interval=evidence.no_interval,
        )
        caution = evidence.interval.caution if evidence.interval and evidence.value is not None else ""
        return CheckRecord(
            check=self.id,
            family=description.family,
            model=measurements.model,
            data=measurements.data,
            seed=int(measurements.seed),
            title=f"{description.title} ({self.reading})" if self.reading else description.title,
            question=description.question,
            why=description.why,
            how_to_read=description.how_to_read,
            parameters=self.parameters,
            needs=list(self.needs_under_reading()),
            verdict=decided.verdict,
            reason=decided.reason,
            severity=self.severity,
            inconclusive=self.inconclusive,
            statistic=description.statistic,
            unit=description.unit,
            value_name=description.value_name,
            value=evidence.value,
            requirement=requirement,
            interval=decided.interval,
            n=len(measurements),
            n_defined=int(evidence.defined.sum()),
            undefined=evidence.undefined,
            references=list(evidence.references),
            details=evidence.details,
            distribution=None
            if evidence.values is None
            else histogram(evidence.values, evidence.values_label or description.unit, evidence.values_range),
            charts=list(evidence.charts),
            worst=worst_instances(measurements, evidence, lowest=description.worst == "lowest"),
            worst_first=description.worst,
            token_columns=_measured_columns(measurements, description.token_columns, reading),
            note=joined(evidence.note, caution),
            blocks=blocks(decided.verdict, severity=self.severity, inconclusive=self.inconclusive),
            gated=gated,
            fail_interval=decided.fail_interval,
            planning=decided.planning,
            reading=reading,
            matrix=matrix,
        )

    def _against_threshold(self, measurements: Measurements, found: Evidence) -> tuple[Evidence, Requirement | None]:
        """The evidence as it is held against the threshold, and the threshold as a number.

        A relative threshold is itself an estimate: what decides is the mean of the paired difference to it, over the
        instances where both are defined. Value and interval are of those instances, the interval shifted by the number.
        """
        if self.threshold is None:
            return found, None
        direction, asked = self.threshold
        if not isinstance(asked, Expression):
            return found, Requirement(direction=direction, value=asked)
        if found.values is None or not set(asked.weights) <= set(found.reference_values):
            raise CheckError(f"{self._name}: the measurements hold no values per instance for '{asked.text}'.")
        limit = asked.of(found.reference_values)
        both = found.defined & ~np.isnan(found.values) & ~np.isnan(limit)
        if not both.any():
            return replace(found, value=None, defined=both), None
        number = float(limit[both].mean())
        groups = Groups.of(measurements.instances, both)
        low, high = self.description.bounds
        least, most = asked.range(low, high)

        def estimate(values: Floats) -> IntervalEstimate | None:
            return mean_interval(
                values - limit,
                groups,
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=(low - most, high - least),
            )

        below = estimate(found.values)
        above = estimate(np.fmax(found.values, found.upper)) if found.upper is not None else None
        paired = bracket(below, above) if below and above else below
        return (
            replace(
                found,
                value=float(found.values[both].mean()),
                interval=shifted(paired, number, f"paired difference to {asked.text}") if paired else None,
                defined=both,
                undefined=found.undefined
                | reasons(("a reference of the threshold is undefined", found.defined & ~both)),
            ),
            Requirement(direction=direction, value=number, expression=asked.text),
        )

    def choose(self, argument: str, known: Iterable[str]) -> None:
        """Raises CheckError unless the argument is one of the known words."""
        given, choices = getattr(self, argument), tuple(known)
        if given not in choices:
            raise CheckError(f"{self._name}: unknown {argument} {given!r}. {nearest(str(given), choices)}")

    def number(self, argument: str, low: float, high: float) -> None:
        """Makes the argument a float. Raises CheckError unless it is a number in [low, high]."""
        given = getattr(self, argument)
        if isinstance(given, bool) or not isinstance(given, (int, float, np.integer, np.floating)):
            raise CheckError(f"{self._name}: {argument} is {given!r}, expected a number.")
        if not low <= given <= high:
            span = f"between {low:g} and {high:.4g}" if math.isfinite(high - low) else "that is finite"
            huge = isinstance(given, int) and abs(given) > 10**300
            shown = "a number too large" if huge else f"{given:g}"
            raise CheckError(f"{self._name}: {argument}={shown} is impossible, expected a number {span}.")
        object.__setattr__(self, argument, float(given))

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _validate_reading(self) -> None:
        if self.reading is None:
            return
        if not isinstance(self.reading, str):
            raise CheckError(f"{self._name}: reading is {self.reading!r}, expected words such as {FORM!r}.")
        try:
            reading = parse_reading(self.reading)
        except CheckError as error:
            raise CheckError(f"{self._name}: {error}") from None
        if reading.many and self.severity == "gate":
            raise CheckError(
                f"{self._name}: reading {self.reading!r} stands for many readings, which are reported side by side and "
                'never gate together: give severity="report", or name one layer and head.'
            )
        object.__setattr__(self, "reading", reading.text)

    def _validate_threshold(self) -> None:
        given = [name for name in ("at_least", "at_most") if getattr(self, name) is not None]
        example = f"{self.directions[0]}=..."
        if len(given) == 2:
            raise CheckError(f"{self._name}: both at_least and at_most are given; keep one.")
        if not given and self.severity == "gate":
            raise CheckError(f'{self._name}: a gate needs a threshold: give {example}, or severity="report".')
        for name in given:
            if name not in self.directions:
                raise CheckError(f"{self._name}: {name} would reward what this check warns of; give {example}.")
            low, high = self.description.bounds
            if isinstance(getattr(self, name), str):
                if self.reading and parse_reading(self.reading).many:
                    raise CheckError(
                        f"{self._name}: {name} is relative to references, but reading {self.reading!r} stands for many "
                        "readings, each with its own: give a number, or name one layer and head."
                    )
                self._validate_expression(name, low, high)
            else:
                self.number(name, max(low, -1.7e308), min(high, 1.7e308))

    def _validate_expression(self, argument: str, low: float, high: float) -> None:
        text, known = getattr(self, argument), self.description.references
        with contextlib.suppress(ValueError):
            float(text)
            raise CheckError(f"{self._name}: {argument} is {text!r}, expected a number: write it without quotes.")
        if not known:
            raise CheckError(
                f"{self._name}: {argument} is {text!r}, expected a number: this check has no reference that is "
                "measured on the same instances."
            )
        try:
            least, most = parse(text, known).range(low, high)
        except CheckError as error:
            raise CheckError(f"{self._name}: {argument}: {error}") from None
        if most < low or least > high:
            raise CheckError(
                f"{self._name}: {argument}={text!r} is impossible: it lies between {least:.4g} and {most:.4g}, "
                f"expected a number between {low:g} and {high:.4g}."
            )


C = TypeVar("C", bound=type[Check])


def registered(check: C) -> C:
    """Class decorator: policies and entry points find the check under the name of its class."""
    checks.register(check.__name__)(check)
    return check


def _measured_columns(measurements: Measurements, wanted: Iterable[str], reading: str) -> list[str]:
    """Which of the wanted columns were measured, by the names they are kept under."""
    columns: list[str] = []
    for name in wanted:
        if name.endswith("*"):
            columns += sorted(c for c in measurements.per_token if c.startswith(name[:-1]))[:1]
        elif name in measurements.per_token:
            columns.append(name)
    return [c if c in measurements.shared else named(c, reading) for c in dict.fromkeys(columns)]
