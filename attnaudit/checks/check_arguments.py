"""The arguments that all checks have in common, and methods that validate the arguments of a check."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np

from attnaudit.errors import CheckError, nearest
from attnaudit.readings import FORM
from attnaudit.readings import parse as parse_reading
from attnaudit.records import InconclusiveRule, PolicyRecord, Severity

#: The key of a [[check]] table that adds a paired gate for every baseline.
MARGIN = "not_worse_than_baseline_by"
SAMPLING = ("all", "sequential")
UNSEEN_MIXERS = ("block", "accept")
#: Arguments that are left out of the parameters if they have these default values. Policies that were written before
#: these arguments existed therefore keep their hash.
LATER_DEFAULTS = {"sampling": "all", "unseen_mixers": "block", "sampled_units": 0}
#: The argument of checks that can measure leave-one-out for a sample of the units of each instance.
SAMPLED_UNITS = "sampled_units"
ACCEPTED = (
    "the model also carries information between tokens through modules without visible weights; no reading shows "
    "these modules, and the policy accepts them"
)

Parameter = str | float | int | bool | None


@dataclass(frozen=True, kw_only=True)
class CheckArguments:
    """The arguments that all checks have in common.

    Args:
        at_least: The lower threshold: a number, or an expression that names references of the check, such as "floor +
            0.2". None (the default) for no lower threshold. A gate needs exactly one threshold, lower or upper. For an
            informational check, the threshold is optional.
        at_most: The upper threshold, in the same form as `at_least`.
        severity: "gate" for a check that can fail its pytest case, "report" for an informational check, which never
            fails it.
        confidence: The confidence of the two-sided interval of the value, from 0.5 to 0.999.
        inconclusive: What happens to the pytest case of an inconclusive gate: "fail" fails it, "warn" passes it with a
            warning, and "pass" passes it.
        reading: Which attention weights are shown as the explanation, such as "cls@layer=-1,heads=mean" (see
            `attnaudit.readings`). By default, the model's adapter decides. A "*" as the layer or the heads stands for
            each layer or head in turn, and needs severity="report".
        sampling: "all" measures every row (instance). "sequential" measures rows in a random order until every gate has
            passed or failed. This requires that all gates have sampling="sequential" and a confidence sequence.
        unseen_mixers: What happens to a gate if the model has modules that carry information between tokens without
            visible weights. Every reading leaves out such modules. "block": the verdict is undefined, so the gate
            blocks the release. "accept": the gate is judged on the visible attention alone.

    Raises:
        CheckError: An argument is invalid.
    """

    at_least: float | str | None = None
    at_most: float | str | None = None
    severity: Severity = "gate"
    confidence: float = 0.95
    inconclusive: InconclusiveRule = "fail"
    reading: str | None = None
    sampling: Literal["all", "sequential"] = "all"
    unseen_mixers: Literal["block", "accept"] = "block"

    #: Whether the check replaces single attention weights. If a unit has several weights, as a passage does, the texts
    #: of the check are about its tokens.
    replaces_weights: ClassVar[bool] = False
    #: Whether a user wrote the title, the question and the explanations.
    has_custom_texts: ClassVar[bool] = False
    #: The record of the policy file that declares the check; None for a check that is declared in Python. It is not an
    #: argument, so it does not affect whether two checks are equal, and a copy with other arguments does not have it.
    source_policy: ClassVar[PolicyRecord | None] = None
    #: Why the check has no argument `sampled_units`, as a clause.
    needs_all_units: ClassVar[str] = "its value cannot be estimated without bias from a sample of the units"

    def __new__(cls, *positional: object, **arguments: object) -> Self:
        """Require that every argument is known and named, before the generated `__init__` raises a TypeError.

        Raises:
            CheckError: An argument is unknown, or is not named.
        """
        known = cls.argument_names()
        if positional:
            raise CheckError(
                f"{cls.__name__}: name every argument, as in {cls.__name__}({known[0]}={positional[0]!r})."
            )
        unknown = next((name for name in arguments if name not in known), None)
        if unknown == MARGIN:
            raise CheckError(
                f"{cls.__name__}: a margin, {MARGIN}, can be set only in a policy file, whose [baseline] table says "
                "where the baselines are. Declare the check in a policy file, and apply it with "
                "@audit(checks.load_policy(Path(...)))."
            )
        if unknown == SAMPLED_UNITS:
            raise CheckError(
                f"{cls.__name__}: {SAMPLED_UNITS} is not supported, because {cls.needs_all_units}. Leave it out, so "
                "that all units are measured, or audit rows with fewer units."
            )
        if unknown is not None:
            raise CheckError(f"{cls.__name__}: unknown argument '{unknown}'. {nearest(unknown, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.require_choice("severity", ("gate", "report"))
        self.require_choice("inconclusive", ("fail", "warn", "pass"))
        self.require_number("confidence", 0.5, 0.999)
        self.require_choice("sampling", SAMPLING)
        self.require_choice("unseen_mixers", UNSEEN_MIXERS)
        self._validate_reading()

    @property
    def name_in_errors(self) -> str:
        """The name of the check in error messages and in policies."""
        return type(self).__name__

    @property
    def parameters(self) -> dict[str, Parameter]:
        """All arguments by name, including defaults. They are the keys of a [[check]] table, apart from `name`.

        Arguments in `LATER_DEFAULTS` are left out if they have their default values.
        """
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}
        return {name: value for name, value in given.items() if (name, value) not in LATER_DEFAULTS.items()}

    @property
    def several_readings(self) -> bool:
        """Whether the reading contains "*" and therefore stands for several readings."""
        return bool(self.reading) and parse_reading(self.reading or "").many

    @classmethod
    def argument_names(cls) -> tuple[str, ...]:
        """Return the names of all arguments."""
        return tuple(field.name for field in dataclasses.fields(cls) if field.init)

    def not_accepted(self, unseen_mixers: Sequence[str]) -> list[str]:
        """Return the unseen mixers that the check does not accept (see the argument `unseen_mixers`)."""
        return [] if self.unseen_mixers == "accept" else list(unseen_mixers)

    def accepted(self, unseen_mixers: Sequence[str]) -> str:
        """Return a remark if there are unseen mixers and the check accepts them; otherwise ""."""
        return "" if not unseen_mixers or self.not_accepted(unseen_mixers) else ACCEPTED

    def require_choice(self, argument: str, choices: Iterable[str]) -> None:
        """Require that an argument is one of the choices.

        Raises:
            CheckError: The argument is not one of the choices. The message suggests similar choices.
        """
        value, known = getattr(self, argument), tuple(choices)
        if value not in known:
            raise CheckError(f"{self.name_in_errors}: unknown {argument} {value!r}. {nearest(str(value), known)}")

    def require_number(self, argument: str, low: float, high: float) -> None:
        """Require that an argument is a number from `low` to `high`, and convert it to a float.

        Raises:
            CheckError: The argument is not a number, or it lies outside this range.
        """
        value = getattr(self, argument)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise CheckError(f"{self.name_in_errors}: {argument} is {value!r}; expected a number.")
        if not low <= value <= high:
            expected = f"between {low:g} and {high:.4g}" if math.isfinite(high - low) else "that is finite"
            huge = isinstance(value, int) and abs(value) > 10**300
            text = "too large" if huge else f"{value:g}"
            raise CheckError(f"{self.name_in_errors}: {argument} is {text}; expected a number {expected}.")
        object.__setattr__(self, argument, float(value))

    def require_count(self, argument: str, low: int, high: int) -> None:
        """Require that an argument is a whole number from `low` to `high`.

        Raises:
            CheckError: The argument is not a whole number, or it lies outside this range.
        """
        value = getattr(self, argument)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise CheckError(
                f"{self.name_in_errors}: {argument} is {value!r}; expected a whole number from {low:,} to {high:,}."
            )

    def _validate_reading(self) -> None:
        """Validate the reading and replace it with its normal form."""
        if self.reading is None:
            return
        if not isinstance(self.reading, str):
            raise CheckError(f"{self.name_in_errors}: reading is {self.reading!r}; expected text such as {FORM!r}.")
        try:
            reading = parse_reading(self.reading)
        except CheckError as error:
            raise CheckError(f"{self.name_in_errors}: {error}") from None
        if reading.many and self.severity == "gate":
            raise CheckError(
                f"{self.name_in_errors}: reading {self.reading!r} stands for several readings, so the check cannot be "
                'a gate. Give severity="report", or name one layer and one head.'
            )
        object.__setattr__(self, "reading", reading.text)
