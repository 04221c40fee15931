"""The base class of all checks. It lists what a check must define, and builds its record."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.builtin_types import in_builtin_types
from attnaudit.checks.check_arguments import CheckArguments
from attnaudit.checks.evidence import (
    Evidence,
    complete_counts,
    histogram,
    join_remarks,
    measured_columns,
    remarks_on_interval,
    too_few_different,
    typical_instances,
    worst_instances,
)
from attnaudit.checks.reading_sweep import evidence_over_readings
from attnaudit.checks.relative_threshold import relative_to_references, validate_expression
from attnaudit.checks.sequential import NO_SEQUENCE, RowSequence, sequential_evidence
from attnaudit.checks.unit_texts import with_unit_names
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.readings import named
from attnaudit.records import CheckRecord, Direction, Requirement, WorstOrder
from attnaudit.registry import checks
from attnaudit.seeding import keyed_generator
from attnaudit.statistics.decision import decision
from attnaudit.statistics.threshold import Expression, parse
from attnaudit.statistics.vacuous_thresholds import why_vacuous
from attnaudit.statistics.verdict import blocks

LN2 = math.log(2)
LARGEST_THRESHOLD = 1.7e308
UNBOUNDED = (-math.inf, math.inf)
HOW_TO_READ = "The verdict compares the whole confidence interval of the value with the threshold."
TOKEN_COLUMNS = ("attention", "gradient.meister.inputs", "leave_one_out.inputs", "adversarial.*")


@dataclass(frozen=True, kw_only=True)
class Check(CheckArguments, ABC):
    """The base class of all checks: a measure, a statistic and a threshold.

    A subclass is a frozen dataclass with the decorator `registered`. It defines the methods `needs` and `evidence`. It
    also defines `subject`, `family`, `title`, `question`, `why` and `unit`, as class attributes or, if they depend on
    the arguments, as properties. All other properties have defaults. The arguments that all checks have in common are
    described in `CheckArguments`.

    Most checks compute one number per instance. They inherit from `PerInstanceCheck`, which defines `evidence`.
    """

    #: The kinds of thresholds that the check accepts. Most checks accept only one kind, because with the other kind
    #: they would pass exactly those models that they should reject.
    directions: ClassVar[tuple[Direction, ...]] = ("at_least", "at_most")

    @property
    @abstractmethod
    def family(self) -> str:
        """The kind of check, such as "agreement"."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The claim that the check tests."""

    @property
    @abstractmethod
    def question(self) -> str:
        """The question that the check answers."""

    @property
    @abstractmethod
    def why(self) -> str:
        """Why the answer matters."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """The unit of the value, such as "Kendall τ-b"; "" if it has none."""

    @property
    def when_failed(self) -> str:
        """What a failed gate says about the model, as a short sentence without a full stop."""
        return f"“{self.title}” does not hold"

    @property
    def how_to_read(self) -> str:
        """How to interpret the value."""
        return HOW_TO_READ

    @property
    def statistic(self) -> str:
        """The name of the statistic, such as "mean". It does not change what is computed (see `PerInstanceCheck`)."""
        return "mean"

    @property
    def value_name(self) -> str:
        """The name of the value in a headline, such as "mean τ-b"."""
        return f"{self.statistic} {self.unit}"

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest possible value."""
        return (-math.inf, math.inf)

    @property
    def worst(self) -> WorstOrder:
        """Which instances count as the worst: those with the "lowest" or the "highest" values."""
        return "lowest"

    @property
    def token_columns(self) -> tuple[str, ...]:
        """The names of the columns that the report draws as heatmaps over the tokens of an instance.

        A name that ends in "*" stands for the first measured column, in alphabetical order, whose name begins with the
        text before the "*". Columns that were not measured are left out.
        """
        return TOKEN_COLUMNS

    @property
    def threshold_references(self) -> tuple[str, ...]:
        """The names of the references that a threshold may use. Each of them has one value per instance."""
        return ()

    @property
    def reference_bounds(self) -> Mapping[str, tuple[float, float]]:
        """Reference name -> its smallest and largest possible value, where they differ from `bounds`."""
        return {}

    @property
    def never_exceeds(self) -> tuple[str, ...]:
        """The names of the references that the value cannot exceed.

        An upper threshold that equals such a reference could never fail.
        """
        return ()

    @property
    @abstractmethod
    def subject(self) -> str:
        """The id of the check without its reading, such as "agreement.gradient.meister.inputs"."""

    @abstractmethod
    def needs(self) -> tuple[str, ...]:
        """Return the names of the measures that the check uses, without a reading (see `CheckArguments`)."""

    @abstractmethod
    def evidence(self, measurements: Measurements) -> Evidence:
        """Return the statistic, its interval, and the references to compare it with.

        Args:
            measurements: The measurements of one model on one data set, under one reading.

        Raises:
            CheckError: The measurements lack a measure that the check uses.
        """

    def row_sequence(self, measurements: Measurements) -> RowSequence | str:
        """Return the confidence sequence of the value, computed from rows (instances) in random order.

        Args:
            measurements: The measurements of n independent instances under one reading.

        Returns:
            The sequence; or, if there is none, the reason as a clause.
        """
        return NO_SEQUENCE

    @property
    def not_linearised(self) -> str:
        """Why `linearised_values` is not defined, as a clause; "" if it is defined."""
        return "its value is not computed from one number per instance"

    def linearised_values(self, measurements: Measurements) -> Floats:
        """Return one number per instance, so that two models can be compared instance by instance.

        The mean of the numbers is the value of the check, and their spread determines its sampling error. If the value
        is a mean, the numbers are the values of the instances. If it is a ratio of means, each number is this ratio
        plus the influence of the instance on it.

        Args:
            measurements: The measurements of n instances under one reading.

        Returns:
            (n,) numbers; NaN for instances that do not count in the value. All are NaN if the value is undefined.

        Raises:
            CheckError: The check does not define such numbers (see `not_linearised`).
        """
        raise CheckError(f"{self.name_in_errors} has no numbers per instance to compare: {self.not_linearised}.")

    def in_words(self, evidence: Evidence) -> str:
        """Explain the value in sentences for readers who do not know the statistic; "" without an explanation.

        Args:
            evidence: The evidence of the check under one reading. Its value is not None.
        """
        return ""

    def validate(self) -> None:
        """Validate the arguments that a subclass adds.

        Raises:
            CheckError: An argument is invalid.
        """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.validate()
        self._validate_threshold()

    @property
    def id(self) -> str:
        """The id of the check in records and in the ids of cases: its subject and, if one was given, its reading."""
        return named(self.subject, self.reading or "")

    def needs_under_reading(self) -> tuple[str, ...]:
        """Return the names of the measures that the check uses, with the reading if one was given."""
        return tuple(named(need, self.reading or "") for need in self.needs())

    @property
    def threshold(self) -> tuple[Direction, float | Expression] | None:
        """The direction of the threshold, and its limit as a number or an expression; None without a threshold."""
        for direction in ("at_least", "at_most"):
            limit = getattr(self, direction)
            if limit is not None:
                return direction, parse(limit, self.threshold_references) if isinstance(limit, str) else limit
        return None

    def no_difference(self, requirement: Requirement | None) -> float | None:
        """Return the value to which the threshold adds a margin; None if the threshold has another form.

        With at_least="floor + 0.2", the margin is 0.2, and the result is the mean of the reference `floor`.
        """
        limit = self.threshold[1] if self.threshold else None
        if requirement is None or not isinstance(limit, Expression):
            return None
        if not limit.constant or not math.isclose(sum(limit.weights.values()), 1):
            return None
        return requirement.value - limit.constant

    def generator(self, measurements: Measurements, purpose: str) -> np.random.Generator:
        """Return a random generator that depends only on the seed of the run, the id of this check, and the purpose."""
        return keyed_generator(measurements.seed, "check", self.id, purpose)

    def judged_rows(self, measurements: Measurements) -> np.typing.NDArray[np.bool_]:
        """Return an (n,) mask, True at the instances that `judge` uses. By default, it uses all instances."""
        every: np.typing.NDArray[np.bool_] = filled(len(measurements), True, np.bool_)
        return every

    def note_on_judged_rows(self, measurements: Measurements) -> str:
        """Return a remark on the instances that `judged_rows` leaves out, as a clause; "" if it leaves out none."""
        return ""

    def judge(self, measurements: Measurements, *, gated: int = 1) -> CheckRecord:
        """Compare the evidence with the threshold, and return the record with the verdict.

        Args:
            measurements: The measurements of one model on one data set.
            gated: The number of gates in the policy. A gate that fails is corrected for it (see `fail_confidence`).

        Raises:
            CheckError: The measurements lack a measure that the check uses.
        """
        readings = measurements.readings_of(self.reading or "")
        matrix = None
        if self.several_readings:
            evidence, matrix = evidence_over_readings(self, measurements, readings)
        else:
            measurements = measurements.under(readings[0])
            evidence = self.evidence(measurements)
        reading = "" if matrix else readings[0]
        evidence = in_builtin_types(evidence, self.name_in_errors)
        in_words = "" if matrix or evidence.value is None else self.in_words(evidence)
        evidence, requirement = self._against_threshold(measurements, evidence)
        gated = max(1, gated) if self.severity == "gate" else 1
        if self.sampling == "sequential":
            evidence = sequential_evidence(self, evidence, measurements, requirement, gated)
        n = int(self.judged_rows(measurements).sum())
        n_defined, n_different = int(evidence.defined.sum()), too_few_different(measurements, evidence.defined)
        decided = decision(
            value=evidence.value,
            estimate=evidence.interval,
            requirement=requirement,
            n=n,
            n_defined=n_defined,
            n_different=n_different,
            confidence=self.confidence,
            gated=gated,
            no_interval=evidence.no_interval,
            bounds=self.bounds if requirement is None or requirement.expression is None else UNBOUNDED,
            no_difference=self.no_difference(requirement),
            severity=self.severity,
            unseen_mixers=self.not_accepted(measurements.unseen_mixers),
        )
        label = evidence.values_label or self.unit
        distribution = None if evidence.values is None else histogram(evidence.values, label, evidence.values_range)
        record = CheckRecord(
            check=self.id,
            family=self.family,
            model=measurements.model,
            data=measurements.data,
            seed=int(measurements.seed),
            title=f"{self.title} ({self.reading})" if self.reading else self.title,
            question=self.question,
            why=self.why,
            how_to_read=self.how_to_read,
            in_words=in_words,
            when_failed=self.when_failed,
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
            n=n,
            n_defined=n_defined,
            n_different=n_different,
            undefined=complete_counts(evidence.undefined, n - n_defined),
            references=list(evidence.references),
            details=evidence.details,
            distribution=distribution,
            charts=list(evidence.charts),
            worst=worst_instances(measurements, evidence, self.worst),
            better=self.directions[0] if len(self.directions) == 1 else None,
            typical=typical_instances(measurements, evidence),
            typical_of=evidence.typical.of if evidence.typical else "",
            breakdowns=list(evidence.breakdowns),
            worst_first=self.worst,
            token_columns=measured_columns(measurements, self.token_columns, reading),
            note=join_remarks(
                [
                    evidence.note,
                    *remarks_on_interval(decided.interval, decided.coverage_warning, self.bounds),
                    self.accepted(measurements.unseen_mixers),
                ]
            ),
            unseen_mixers=self.not_accepted(measurements.unseen_mixers),
            blocks=blocks(decided.verdict, severity=self.severity, inconclusive=self.inconclusive),
            gated=gated,
            fail_interval=decided.fail_interval,
            planning=decided.planning,
            sampling_error=decided.sampling_error,
            detectable_change=decided.detectable_change,
            reading=reading,
            matrix=matrix,
        )
        return with_unit_names(record, measurements.unit_names, self, measurements.classes)

    def _against_threshold(self, measurements: Measurements, evidence: Evidence) -> tuple[Evidence, Requirement | None]:
        """Return the evidence to compare with the threshold, and the threshold as a number.

        A threshold that is relative to references is first computed for each instance (see `relative_to_references`).
        The threshold is None if the check has no threshold, or if no instance has both a value and a threshold.
        """
        if self.threshold is None:
            return evidence, None
        direction, limit = self.threshold
        if not isinstance(limit, Expression):
            return evidence, Requirement(direction=direction, value=limit)
        return relative_to_references(
            evidence,
            direction,
            limit,
            measurements=measurements,
            bounds=self.bounds,
            confidence=self.confidence,
            generator=lambda: self.generator(measurements, "interval"),
            name_in_errors=self.name_in_errors,
        )

    def _validate_threshold(self) -> None:
        arguments = [name for name in ("at_least", "at_most") if getattr(self, name) is not None]
        example = f"{self.directions[0]}=..."
        if len(arguments) == 2:
            raise CheckError(f"{self.name_in_errors}: both at_least and at_most are given; remove one of them.")
        if not arguments and self.severity == "gate":
            raise CheckError(f'{self.name_in_errors}: a gate needs a threshold: give {example}, or severity="report".')
        for argument in arguments:
            if argument not in self.directions:
                raise CheckError(
                    f"{self.name_in_errors}: with {argument}, the check would pass in the very case it warns of; give "
                    f"{example} instead."
                )
            if isinstance(getattr(self, argument), str):
                validate_expression(
                    getattr(self, argument),
                    argument,
                    known=self.threshold_references,
                    bounds=self.bounds,
                    reference_bounds=self.reference_bounds,
                    several_readings=self.reading if self.several_readings else None,
                    name_in_errors=self.name_in_errors,
                )
            else:
                low, high = self.bounds
                self.require_number(argument, max(low, -LARGEST_THRESHOLD), min(high, LARGEST_THRESHOLD))
        self._refuse_vacuous_threshold()

    def _refuse_vacuous_threshold(self) -> None:
        """Raise CheckError if every possible value meets the threshold, because the check could then never fail."""
        if self.threshold is None:
            return
        (direction, limit), never = self.threshold, self.never_exceeds
        reason = why_vacuous(
            direction, limit, bounds=self.bounds, reference_bounds=self.reference_bounds, never_exceeds=never
        )
        if reason:
            text = repr(limit.text) if isinstance(limit, Expression) else f"{limit:g}"
            raise CheckError(
                f"{self.name_in_errors}: {direction}={text} can never fail, because {reason}. Give a "
                f"{'higher' if direction == 'at_least' else 'lower'} threshold, or leave it out and give "
                'severity="report".'
            )


C = TypeVar("C", bound=type[Check])


def registered(check: C) -> C:
    """Register a check class under its class name. Policies and `attnaudit.checks` use this name."""
    checks.register(check.__name__)(check)
    return check
