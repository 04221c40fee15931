"""How different could attention be while the output stays nearly the same? (Jain & Wallace 2019, §4.2.2)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import LN2, registered
from attnaudit.checks.evidence import (
    Detail,
    Mask,
    ReferenceValues,
    mean_of,
    no_real_attention,
    single_token,
    standard_deviation,
)
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Chart, Direction, Series
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate, bracket

#: The limits on the TVD of the output at which the report shows the divergence as a curve.
CURVE = (0.01, 0.02, 0.05, 0.1, 0.2)
NOTES = {
    "searched": "the value was found by a search: the true maximum may be larger, so a pass is not certified",
    "bracketed": "the value is the largest divergence found; the interval extends to a certified upper bound",
}


@registered
@dataclass(frozen=True, kw_only=True)
class AdversarialDivergence(PerInstanceCheck):
    """Mean over instances of the largest JSD (nats) between attention and other weights with nearly the same output.

    "Nearly the same" means that the two outputs have a total variation distance (TVD) of at most `tvd`.

    For a linear decoder with two classes, the value is exact. For a linear decoder with more classes, the value is a
    lower bound, and the report also gives a certified upper bound. For any other decoder, the value is found by search.
    The report also shows the values for limits other than `tvd`. For most models, faithful or not, the value is near
    its maximum, so the check is more useful as evidence than as a gate.

    Args:
        tvd: The largest permitted TVD of the output, more than 0 and less than 1.
        preset: None (the default) for the methods above. "jain_wallace" searches like the published code of Jain &
            Wallace 2019 (5 starts, 500 steps), even if the optimum can be computed exactly. This search is slow, never
            finds more than the optimum, and is run only for the limit `tvd`.
    """

    tvd: float = 0.01
    preset: Literal["jain_wallace"] | None = None

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    family = "adversarial"
    why = (
        "If very different attention gives the same output, the weights shown are only one of many explanations. The "
        "value depends on how peaked attention is, so read it as a share of the largest possible value."
    )
    how_to_read = (
        "Jensen–Shannon divergence runs from 0, where no other attention gives the same output, to ln 2 ≈ 0.693 nats. "
        "It depends on how peaked the attention is, so compare it with the largest divergence possible."
    )
    unit = "nats"
    value_name = "mean JSD"
    values_label = "JSD per instance, nats"
    bounds = (0.0, LN2)
    worst = "highest"
    threshold_references = ("largest_possible",)
    never_exceeds = ("largest_possible",)

    def validate(self) -> None:
        self.require_number("tvd", 0.0, 1.0)
        if not 0 < self.tvd < 1:
            raise CheckError(f"AdversarialDivergence: tvd is {self.tvd:g}; expected more than 0 and less than 1.")
        if self.preset is not None:
            self.require_choice("preset", ("jain_wallace",))

    def column_at(self, tvd: float) -> str:
        """Return the name of the measure for a limit on the TVD of the output."""
        return ".".join(part for part in ("adversarial", self.preset, f"{tvd:g}") if part)

    @property
    def column(self) -> str:
        """The name of the measure from which the check computes its value."""
        return self.column_at(self.tvd)

    @property
    def subject(self) -> str:
        return self.column.replace("adversarial", "adversarial_divergence", 1)

    @property
    def title(self) -> str:
        return f"Other attention with the same output (TVD ≤ {self.tvd:g}{', searched' if self.preset else ''})"

    @property
    def question(self) -> str:
        return f"How different could attention be if the output may change by a TVD of at most {self.tvd:g}?"

    @property
    def token_columns(self) -> tuple[str, ...]:
        return ("attention", f"{self.column}.attention", "gradient.meister.inputs", "leave_one_out.inputs")

    @property
    def curve(self) -> tuple[float, ...]:
        """The limits on the TVD of the output at which the divergence is measured."""
        return (self.tvd,) if self.preset else tuple(sorted({*CURVE, self.tvd}))

    def needs(self) -> tuple[str, ...]:
        return tuple(self.column_at(tvd) for tvd in self.curve)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar(f"{self.column}.jsd")

    def upper_bounds(self, measurements: Measurements) -> Floats | None:
        bracketed = self._method(measurements) == "bracketed"
        return measurements.scalar(f"{self.column}.upper") if bracketed else None

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        below, upper_bounds = self.interval_of_mean(measurements, values, groups), self.upper_bounds(measurements)
        if upper_bounds is None or below is None:
            return below
        above = self.interval_of_mean(measurements, np.fmax(values, upper_bounds), groups)
        return None if above is None else bracket(below, above)

    @property
    def not_linearised(self) -> str:
        return "its values may be lower bounds of the true values"

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues]:
        largest = measurements.scalar(f"{self.column}.most")
        meaning = "mean largest JSD between other attention and the model's, if the output may change freely"
        return (ReferenceValues("largest_possible", largest, meaning),)

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        mean, moved = mean_of(values), measurements.scalar(f"{self.column}.tvd")
        defined = not np.isnan(values).all()
        details: dict[str, Detail] = {
            "method": self._method(measurements),
            "mean JSD / ln 2": None if mean is None else mean / LN2,
            "mean share of the largest possible JSD": mean_of(measurements.scalar(f"{self.column}.share")),
            "largest TVD of the output with the attention found": float(np.nanmax(moved)) if defined else None,
            "standard deviation": standard_deviation(values),
        }
        upper_bounds = self.upper_bounds(measurements)
        if upper_bounds is not None:
            details["mean upper bound on the JSD"] = mean_of(upper_bounds)
        return details

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (
            single_token(measurements),
            no_real_attention(measurements),
            ("no other attention was found", undefined),
        )

    def note(self, measurements: Measurements, values: Floats) -> str:
        return NOTES.get(self._method(measurements), "")

    def charts(self, measurements: Measurements, values: Floats) -> Sequence[Chart]:
        lines = {"mean JSD": "jsd"}
        if self._method(measurements) == "bracketed":
            lines["upper bound"] = "upper"
        return (
            Chart(
                title="Largest JSD for each allowed change of the output",
                x_label="TVD allowed (ε)",
                y_label="mean JSD, nats (at most ln 2 = 0.693)",
                kind="line",
                series=[
                    Series(
                        name=name,
                        x=list(self.curve),
                        y=[mean_of(measurements.scalar(f"{self.column_at(tvd)}.{column}")) for tvd in self.curve],
                    )
                    for name, column in lines.items()
                ],
            ),
        )

    def _method(self, measurements: Measurements) -> str:
        """Return how the divergence was found: "exact", "bracketed", "searched" or "unknown"."""
        fact = ".".join(part for part in ("adversarial", self.preset, "method") if part)
        return measurements.facts.get(fact, "unknown")
