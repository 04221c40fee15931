"""The base of every check: arguments that are validated when it is declared, facts about it, and its record."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.evidence import Evidence, histogram, join_remarks, worst_instances
from attnaudit.checks.reading_sweep import evidence_over_readings
from attnaudit.checks.relative_threshold import relative_to_references
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError, nearest
from attnaudit.readings import FORM, named
from attnaudit.readings import parse as parse_reading
from attnaudit.records import CheckRecord, Direction, InconclusiveRule, Requirement, Severity, WorstOrder
from attnaudit.registry import checks
from attnaudit.seeding import keyed_generator
from attnaudit.statistics.decision import decision
from attnaudit.statistics.threshold import Expression, parse
from attnaudit.statistics.verdict import blocks

Parameter = str | float | int | bool | None
LN2 = math.log(2)
HOW_TO_READ = "The value is compared with the threshold together with its confidence interval."
TOKEN_COLUMNS = ("attention", "gradient.meister.inputs", "leave_one_out.inputs", "adversarial.*")


@dataclass(frozen=True, kw_only=True)
class Check:
    """A measure, a statistic and a threshold.

    A subclass is a frozen dataclass, decorated with `registered`, in a file of its own in `attnaudit/checks/`. It gives
    `subject`, `needs` and `evidence`, and the facts about it (`family` to `threshold_references` below) as class
    attributes, or as properties where they depend on its arguments. Most checks derive from
    `attnaudit.checks.PerInstanceCheck`, which gives `evidence`.

    Args:
        at_least: the lower threshold: a number, or an expression of the check's references such as "shuffled + 0.2".
            A gate has exactly one threshold, an informational check at most one.
        at_most: the upper threshold, in the same form.
        severity: "gate" fails its pytest case, "report" never does.
        confidence: the confidence of the two-sided interval over instances.
        inconclusive: what a gate does when the threshold lies inside the interval: "fail", "warn" or "pass".
        reading: which attention is the explanation, such as "cls@layer=-1,heads=mean" (see `attnaudit.readings`); by
            default the model's own. With "*" for the layer or the heads, all of them are reported side by side.

    Raises:
        CheckError: if an argument is invalid.
    """

    at_least: float | str | None = None
    at_most: float | str | None = None
    severity: Severity = "gate"
    confidence: float = 0.95
    inconclusive: InconclusiveRule = "fail"
    reading: str | None = None

    #: The thresholds that make sense; one alone where the other would reward what the check warns of.
    directions: ClassVar[tuple[Direction, ...]] = ("at_least", "at_most")

    @property
    def family(self) -> str:
        """The kind of check, such as "agreement"."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """The claim that the check tests."""
        raise NotImplementedError

    @property
    def question(self) -> str:
        """The question that the check asks."""
        raise NotImplementedError

    @property
    def why(self) -> str:
        """Why the answer matters."""
        raise NotImplementedError

    @property
    def how_to_read(self) -> str:
        """How to read the value."""
        return HOW_TO_READ

    @property
    def statistic(self) -> str:
        """What the value is over the instances."""
        return "mean"

    @property
    def unit(self) -> str:
        """The unit of the value."""
        raise NotImplementedError

    @property
    def value_name(self) -> str:
        """The name of the value in a headline, such as "mean τ-b"."""
        return f"{self.statistic} {self.unit}"

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value that is possible."""
        return (-math.inf, math.inf)

    @property
    def worst(self) -> WorstOrder:
        """Whether the lowest or the highest values are shown as the worst instances."""
        return "lowest"

    @property
    def token_columns(self) -> tuple[str, ...]:
        """The columns to draw over the tokens of an instance, where they were measured. A name that ends in "*" is
        replaced by the first measured column that begins so."""
        return TOKEN_COLUMNS

    @property
    def threshold_references(self) -> tuple[str, ...]:
        """The references that a threshold may be relative to: those that have a value for every instance."""
        return ()

    @property
    def subject(self) -> str:
        """What is checked, such as "agreement.gradient.meister.inputs"."""
        raise NotImplementedError

    def needs(self) -> tuple[str, ...]:
        """Return the names of the measures that the check reads, without a reading."""
        raise NotImplementedError

    def evidence(self, measurements: Measurements) -> Evidence:
        """Return the statistic, its interval, and what to compare it with.

        Raises:
            CheckError: if a measure of this check was not taken.
        """
        raise NotImplementedError

    def validate(self) -> None:
        """Validate the arguments that a subclass adds.

        Raises:
            CheckError: if one is invalid.
        """

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

    def needs_under_reading(self) -> tuple[str, ...]:
        """Return the names of the measures that the check reads, under its reading."""
        return tuple(named(need, self.reading or "") for need in self.needs())

    @property
    def threshold(self) -> tuple[Direction, float | Expression] | None:
        """The direction and the limit; None for a check without a threshold."""
        for direction in ("at_least", "at_most"):
            limit = getattr(self, direction)
            if limit is not None:
                return direction, parse(limit, self.threshold_references) if isinstance(limit, str) else limit
        return None

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The arguments with their defaults; together with the name of the class they are a [[check]] table."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}

    @classmethod
    def argument_names(cls) -> tuple[str, ...]:
        """Return the names of the arguments."""
        return tuple(f.name for f in dataclasses.fields(cls) if f.init)

    def generator(self, measurements: Measurements, purpose: str) -> np.random.Generator:
        """Return random numbers that depend only on the run's seed, this check's id and the purpose."""
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
        if self._is_sweep:
            evidence, matrix = evidence_over_readings(self, measurements, readings)
        else:
            measurements = measurements.under(readings[0])
            evidence = self.evidence(measurements)
        reading = "" if matrix else readings[0]
        evidence, requirement = self._against_threshold(measurements, evidence)
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
        return CheckRecord(
            check=self.id,
            family=self.family,
            model=measurements.model,
            data=measurements.data,
            seed=int(measurements.seed),
            title=f"{self.title} ({self.reading})" if self.reading else self.title,
            question=self.question,
            why=self.why,
            how_to_read=self.how_to_read,
            parameters=self.parameters,
            needs=list(self.needs_under_reading()),
            verdict=decided.verdict,
            reason=decided.reason,
            severity=self.severity,
            inconclusive=self.inconclusive,
            statistic=self.statistic,
            unit=self.unit,
            value_name=self.value_name,
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
            else histogram(evidence.values, evidence.values_label or self.unit, evidence.values_range),
            charts=list(evidence.charts),
            worst=worst_instances(measurements, evidence, self.worst),
            worst_first=self.worst,
            token_columns=_measured_columns(measurements, self.token_columns, reading),
            note=join_remarks([evidence.note, decided.coverage_warning]),
            blocks=blocks(decided.verdict, severity=self.severity, inconclusive=self.inconclusive),
            gated=gated,
            fail_interval=decided.fail_interval,
            planning=decided.planning,
            reading=reading,
            matrix=matrix,
        )

    def choose(self, argument: str, known: Iterable[str]) -> None:
        """Require that an argument is one of the known words.

        Raises:
            CheckError: if it is not, with the nearest known word.
        """
        given, choices = getattr(self, argument), tuple(known)
        if given not in choices:
            raise CheckError(f"{self.name_in_errors}: unknown {argument} {given!r}. {nearest(str(given), choices)}")

    def number(self, argument: str, low: float, high: float) -> None:
        """Require that an argument is a number in [low, high], and make it a float.

        Raises:
            CheckError: if it is not.
        """
        given = getattr(self, argument)
        if isinstance(given, bool) or not isinstance(given, (int, float, np.integer, np.floating)):
            raise CheckError(f"{self.name_in_errors}: {argument} is {given!r}, expected a number.")
        if not low <= given <= high:
            span = f"between {low:g} and {high:.4g}" if math.isfinite(high - low) else "that is finite"
            huge = isinstance(given, int) and abs(given) > 10**300
            text = "a number too large" if huge else f"{given:g}"
            raise CheckError(f"{self.name_in_errors}: {argument}={text} is impossible, expected a number {span}.")
        object.__setattr__(self, argument, float(given))

    @property
    def name_in_errors(self) -> str:
        """The name of the check in error messages: what a policy calls it."""
        return type(self).__name__

    @property
    def _is_sweep(self) -> bool:
        """Whether the reading names several readings, by "*"."""
        return bool(self.reading) and parse_reading(self.reading or "").many

    def _against_threshold(
        self, measurements: Measurements, evidence: Evidence
    ) -> tuple[Evidence, Requirement | None]:
        """The evidence as it is compared with the threshold, and the threshold as a number."""
        if self.threshold is None:
            return evidence, None
        direction, limit = self.threshold
        if not isinstance(limit, Expression):
            return evidence, Requirement(direction=direction, value=limit)
        return relative_to_references(
            evidence,
            direction,
            limit,
            instances=measurements.instances,
            bounds=self.bounds,
            confidence=self.confidence,
            generator=lambda: self.generator(measurements, "interval"),
            check=self.name_in_errors,
        )

    def _validate_reading(self) -> None:
        if self.reading is None:
            return
        if not isinstance(self.reading, str):
            raise CheckError(f"{self.name_in_errors}: reading is {self.reading!r}, expected text such as {FORM!r}.")
        try:
            reading = parse_reading(self.reading)
        except CheckError as error:
            raise CheckError(f"{self.name_in_errors}: {error}") from None
        if reading.many and self.severity == "gate":
            raise CheckError(
                f"{self.name_in_errors}: reading {self.reading!r} names several readings, which are reported side by "
                'side and cannot gate: give severity="report", or name one layer and head.'
            )
        object.__setattr__(self, "reading", reading.text)

    def _validate_threshold(self) -> None:
        given = [name for name in ("at_least", "at_most") if getattr(self, name) is not None]
        example = f"{self.directions[0]}=..."
        if len(given) == 2:
            raise CheckError(f"{self.name_in_errors}: both at_least and at_most are given; keep one.")
        if not given and self.severity == "gate":
            raise CheckError(f'{self.name_in_errors}: a gate needs a threshold: give {example}, or severity="report".')
        for name in given:
            if name not in self.directions:
                raise CheckError(
                    f"{self.name_in_errors}: {name} would reward what this check warns of; give {example}."
                )
            low, high = self.bounds
            if not isinstance(getattr(self, name), str):
                self.number(name, max(low, -1.7e308), min(high, 1.7e308))
            elif self._is_sweep:
                raise CheckError(
                    f"{self.name_in_errors}: {name} is relative to references, but reading {self.reading!r} names "
                    "several readings, each with its own references: give a number, or name one layer and head."
                )
            else:
                self._validate_expression(name, low, high)

    def _validate_expression(self, argument: str, low: float, high: float) -> None:
        text, known = getattr(self, argument), self.threshold_references
        with contextlib.suppress(ValueError):
            float(text)
            raise CheckError(
                f"{self.name_in_errors}: {argument} is {text!r}, expected a number: write it without quotes."
            )
        if not known:
            raise CheckError(
                f"{self.name_in_errors}: {argument} is {text!r}, expected a number: this check has no reference that "
                "is measured on the same instances."
            )
        try:
            least, most = parse(text, known).range(low, high)
        except CheckError as error:
            raise CheckError(f"{self.name_in_errors}: {argument}: {error}") from None
        if most < low or least > high:
            raise CheckError(
                f"{self.name_in_errors}: {argument}={text!r} is impossible: it lies between {least:.4g} and "
                f"{most:.4g}, expected a number between {low:g} and {high:.4g}."
            )


C = TypeVar("C", bound=type[Check])


def registered(check: C) -> C:
    """Register a check class under its name, by which policies, entry points and `attnaudit.checks` find it."""
    checks.register(check.__name__)(check)
    return check


def _measured_columns(measurements: Measurements, columns: Iterable[str], reading: str) -> list[str]:
    """Which of the columns were measured, by their names under the reading."""
    measured: list[str] = []
    for name in columns:
        if name.endswith("*"):
            measured += sorted(c for c in measurements.per_token if c.startswith(name[:-1]))[:1]
        elif name in measurements.per_token:
            measured.append(name)
    return [c if c in measurements.shared else named(c, reading) for c in dict.fromkeys(measured)]
