"""How much attention must be removed until the decision flips? (Serrano & Smith 2019, §5)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.evidence import Detail, Mask, ReferenceValues, mean_of, no_real_attention, single_token
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction

ORDERS = {
    "attention": "attention",
    "random": "random",
    "gradient": "gradient of the weight",
    "attention_x_gradient": "attention × gradient",
}


@registered
@dataclass(frozen=True, kw_only=True)
class DecisionFlip(PerInstanceCheck):
    """How much earlier the decision flips when weights are removed in the order of attention instead of at random.

    Weights are removed one after the other. A removed weight is set to 0 and the other weights are renormalised, while
    the hidden states stay fixed. For each instance, the share of the weights that must be removed to flip the decision
    is measured twice: in random order, and with the largest weights first. The value is the mean over instances of the
    first share minus the second share. A share is 1 if the decision never flips.

    An instance has no value if it has a single token, if no real token has attention, if all weights are equal, or if
    one token has all of the attention.
    """

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "erasure"
    title = "The decision flips sooner when the largest weights are removed first"
    question = "Does the decision flip sooner if the largest weights are removed first than if the order is random?"
    why = (
        "If removing the largest weights has no more effect than removing other weights, attention does not order the "
        "tokens by their importance for the decision."
    )
    how_to_read = (
        "The share of the weights that must be removed to flip the decision is measured twice: in random order, and "
        "with the largest weights first. The value is the first share minus the second. At 0, the order of attention "
        "flips the decision no sooner than a random order. Compare a positive value with that of the order of "
        "attention × gradient."
    )
    unit = "share of weights"
    value_name = "mean reduction in the share of weights to remove"
    values_label = "reduction in the share of weights to remove, per instance"
    bounds = (-1.0, 1.0)
    threshold_references = ("floor", "attention_times_gradient")
    subject = "decision_flip"

    def needs(self) -> tuple[str, ...]:
        return ("flip",)

    def values(self, measurements: Measurements) -> Floats:
        return self._spared(measurements, "attention")

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues]:
        shuffled = self._spared(measurements, "shuffled")
        best = self._spared(measurements, "attention_x_gradient")
        return (
            ReferenceValues("floor", shuffled, "one random order compared with the mean of several"),
            ReferenceValues("attention_times_gradient", best, "the order of attention × gradient"),
        )

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        details: dict[str, Detail] = {
            f"mean share of the weights to remove (order: {order})": mean_of(measurements.scalar(f"flip.{name}"))
            for name, order in ORDERS.items()
        }
        never = measurements.scalar("flip.attention") >= 1
        details["share of decisions that never flip (order: attention)"] = mean_of(
            np.where(np.isnan(values), np.nan, never)
        )
        return details

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return reasons_against_removal(measurements, undefined)

    def _spared(self, measurements: Measurements, order: str) -> Floats:
        """Return the (n,) shares of weights to remove in random order, minus the shares to remove in `order`."""
        spared: Floats = measurements.scalar("flip.random") - measurements.scalar(f"flip.{order}")
        return spared


def reasons_against_removal(measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
    """Return why instances have no value, in the same form as `PerInstanceCheck.undefined_reasons`."""
    return (
        single_token(measurements),
        no_real_attention(measurements),
        ("one token holds all attention", measurements.scalar("attention.max") >= 1),
        ("all attention weights are equal", undefined),
    )
