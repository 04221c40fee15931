"""Are the hidden states all alike? (Mohankumar et al. 2020)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.checks.base import Check, Description, registered
from attnaudit.checks.evidence import Evidence, by_predicted_class, mean_of, reasons, reference
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval


@registered
@dataclass(frozen=True, kw_only=True)
class Conicity(Check):
    """Mean over instances of the mean cosine between the real tokens' states and their mean, in [-1, 1].

    Low is good, so the threshold is at_most. One token is undefined. Needs conicity; columns conicity and
    conicity.orthogonal. It mostly tells encoder types apart: evidence beside the permutation check.
    """

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    @property
    def subject(self) -> str:
        return "conicity"

    def needs(self) -> tuple[str, ...]:
        return ("conicity",)

    @property
    def description(self) -> Description:
        return Description(
            family="states",
            title="Hidden states differ in direction",
            question="Do the hidden states point in different directions, so that it matters which ones are weighed?",
            why="Where all states lie in one narrow cone, any weights give nearly the same context: high conicity "
            "alone explains why the output does not move when attention is permuted.",
            how_to_read="Conicity is a mean cosine. At 1, all hidden states point in the same direction, and weights "
            "on them make no difference; compare it with the value of as many orthogonal states.",
            statistic="mean",
            unit="cosine",
            value_name="mean conicity",
            low=-1.0,
            high=1.0,
            worst="highest",
            references=("floor",),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        conicity = measurements.scalar("conicity")
        missing = np.isnan(conicity)
        return Evidence(
            value=mean_of(conicity),
            interval=mean_interval(
                conicity,
                Groups.of(measurements.instances, ~missing),
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=(-1.0, 1.0),
            ),
            defined=~missing,
            undefined=reasons(
                ("a single token", missing & (measurements.lengths < 2)), ("the mean hidden state is zero", missing)
            ),
            values=conicity,
            values_label="conicity per instance",
            values_range=(-1.0, 1.0),
            reference_values={"floor": measurements.scalar("conicity.orthogonal")},
            references=(
                reference(
                    "floor",
                    measurements.scalar("conicity.orthogonal"),
                    "mean of 1/√n: n orthogonal states of equal length",
                ),
                Reference(name="ceiling", value=1.0, meaning="all states in one direction", n=int((~missing).sum())),
            ),
            details=by_predicted_class(measurements, conicity),
        )
