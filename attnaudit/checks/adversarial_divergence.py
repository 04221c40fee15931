"""How different could the attention be, with the output all but unchanged? (Jain & Wallace 2019, §4.2.2)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.checks.base import LN2, Check, Description, registered
from attnaudit.checks.evidence import Detail, Evidence, by_predicted_class, mean_of, not_shown, reasons
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Chart, Direction, Reference, Series
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate, bracket
from attnaudit.statistics.intervals import mean_interval

CURVE = (0.01, 0.02, 0.05, 0.1, 0.2)


@registered
@dataclass(frozen=True, kw_only=True)
class AdversarialDivergence(Check):
    """Mean over instances of the largest Jensen-Shannon divergence (nats) to other attention with TVD(output) ≤ tvd.

    Exact for a linear decoder and two classes, bracketed for more, searched otherwise; reported with the curve over
    .01 to .2. It lies near its unconstrained maximum for most models, faithful or not, so it is evidence to look at
    first and a gate second; the threshold is at_most. preset: "jain_wallace" searches as their published code does
    (5 starts, 500 steps), also where the optimum has an exact form: slow, and never above it; at `tvd` alone.
    """

    tvd: float = 0.01
    preset: Literal["jain_wallace"] | None = None

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    def validate(self) -> None:
        self.number("tvd", 0.0, 1.0)
        if not 0 < self.tvd < 1:
            raise CheckError(
                f"AdversarialDivergence: tvd={self.tvd:g} is impossible, expected more than 0 and less than 1."
            )
        if self.preset is not None:
            self.choose("preset", ("jain_wallace",))

    def column_at(self, tvd: float) -> str:
        return ".".join(part for part in ("adversarial", self.preset, f"{tvd:g}") if part)

    @property
    def column(self) -> str:
        return self.column_at(self.tvd)

    @property
    def subject(self) -> str:
        return self.column.replace("adversarial", "adversarial_divergence", 1)

    @property
    def curve(self) -> tuple[float, ...]:
        return (self.tvd,) if self.preset else tuple(sorted({*CURVE, self.tvd}))

    def needs(self) -> tuple[str, ...]:
        return tuple(self.column_at(tvd) for tvd in self.curve)

    @property
    def description(self) -> Description:
        return Description(
            family="adversarial",
            title=f"Other attention with the same output (TVD ≤ {self.tvd:g}{', searched' if self.preset else ''})",
            question=f"How different could attention be while at most {self.tvd:g} of the output's probability moves?",
            why="Where quite another distribution gives the same output, the weights shown are one explanation among "
            "many. The value depends on how peaked attention is: read it as a share of the unconstrained maximum.",
            how_to_read="Jensen–Shannon divergence runs from 0, where no other attention gives the same output, to ln "
            "2 ≈ 0.693 nats. It depends on how peaked the attention is, so compare it with the largest divergence "
            "possible.",
            statistic="mean",
            unit="nats",
            value_name="mean JSD",
            low=0.0,
            high=LN2,
            worst="highest",
            token_columns=(
                "attention",
                f"{self.column}.attention",
                "gradient.meister.inputs",
                "leave_one_out.inputs",
            ),
            references=("ceiling",),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        jsd, share = measurements.scalar(f"{self.column}.jsd"), measurements.scalar(f"{self.column}.share")
        upper, moved = measurements.scalar(f"{self.column}.upper"), measurements.scalar(f"{self.column}.tvd")
        largest = measurements.scalar(f"{self.column}.most")
        fact = ".".join(part for part in ("adversarial", self.preset, "method") if part)
        method = measurements.facts.get(fact, "unknown")
        missing = np.isnan(jsd)
        mean = mean_of(jsd)
        details: dict[str, Detail] = {
            "method": method,
            "mean JSD / ln 2": None if mean is None else mean / LN2,
            "mean share of the unconstrained maximum": mean_of(share),
            "largest TVD of an output, run through the model": float(np.nanmax(moved)) if not missing.all() else None,
            "standard deviation": float(jsd[~missing].std(ddof=1)) if (~missing).sum() > 1 else None,
        }
        if method == "bracketed":
            details["mean upper bound of JSD"] = mean_of(upper)
        return Evidence(
            value=mean,
            interval=self._interval(measurements, jsd, upper, missing, method),
            defined=~missing,
            undefined=reasons(
                ("a single token", missing & (measurements.lengths < 2)),
                not_shown(measurements, missing),
                ("no other attention was found", missing),
            ),
            values=jsd,
            values_label="JSD per instance, nats",
            values_range=(0.0, LN2),
            references=(
                Reference(
                    name="ceiling",
                    value=mean_of(largest),
                    meaning="mean of the largest JSD that any attention can have, whatever the output",
                    n=int((~np.isnan(largest)).sum()),
                ),
            ),
            reference_values={"ceiling": largest},
            upper=upper if method == "bracketed" else None,
            details={**details, **by_predicted_class(measurements, jsd)},
            charts=(self._chart(measurements, method),),
            note={
                "searched": "found by search: the true maximum may be larger, so a pass is not certified",
                "bracketed": "the value is the largest found; the interval reaches to a certified upper bound",
            }.get(method, ""),
        )

    def _interval(
        self,
        measurements: Measurements,
        jsd: Floats,
        upper: Floats,
        missing: NDArray[np.bool_],
        method: str,
    ) -> IntervalEstimate | None:
        groups = Groups.of(measurements.instances, ~missing)

        def interval(values: Floats) -> IntervalEstimate | None:
            return mean_interval(
                values,
                groups,
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=(0.0, LN2),
            )

        below = interval(jsd)
        if method != "bracketed" or below is None:
            return below
        above = interval(np.fmax(jsd, upper))
        return None if above is None else bracket(below, above)

    def _chart(self, measurements: Measurements, method: str) -> Chart:
        names = [("mean JSD", "jsd")] + ([("upper bound", "upper")] if method == "bracketed" else [])
        return Chart(
            title="Largest JSD by the change of output allowed",
            x_label="TVD allowed (ε)",
            y_label="mean JSD, nats (at most ln 2 = 0.693)",
            kind="line",
            series=[
                Series(
                    name=name,
                    x=list(self.curve),
                    y=[mean_of(measurements.scalar(f"{self.column_at(tvd)}.{column}")) for tvd in self.curve],
                )
                for name, column in names
            ],
        )
