"""What every check is: arguments that are validated when it is declared, and a way from measurements to a record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from attnaudit.checks import verdict as verdicts
from attnaudit.checks.evidence import Evidence, histogram, worst
from attnaudit.errors import CheckError, nearest
from attnaudit.measurement.measurements import Measurements
from attnaudit.measurement.seeding import keyed_generator
from attnaudit.records import CheckRecord, Direction, InconclusiveRule, Requirement, Severity
from attnaudit.registry import checks

Parameter = str | float | int | bool | None
LN2 = math.log(2)
SHOWN_IN_MESSAGE = 3
TOKEN_COLUMNS = ("attention", "gradient.meister.inputs", "leave_one_out.inputs", "adversarial.*")


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a check is in words. measured: how its number is called in a message. low, high: the values it can take.
    worst: which instances to look at first. token_columns: what is drawn over their tokens, where it was measured;
    a name that ends in '*' stands for the first measured one that begins so."""

    family: str
    title: str
    question: str
    why: str
    statistic: str
    unit: str
    measured: str
    low: float = -math.inf
    high: float = math.inf
    worst: str = "lowest"
    token_columns: tuple[str, ...] = TOKEN_COLUMNS

    @property
    def bounds(self) -> tuple[float, float]:
        return (self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A measure, a statistic and a threshold.

    at_least, at_most: the threshold; a gate has exactly one, a check that only reports may have none. severity: "gate"
    fails its pytest case, "report" never does. confidence: of the two-sided interval over instances. inconclusive: what
    a gate does when the threshold lies inside the interval ("fail", "warn" or "pass"). Arguments that cannot be meant
    raise CheckError.
    """

    at_least: float | None = None
    at_most: float | None = None
    severity: Severity = "gate"
    confidence: float = 0.95
    inconclusive: InconclusiveRule = "fail"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least", "at_most")

    def __post_init__(self) -> None:
        self.choose("severity", ("gate", "report"))
        self.choose("inconclusive", ("fail", "warn", "pass"))
        self.number("confidence", 0.5, 0.999)
        self.validate()
        self._validate_threshold()

    @property
    def id(self) -> str:
        """The name of this check in case ids and records, such as 'agreement.gradient.meister.inputs'."""
        raise NotImplementedError

    @property
    def description(self) -> Description:
        raise NotImplementedError

    def needs(self) -> tuple[str, ...]:
        """The measures to take."""
        raise NotImplementedError

    def evidence(self, measurements: Measurements) -> Evidence:
        """The statistic, its interval and what is shown beside it."""
        raise NotImplementedError

    def validate(self) -> None:
        """Checks the arguments of its own. Raises CheckError."""

    @property
    def family(self) -> str:
        return self.description.family

    @property
    def requirement(self) -> Requirement | None:
        if self.at_least is not None:
            return Requirement(direction="at_least", value=self.at_least)
        return None if self.at_most is None else Requirement(direction="at_most", value=self.at_most)

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

    def judge(self, measurements: Measurements) -> CheckRecord:
        """The whole record of this check on what was measured. Raises CheckError where a measure was not taken."""
        found, said = self.evidence(measurements), self.description
        n, n_defined, lowest = len(measurements), int(found.defined.sum()), said.worst == "lowest"
        interval = None if found.value is None or found.interval is None else found.interval.at(self.confidence)
        verdict, reason = verdicts.decide(
            value=found.value, interval=interval, requirement=self.requirement, n=n, n_defined=n_defined
        )
        shown = worst(measurements, found, lowest=lowest)
        first = verdicts.headline(
            said.measured,
            value=found.value,
            interval=interval,
            requirement=self.requirement,
            n=n,
            n_defined=n_defined,
        )
        rows = {name: row for row, name in enumerate(measurements.ids)}
        text = verdicts.message(
            first,
            verdict=verdict,
            reason=reason,
            interval=interval,
            undefined=found.undefined,
            references=found.references,
            shown=[(one, _tokens(measurements, rows[one.instance])) for one in shown[:SHOWN_IN_MESSAGE]],
            order=said.worst,
            note=found.note,
        )
        return CheckRecord(
            check=self.id,
            family=said.family,
            model=measurements.model,
            data=measurements.data,
            seed=int(measurements.seed),
            title=said.title,
            question=said.question,
            why=said.why,
            parameters=self.parameters,
            needs=list(self.needs()),
            verdict=verdict,
            severity=self.severity,
            inconclusive=self.inconclusive,
            statistic=said.statistic,
            unit=said.unit,
            value=found.value,
            requirement=self.requirement,
            interval=interval,
            n=n,
            n_defined=n_defined,
            undefined=found.undefined,
            references=list(found.references),
            details=found.details,
            distribution=None
            if found.values is None
            else histogram(found.values, found.values_label or said.unit, found.values_range),
            charts=list(found.charts),
            worst=shown,
            token_columns=_measured_columns(measurements, said.token_columns),
            note=found.note,
            message=text,
            blocks=verdicts.blocks(verdict, severity=self.severity, inconclusive=self.inconclusive),
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
            raise CheckError(f"{self._name}: {argument}={given:g} is impossible, expected a number {span}.")
        object.__setattr__(self, argument, float(given))

    @property
    def _name(self) -> str:
        return type(self).__name__

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
            finite = (max(low, -1.7e308), min(high, 1.7e308))
            self.number(name, *finite)


C = TypeVar("C", bound=type[Check])


def registered(check: C) -> C:
    """Class decorator: policies and entry points find the check under the name of its class."""
    checks.register(check.__name__)(check)
    return check


def _tokens(measurements: Measurements, row: int) -> str:
    attention = measurements.vectors.get("attention")
    top = None if attention is None or not len(attention[row]) else int(np.argmax(attention[row]))
    return verdicts.marked(measurements.tokens[row], top)


def _measured_columns(measurements: Measurements, wanted: Iterable[str]) -> list[str]:
    columns = []
    for name in wanted:
        if name.endswith("*"):
            columns += sorted(c for c in measurements.per_token if c.startswith(name[:-1]))[:1]
        elif name in measurements.per_token:
            columns.append(name)
    return list(dict.fromkeys(columns))
