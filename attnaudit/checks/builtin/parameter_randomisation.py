"""Would a model with random parameters give the same explanation? (Adebayo et al. 2018)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import LN2, registered
from attnaudit.checks.evidence import Detail, Mask, ReferenceValues, mean_of, number_defined, single_token
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Reference, WorstOrder
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate, widened

EXPLANATIONS = {"attention": "attention", "gradient": "the gradient's importance"}


@registered
@dataclass(frozen=True, kw_only=True)
class ParameterRandomisation(PerInstanceCheck):
    """Similarity between the explanation of the model and the explanations of copies with random parameters.

    The elements of every parameter tensor of a copy are drawn from a normal distribution with the mean and standard
    deviation of the same tensor in the audited model. The seed of the audit determines the draws. The audited model is
    not changed.

    The value is the mean over 3 copies and over instances. The interval covers both the choice of instances and the
    choice of copies (by Student's t). If the copies differ, it therefore stays wide even with many instances.

    Args:
        of: Which explanation is compared: "attention", or "gradient" for the gradient norm at the inputs.
        measure: How explanations are compared. "tau": by Kendall's τ-b. A threshold must then be at_most. "jsd": by the
            Jensen-Shannon divergence in nats. A threshold must then be at_least.

    Raises:
        CheckError: An argument is invalid, or the threshold does not suit `measure`.
    """

    of: Literal["attention", "gradient"] = "attention"
    measure: Literal["tau", "jsd"] = "tau"

    family = "randomisation"
    why = (
        "If a model with random parameters gives the same explanation, the explanation comes from the architecture or "
        "from the text, not from what this model has learnt."
    )
    how_to_read = (
        "The model is compared with copies that have random parameters of the same scale. If the copies give a similar "
        "explanation, the similarity does not come from training. Compare the value with the floor, which is the same "
        "measure between two such copies."
    )
    threshold_references = ("floor",)

    def validate(self) -> None:
        self.require_choice("of", EXPLANATIONS)
        self.require_choice("measure", ("tau", "jsd"))
        right, wrong = ("at_most", "at_least") if self.measure == "tau" else ("at_least", "at_most")
        if getattr(self, wrong) is not None:
            raise CheckError(
                f"ParameterRandomisation: with measure={self.measure!r} and {wrong}, the check would pass in the very "
                f"case it warns of; give {right}=... instead."
            )

    @property
    def column(self) -> str:
        """The name of the measured column that contains the values."""
        return f"randomised.{self.of}.{self.measure}"

    @property
    def subject(self) -> str:
        return f"parameter_randomisation.{self.of}.{self.measure}"

    @property
    def title(self) -> str:
        return f"{EXPLANATIONS[self.of].capitalize()} depends on what the model has learnt"

    @property
    def question(self) -> str:
        return f"Does {EXPLANATIONS[self.of]} change when the model's parameters are replaced by random ones?"

    @property
    def unit(self) -> str:
        return "Kendall τ-b" if self.measure == "tau" else "nats"

    @property
    def value_name(self) -> str:
        return "mean τ-b with randomised models" if self.measure == "tau" else "mean JSD to randomised models"

    @property
    def bounds(self) -> tuple[float, float]:
        return (-1.0, 1.0) if self.measure == "tau" else (0.0, LN2)

    @property
    def worst(self) -> WorstOrder:
        return "highest" if self.measure == "tau" else "lowest"

    def needs(self) -> tuple[str, ...]:
        return ("randomised",)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar(self.column)

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        over_instances = self.interval_of_mean(measurements, values, groups)
        copies = [mean for mean in self._means_by_copy(measurements, values) if mean is not None]
        if over_instances is None or len(copies) < 2:
            return None
        error = stdev(copies) / len(copies) ** 0.5
        return widened(over_instances, error, len(copies) - 1, "and over copies", self.bounds)

    @property
    def not_linearised(self) -> str:
        return "its sampling error also depends on the randomised models"

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        return (
            ReferenceValues(
                "floor", measurements.scalar(f"{self.column}.floor"), "the same measure between two randomised models"
            ),
            Reference(
                name="maximum",
                value=self.bounds[1],
                meaning="the same order in every model" if self.measure == "tau" else "no token in common",
                n=number_defined(values),
            ),
        )

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        other, name = ("jsd", "JSD, nats") if self.measure == "tau" else ("tau", "τ-b")
        details: dict[str, Detail] = {f"mean {name}": mean_of(measurements.scalar(f"randomised.{self.of}.{other}"))}
        for number, mean in enumerate(self._means_by_copy(measurements, values), start=1):
            details[f"mean of copy {number}"] = mean
        return details

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (
            single_token(measurements),
            (f"{EXPLANATIONS[self.of]} is the same for all tokens", undefined),
        )

    def note(self, measurements: Measurements, values: Floats) -> str:
        copies = [mean for mean in self._means_by_copy(measurements, values) if mean is not None]
        if len(copies) < 2:
            return ""
        return (
            f"the interval includes the uncertainty from drawing only {len(copies)} random copies, so more "
            "instances hardly narrow the interval"
        )

    def _means_by_copy(self, measurements: Measurements, values: Floats) -> list[float | None]:
        """Return, for each copy, the mean over the instances that have a value; None if no instance has one."""
        rows = measurements.groups(~np.isnan(values)).rows
        return [
            mean_of(column[rows])
            for name, column in measurements.scalars.items()
            if name.removeprefix(f"{self.column}.").isdigit()
        ]
