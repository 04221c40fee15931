"""Would a model that has learnt nothing show the same? (Adebayo et al. 2018)"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import stdev
from typing import Literal

import numpy as np

from attnaudit.checks.base import LN2, Check, Description, registered
from attnaudit.checks.evidence import Evidence, by_predicted_class, mean_of, reasons, reference
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Reference
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import widened
from attnaudit.statistics.intervals import mean_interval

WORDS = {"attention": "attention", "gradient": "the gradient's importance"}


@registered
@dataclass(frozen=True, kw_only=True)
class ParameterRandomisation(Check):
    """How alike the model's attention (or gradient norm at the inputs) is to that of copies with re-drawn parameters,
    per instance, mean over 3 copies and over instances. The interval is over instances and over copies (Student's t):
    where copies differ, so few decide little.

    of: "attention" or "gradient". measure: "tau", Kendall's τ-b, with at_most; or "jsd", Jensen-Shannon divergence in
    nats, with at_least. Every parameter's entries are drawn again from a normal with that parameter's own mean and
    standard deviation, from the audit's seed; the audited model is untouched. Needs randomised; columns
    randomised.<of>.<measure> and .floor.
    """

    of: Literal["attention", "gradient"] = "attention"
    measure: Literal["tau", "jsd"] = "tau"

    def validate(self) -> None:
        self.choose("of", WORDS)
        self.choose("measure", ("tau", "jsd"))
        right, wrong = ("at_most", "at_least") if self.measure == "tau" else ("at_least", "at_most")
        if getattr(self, wrong) is not None:
            raise CheckError(
                f"ParameterRandomisation: {wrong} would reward what this check warns of with measure="
                f"{self.measure!r}; give {right}=..."
            )

    @property
    def subject(self) -> str:
        return f"parameter_randomisation.{self.of}.{self.measure}"

    def needs(self) -> tuple[str, ...]:
        return ("randomised",)

    @property
    def description(self) -> Description:
        tau = self.measure == "tau"
        return Description(
            family="randomisation",
            title=f"{WORDS[self.of].capitalize()} depends on what the model has learnt",
            question=f"Does {WORDS[self.of]} change when the model's parameters are drawn anew?",
            why="What a model with random parameters shows as well comes from the architecture or from the text, not "
            "from what this model learnt to do.",
            how_to_read="The model is compared with copies that have random parameters of the same scale. What those "
            "copies share with it does not come from what the model learnt. Compare the value with that between two "
            "such copies.",
            statistic="mean",
            unit="Kendall τ-b" if tau else "nats",
            value_name="mean τ-b with re-drawn models" if tau else "mean JSD to re-drawn models",
            low=-1.0 if tau else 0.0,
            high=1.0 if tau else LN2,
            worst="highest" if tau else "lowest",
            references=("floor",),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        column = f"randomised.{self.of}.{self.measure}"
        found = measurements.scalar(column)
        missing = np.isnan(found)
        bounds = self.description.bounds
        groups = Groups.of(measurements.instances, ~missing)
        over_rows = mean_interval(
            found,
            groups,
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            bounds=bounds,
        )
        copies = [
            mean_of(values[groups.rows])
            for name, values in measurements.scalars.items()
            if name.removeprefix(f"{column}.").isdigit()
        ]
        known = [one for one in copies if one is not None]
        return Evidence(
            value=mean_of(found),
            interval=widened(over_rows, stdev(known) / len(known) ** 0.5, len(known) - 1, "and over copies", bounds)
            if over_rows and len(known) > 1
            else None,
            defined=~missing,
            undefined=reasons(
                ("a single token", missing & (measurements.lengths < 2)),
                (f"{WORDS[self.of]} is tied or zero on every token", missing),
            ),
            values=found,
            values_label=f"{self.description.unit} per instance",
            values_range=bounds,
            note=f"the interval counts how far {len(known)} re-drawn copies lie apart, which no more instances narrow"
            if len(known) > 1
            else "",
            references=(
                reference("floor", measurements.scalar(f"{column}.floor"), "the same between two re-drawn models"),
                Reference(
                    name="ceiling",
                    value=1.0 if self.measure == "tau" else LN2,
                    meaning="the same order in every model" if self.measure == "tau" else "no token in common",
                    n=int((~missing).sum()),
                ),
            ),
            reference_values={"floor": measurements.scalar(f"{column}.floor")},
            details={
                f"mean {'JSD, nats' if self.measure == 'tau' else 'τ-b'}": mean_of(
                    measurements.scalar(f"randomised.{self.of}.{'jsd' if self.measure == 'tau' else 'tau'}")
                ),
                **{f"mean of copy {number}": one for number, one in enumerate(copies, start=1)},
                **by_predicted_class(measurements, found),
            },
        )
