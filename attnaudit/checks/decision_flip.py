"""How much attention must go until the decision flips? (Serrano & Smith 2019, §5)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.checks.base import Check, Description, registered
from attnaudit.checks.evidence import Detail, Evidence, by_predicted_class, mean_of, not_shown, reasons, reference
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval

ORDERS = {
    "attention": "attention",
    "random": "random",
    "gradient": "gradient of the weight",
    "attention_x_gradient": "attention × gradient",
}


@registered
@dataclass(frozen=True, kw_only=True)
class DecisionFlip(Check):
    """Mean over instances of the share of weights to remove until the decision flips, in random order minus in the
    order of attention: how much sooner it flips when the largest weights go first.

    Weights are set to zero and the rest renormalised, states fixed. A decision that never flips counts 1 in its order.
    Undefined with one token, where all weights are tied and where one token holds all attention. Needs flip; columns
    flip.attention, .random, .shuffled (one random order), .gradient, .attention_x_gradient.
    """

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    @property
    def subject(self) -> str:
        return "decision_flip"

    def needs(self) -> tuple[str, ...]:
        return ("flip",)

    @property
    def description(self) -> Description:
        return Description(
            family="erasure",
            title="The decision flips sooner when the largest weights go first",
            question="Does removing weights from the largest down flip the decision sooner than in random order?",
            why="If the largest weights can go without more effect than any others, attention does not order tokens by "
            "what the decision rests on.",
            how_to_read="The value is the share of weights that need not be removed when the largest go first. At 0, "
            "the order of attention flips the decision no sooner than a random order; compare a positive value with "
            "the order of attention × gradient.",
            statistic="mean",
            unit="share of weights",
            value_name="mean share of weights spared",
            low=-1.0,
            high=1.0,
            references=("floor", "ceiling"),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        share = {name: measurements.scalar(f"flip.{name}") for name in (*ORDERS, "shuffled")}
        gain = share["random"] - share["attention"]
        shuffled = share["random"] - share["shuffled"]
        best = share["random"] - share["attention_x_gradient"]
        missing = np.isnan(gain)
        details: dict[str, Detail] = {}
        for name, said in ORDERS.items():
            details[f"mean share to remove, order: {said}"] = mean_of(share[name])
        details["share of decisions that never flip, order: attention"] = mean_of(
            np.where(missing, np.nan, share["attention"] >= 1)
        )
        return Evidence(
            value=mean_of(gain),
            interval=mean_interval(
                gain,
                Groups.of(measurements.instances, ~missing),
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=(-1.0, 1.0),
            ),
            defined=~missing,
            undefined=unremovable(measurements, missing),
            values=gain,
            values_label="share of weights spared per instance",
            values_range=(-1.0, 1.0),
            references=(
                reference("floor", shuffled, "one random order against the mean of several"),
                reference("ceiling", best, "the order of attention × gradient"),
            ),
            reference_values={"floor": shuffled, "ceiling": best},
            details={**details, **by_predicted_class(measurements, gain)},
        )


def unremovable(measurements: Measurements, missing: NDArray[np.bool_]) -> dict[str, int]:
    """Why no weight can be removed, counted."""
    peak: Floats = measurements.scalar("attention.max")
    return reasons(
        ("a single token", missing & (measurements.lengths < 2)),
        not_shown(measurements, missing),
        ("one token holds all attention", missing & (peak >= 1)),
        ("every attention weight is tied", missing),
    )
