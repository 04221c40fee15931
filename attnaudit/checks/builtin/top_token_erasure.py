"""Does the decision flip more often without the largest weight than without another one? (Serrano & Smith 2019, §4)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.builtin.decision_flip import reasons_against_removal
from attnaudit.checks.evidence import Detail, Mask, ReferenceValues, mean_of
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference


@registered
@dataclass(frozen=True, kw_only=True)
class TopTokenErasure(PerInstanceCheck):
    """How much more often the decision flips when the largest weight is removed than when another weight is removed.

    A removed weight is set to 0 and the other weights are renormalised, while the hidden states stay fixed. The value
    is the share of instances whose decision flips when the largest weight is removed, minus the probability that the
    decision flips when a random other weight is removed. This probability is exact, because each of the other weights
    is removed in turn. An instance has no value in the same cases as in `DecisionFlip`.
    """

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "erasure"
    title = "Removing the largest weight flips the decision"
    question = "Does removing the largest weight flip the decision more often than removing another one?"
    why = (
        "If removing the most attended token flips the decision no more often than removing another token, the largest "
        "weight does not mark the token that matters most."
    )
    how_to_read = (
        "The value is the share of decisions that flip when the largest weight is removed, minus the share that flip "
        "when another weight is removed. At 0, the largest weight matters no more than any other."
    )
    unit = "share of decisions"
    value_name = "excess share of flips"
    values_label = "flip (0 or 1) by the largest weight, minus share of other weights that flip"
    bounds = (-1.0, 1.0)
    threshold_references = ("best_token",)
    subject = "top_token_erasure"

    def needs(self) -> tuple[str, ...]:
        return ("top_token",)

    def values(self, measurements: Measurements) -> Floats:
        values: Floats = measurements.scalar("top_token.attention") - measurements.scalar("top_token.random")
        return values

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        top, other = measurements.scalar("top_token.attention"), measurements.scalar("top_token.random")
        flippable = measurements.scalar("top_token.any")
        others = np.maximum(measurements.lengths - 1, 1)
        # The best token flips the decision if any token flips it. It is compared with all other tokens.
        best = flippable - (top + other * others - flippable) / others
        return (
            Reference(name="floor", value=0.0, meaning="a token drawn at random instead of the top one", n=len(values)),
            ReferenceValues("best_token", best, "a token that flips the decision, in every text that has one"),
        )

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        return {
            "share of flips, largest weight": mean_of(measurements.scalar("top_token.attention")),
            "share of flips, another token": mean_of(measurements.scalar("top_token.random")),
            "share of decisions that some token flips": mean_of(measurements.scalar("top_token.any")),
        }

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return reasons_against_removal(measurements, undefined)
