"""Is the model worse than an accepted release? A gate on the difference between the values of a check on two models."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field

import msgspec
import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import Check
from attnaudit.checks.check_arguments import CheckArguments, Parameter
from attnaudit.checks.evidence import Detail, Evidence, Mask, mean_of, with_note
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.formatting import number
from attnaudit.records import (
    BASELINE_NAMES,
    BaselineComparison,
    BaselineName,
    CheckRecord,
    Direction,
    Requirement,
    WorstOrder,
)
from attnaudit.statistics.interval_estimate import equal_up_to, point
from attnaudit.statistics.paired_difference import paired_difference
from attnaudit.verdict_text import exceeds_margin

#: The argument that names the baseline in the canonical form of a policy. No other check may have an argument of this
#: name.
BASELINE_NAME = "baseline_name"
#: The names of two details of the record.
CANDIDATE, BASELINE = "value of this model", "value of the baseline"
#: The number of significant digits of the numbers per instance, in baseline files and in comparisons with these files.
DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineNumbers:
    """The recorded numbers of a baseline.

    Attributes:
        comparison: The comparison, without the value of the candidate.
        numbers: (n,) numbers of the baseline in the order of the instances of the candidate (the audited model), NaN
            where undefined. None if the baseline and the candidate are not comparable, or if only the value of the
            baseline is known.
        accept: The command that accepts the run as the baseline.
    """

    comparison: BaselineComparison
    numbers: Floats | None = None
    accept: str = ""


@dataclass(frozen=True, kw_only=True)
class PairedGate(Check):
    """The value of a check on the audited model minus its value on the model of a baseline, for the same instances.

    The threshold is `at_least` = -margin if low values are worse, and `at_most` = margin if high values are worse. Use
    `paired_gate` to build a gate.

    Args:
        base: The check whose values are compared. It has neither a threshold nor a reading.
        baseline_name: The name of the baseline, "last" or "pinned".
        folder: The folder of the baseline files; None if the gate is only judged again, from recorded values.
        baseline: The numbers of the baseline. A declaration leaves them out, and the run adds them.
    """

    base: Check
    baseline_name: BaselineName
    folder: str | None = None
    baseline: BaselineNumbers | None = field(default=None, compare=False, repr=False)

    statistic = "difference"
    how_to_read = (
        "The difference is the value of this model minus the value of the baseline, on the same instances. At 0, "
        "the two models do not differ. The gate passes if the whole interval is on the required side of the "
        "margin. It fails if a wider interval, which allows for the number of gates, is entirely on the other side."
    )

    def validate(self) -> None:
        if self.base.not_linearised:
            raise CheckError(
                f"{self.base.name_in_errors}: not_worse_than_baseline_by cannot be set, because "
                f"{self.base.not_linearised}. Remove it from this check."
            )

    @property
    def release(self) -> str:
        """The release that is the baseline, such as "last release"."""
        return BASELINE_NAMES[self.baseline_name]

    @property
    def name_in_errors(self) -> str:
        return f"{self.base.name_in_errors}, compared with the {self.release}"

    @property
    def parameters(self) -> dict[str, Parameter]:
        shared = {name: getattr(self, name) for name in CheckArguments.argument_names()}
        return {**self.base.parameters, **shared, BASELINE_NAME: self.baseline_name}

    @property
    def family(self) -> str:
        return self.base.family

    @property
    def title(self) -> str:
        return f"Not worse than the {self.release}: {self.base.title}"

    @property
    def question(self) -> str:
        return f"{self.base.question} Is the answer worse than for the {self.release}?"

    @property
    def why(self) -> str:
        return (
            "A model can become worse from one release to the next and still pass every absolute threshold. "
            f"{self.base.why}"
        )

    @property
    def when_failed(self) -> str:
        return f"The model is worse than the {self.release}"

    @property
    def unit(self) -> str:
        return self.base.unit

    @property
    def value_name(self) -> str:
        return f"change of the {self._compared_name} since the {self.release}"

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = self.base.bounds
        return (low - high, high - low)

    @property
    def worst(self) -> WorstOrder:
        return "lowest" if self.at_most is None else "highest"

    @property
    def token_columns(self) -> tuple[str, ...]:
        return self.base.token_columns

    @property
    def subject(self) -> str:
        return f"{self.base.subject}.vs_{self.baseline_name}"

    @property
    def base_id(self) -> str:
        """The id of the check whose values are compared."""
        return dataclasses.replace(self.base, reading=self.reading).id

    @property
    def replaces_weights(self) -> bool:  # type: ignore[override]
        return self.base.replaces_weights

    @property
    def has_custom_texts(self) -> bool:  # type: ignore[override]
        return self.base.has_custom_texts

    def judged_rows(self, measurements: Measurements) -> Mask:
        return self.base.judged_rows(measurements)

    def note_on_judged_rows(self, measurements: Measurements) -> str:
        return self.base.note_on_judged_rows(measurements)

    def needs(self) -> tuple[str, ...]:
        return self.base.needs()

    def evidence(self, measurements: Measurements) -> Evidence:
        """Compute the difference from the baseline.

        Raises:
            CheckError: The run has not added the numbers of the baseline.
        """
        known, judged = self._known(), self.judged_rows(measurements)
        base = self.base.evidence(measurements if judged.all() else measurements.only(judged))
        numbers = rounded_numbers(self.base.linearised_values(measurements))
        candidate, baseline = mean_of(numbers), known.comparison.baseline
        details: dict[str, Detail] = {CANDIDATE: candidate, BASELINE: baseline}
        if baseline is None or candidate is None:
            reason = "this model has no value" if candidate is None else "not comparable with the baseline"
            nothing, count = filled(len(measurements), False, np.bool_), int(judged.sum())
            undefined = {reason: count} if count else {}
            return Evidence(value=None, interval=None, defined=nothing, undefined=undefined, details=details)
        defined = ~np.isnan(numbers)
        if known.numbers is None:
            return Evidence(value=candidate - baseline, interval=None, defined=defined, details=details)
        difference = paired_difference(
            numbers,
            known.numbers,
            measurements.groups(defined | ~np.isnan(known.numbers)),
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            bounds=self.base.bounds,
        )
        interval = difference.interval if base.interval is not None else None
        largest = float(np.abs(np.nan_to_num(difference.differences)).max(initial=0.0))
        same_numbers = largest <= equal_up_to(0.0, self.bounds)
        if known.comparison.same_model and interval is not None and difference.value is not None and same_numbers:
            interval = point(difference.value, self.confidence, "the same model and the same numbers")
        return Evidence(
            value=difference.value,
            interval=interval,
            defined=defined,
            undefined=dict(base.undefined),
            values=difference.differences,
            values_label=f"change since the {self.release} per instance",
            details=details,
            note=base.note,
            no_interval=base.no_interval if base.interval is None else "",
        )

    def in_words(self, evidence: Evidence) -> str:
        candidate, baseline = evidence.details[CANDIDATE], evidence.details[BASELINE]
        if not isinstance(candidate, float) or not isinstance(baseline, float):
            return ""
        numbers = self._known().numbers
        alike = numbers is not None and np.array_equal(evidence.defined, ~np.isnan(numbers))
        return (
            f"The {self._compared_name} is {number(candidate)} for this model and {number(baseline)} for the "
            f"{self.release}{', on the same instances' if alike else ''}."
        )

    def no_difference(self, requirement: Requirement | None) -> float | None:
        """Return 0, because the threshold is a margin around a difference of 0."""
        return 0.0

    def judge(self, measurements: Measurements, *, gated: int = 1) -> CheckRecord:
        """Judge the gate like `Check.judge`, and record what was compared.

        If the model is better than the baseline by more than the margin, a note reports this.
        """
        record, known = super().judge(measurements, gated=gated), self._known()
        record = with_note(record, self.note_on_judged_rows(measurements))
        candidate = record.details[CANDIDATE]
        comparison = msgspec.structs.replace(
            known.comparison, candidate=candidate if isinstance(candidate, float) else None
        )
        record = msgspec.structs.replace(record, comparison=comparison)
        if comparison.not_comparable:
            return msgspec.structs.replace(record, reason=comparison.not_comparable)
        if record.value is not None and exceeds_margin(record):
            return with_note(
                record,
                f"the model is better than the {self.release} by {number(abs(record.value))}, which is more "
                f"than the margin; the baseline does not change unless you accept this run: {known.accept}",
            )
        return record

    @property
    def _compared_name(self) -> str:
        """The name of the compared value. It has no comma, so that a sentence can go on after it."""
        return self.base.value_name.replace(",", "")

    def _known(self) -> BaselineNumbers:
        if self.baseline is None:
            raise CheckError(
                f"{self.id}: a paired gate can be judged only in a run, which adds the numbers of the baseline. Run "
                "pytest."
            )
        return self.baseline


def paired_gate(check: Check, *, margin: float, baseline_name: BaselineName, folder: str | None) -> PairedGate:
    """Return a gate that requires that a model is worse than a baseline by at most `margin`.

    The gate has the same confidence, reading and rule for inconclusive verdicts as the check.

    Args:
        check: The check whose values are compared. Its threshold determines whether low or high values are worse. If it
            has no threshold, it must be a check that accepts only `at_least` or only `at_most`.
        margin: The largest permitted deterioration, above 0, in the unit of the value.
        baseline_name: The name of the baseline.
        folder: The folder of the baseline files.

    Raises:
        CheckError: The margin is invalid, or the values of the check cannot be compared instance by instance.
    """
    if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 < margin <= sys.float_info.max:
        raise CheckError(
            f"{check.name_in_errors}: not_worse_than_baseline_by is {margin!r}; expected a number above 0, in the unit "
            "of the value."
        )
    low, high = check.bounds
    if margin >= high - low:
        raise CheckError(
            f"{check.name_in_errors}: not_worse_than_baseline_by={margin:g} can never fail, because two values differ "
            f"by at most {high - low:.4g}. Give a smaller margin."
        )
    stripped = dataclasses.replace(check, at_least=None, at_most=None, severity="report", reading=None)
    lowest_is_worst = _direction(check) == "at_least"
    return PairedGate(
        base=dataclasses.replace(stripped, confidence=0.95, inconclusive="fail", unseen_mixers="block"),
        baseline_name=baseline_name,
        folder=folder,
        at_least=-float(margin) if lowest_is_worst else None,
        at_most=None if lowest_is_worst else float(margin),
        confidence=check.confidence,
        inconclusive=check.inconclusive,
        reading=check.reading,
        unseen_mixers=check.unseen_mixers,
    )


def rounded_numbers(numbers: Floats) -> Floats:
    """Round numbers to six significant digits, so that a new run can agree exactly with a baseline file."""
    return np.array([float(f"{one:.{DIGITS}g}") for one in numbers.tolist()], dtype=np.float64)


def _direction(check: Check) -> Direction:
    """Return the direction of a check: the direction of its threshold, or the only direction that it accepts.

    Raises:
        CheckError: The check has no threshold and accepts both directions.
    """
    if check.threshold is not None:
        return check.threshold[0]
    if len(check.directions) == 1:
        return check.directions[0]
    raise CheckError(
        f"{check.name_in_errors}: not_worse_than_baseline_by needs a direction: add at_least or at_most, so that it is "
        "known whether low or high values are worse."
    )
