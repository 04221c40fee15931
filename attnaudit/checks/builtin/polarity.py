"""How often does the most attended token speak against the prediction? (Liu et al. 2022)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.evidence import Detail, Mask, ReferenceValues, mean_of, no_real_attention, single_token
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference

OPERATORS = {"deletion": "deletion", "mask": "mask substitution"}


@registered
@dataclass(frozen=True, kw_only=True)
class Polarity(PerInstanceCheck):
    """How often removing the most attended token raises the probability of the predicted class.

    Liu et al. 2022 call this a faithfulness violation: attention has no sign, so readers take a large weight as support
    for the prediction. The reference is the share of all tokens whose removal raises the probability. It is the
    expected value for a token drawn at random.

    Args:
        operator: How tokens are removed. "deletion" removes their ids before the text is encoded. "mask" replaces their
            ids with the id of the mask token or, in models without one, of the unknown token.
    """

    operator: Literal["deletion", "mask"] = "deletion"

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    family = "erasure"
    question = "How often does the most attended token speak against the prediction?"
    why = (
        "Readers take a large weight as support for the prediction. If removing the most attended token makes the "
        "model more certain, this token was evidence against the prediction."
    )
    how_to_read = (
        "The value is how often the prediction becomes more probable without the most attended token. At 0, this "
        "token always supports the prediction; compare the value with that of a token drawn at random."
    )
    unit = "share of instances"
    value_name = "share where the most attended token speaks against the prediction"
    values_label = "1 if the most attended token speaks against the prediction"
    bounds = (0.0, 1.0)
    worst = "highest"
    threshold_references = ("random",)

    def validate(self) -> None:
        self.require_choice("operator", OPERATORS)

    @property
    def subject(self) -> str:
        return f"polarity.{self.operator}"

    @property
    def title(self) -> str:
        return f"The most attended token supports the prediction ({OPERATORS[self.operator]})"

    def needs(self) -> tuple[str, ...]:
        return (self.subject,)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar(f"{self.subject}.attention")

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        at_random = measurements.scalar(f"{self.subject}.random")
        return (ReferenceValues("random", at_random, "the same for a token drawn at random"),)

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        return {"excess over a token drawn at random": mean_of(values - measurements.scalar(f"{self.subject}.random"))}

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (single_token(measurements), no_real_attention(measurements), ("not measured", undefined))
