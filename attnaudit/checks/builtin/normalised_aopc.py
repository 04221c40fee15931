"""Is the order of attention near the best order in which tokens can be erased? (Edin et al. 2025)"""

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
MEASURES = {"comprehensiveness": "most attended", "sufficiency": "least attended"}
#: The measure leaves out longer texts, because the search for the best order takes too long.
MOST_TOKENS = 32


@registered
@dataclass(frozen=True, kw_only=True)
class NormalisedAOPC(PerInstanceCheck):
    """Position of the order of attention between the worst and the best order of erasure, averaged over texts.

    To compute the AOPC (area over the perturbation curve) of an order, the n tokens are erased one after another in
    this order. The AOPC is the mean fall of the predicted class's probability after 1, 2, ..., n - 1 erased tokens. For
    each text, the AOPC of the order of attention is rescaled: 0 is the lowest and 1 is the highest AOPC of any order of
    its tokens. Therefore, the values of different models can be compared. The lowest and the highest AOPC are exact for
    texts of up to 8 tokens. For texts of up to 32 tokens, a beam search of width 5 approximates them. Longer texts are
    left out.

    Args:
        measure: "comprehensiveness": the most attended tokens are erased first. "sufficiency": the least attended
            tokens are erased first, and the value is 1 minus the normalised AOPC, so that 1 is best.
        operator: How tokens are erased. "deletion" removes their ids before the text is encoded. "mask" replaces their
            ids with the id of the mask token or, in models without one, of the unknown token.
    """

    measure: Literal["comprehensiveness", "sufficiency"] = "comprehensiveness"
    operator: Literal["deletion", "mask"] = "deletion"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "erasure"
    question = "Is the order of attention closer to the best order of erasure, or to the worst one?"
    why = (
        "How much the prediction can change when tokens are erased depends on the model. A comparison with the best "
        "and the worst order shows whether attention is on the tokens that matter."
    )
    how_to_read = (
        "At 1, attention gives the best order of erasure for every text. At 0, it gives the worst order for every "
        "text. Compare the value with that of a random order."
    )
    unit = "normalised AOPC"
    bounds = (0.0, 1.0)
    threshold_references = ("random",)

    def validate(self) -> None:
        self.require_choice("measure", MEASURES)
        self.require_choice("operator", OPERATORS)

    @property
    def subject(self) -> str:
        return f"normalised_aopc.{self.operator}.{self.measure}"

    @property
    def title(self) -> str:
        return f"Attention orders the tokens as erasure does: {self.measure} ({OPERATORS[self.operator]})"

    @property
    def column(self) -> str:
        """The name of the measure that the check uses."""
        return f"normalised_aopc.{self.operator}"

    def needs(self) -> tuple[str, ...]:
        return (self.column,)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar(f"{self.column}.{self.measure}")

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        at_random = measurements.scalar(f"{self.column}.random")
        if self.measure == "sufficiency":
            at_random = 1 - at_random
        return (ReferenceValues("random", at_random, "the expected value of a random order"),)

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        def mean(name: str) -> float | None:
            return mean_of(measurements.scalar(f"{self.column}.{name}"))

        searched = mean("searched")
        return {
            "mean AOPC of the best order": mean("highest"),
            "mean AOPC of the worst order": mean("lowest"),
            "share of instances with exact bounds": None if searched is None else 1 - searched,
        }

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (
            single_token(measurements),
            no_real_attention(measurements),
            (f"more than {MOST_TOKENS} tokens", measurements.lengths > MOST_TOKENS),
            ("all attention weights are equal, or every order of erasure has the same effect", undefined),
        )
