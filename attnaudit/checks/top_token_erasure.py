"""Does removing the largest weight flip the decision more often than removing another? (Serrano & Smith 2019, §4)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.checks.base import Check, Description, registered
from attnaudit.checks.decision_flip import unremovable
from attnaudit.checks.evidence import Evidence, by_predicted_class, mean_of, reference
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval


@registered
@dataclass(frozen=True, kw_only=True)
class TopTokenErasure(Check):
    """Share of instances whose decision flips when the largest weight is set to zero, minus that for another token
    drawn at random (its exact expectation over all others).

    The rest is renormalised, states fixed. Undefined as DecisionFlip. Needs top_token; columns top_token.attention (1
    or 0), .random (share of the other tokens that flip it), .any (1 where some token does)."""

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    @property
    def subject(self) -> str:
        return "top_token_erasure"

    def needs(self) -> tuple[str, ...]:
        return ("top_token",)

    @property
    def description(self) -> Description:
        return Description(
            family="erasure",
            title="Removing the largest weight flips the decision",
            question="Does the decision flip more often when the largest weight goes than when another one does?",
            why="If the most attended token can go and the decision stays as often as without any other, the largest "
            "weight does not mark the token that mattered most.",
            how_to_read="The value is how often removing the largest weight flips the decision, minus how often "
            "removing another weight does. At 0, the largest weight matters no more than any other.",
            statistic="mean",
            unit="share of decisions",
            value_name="excess share of flips",
            low=-1.0,
            high=1.0,
            references=("ceiling",),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        top, other = measurements.scalar("top_token.attention"), measurements.scalar("top_token.random")
        some = measurements.scalar("top_token.any")
        gain = top - other
        missing = np.isnan(gain)
        rest = np.maximum(measurements.lengths - 1, 1)
        # The best choice of one token, against the others that it leaves.
        best = some - (top + other * rest - some) / rest
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
            values_label="flip of the largest weight minus share of other tokens that flip",
            values_range=(-1.0, 1.0),
            references=(
                Reference(name="floor", value=0.0, meaning="a token drawn at random, against the others", n=len(gain)),
                reference("ceiling", best, "a token that flips the decision wherever there is one"),
            ),
            reference_values={"ceiling": best},
            details={
                "share of flips, largest weight": mean_of(top),
                "share of flips, another token": mean_of(other),
                "share of decisions that some token flips": mean_of(some),
                **by_predicted_class(measurements, gain),
            },
        )
