"""Does attention rank the tokens as feature importance does? (Jain & Wallace 2019, §4.1; Meister et al. 2021)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import TOKEN_COLUMNS, registered
from attnaudit.checks.check_arguments import Parameter
from attnaudit.checks.evidence import (
    Detail,
    Evidence,
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
from attnaudit.formatting import number
from attnaudit.records import Direction

PRESETS = ("meister", "jain_wallace")
IMPORTANCES = {
    "gradient": "the gradient",
    "input_x_gradient": "input × gradient",
    "leave_one_out": "leave-one-out",
}
PRESET_NAMES = {"meister": "the norm of the gradient", "jain_wallace": "gradient × input (Jain & Wallace 2019)"}
PLACES = {"inputs": "the inputs", "hidden": "the hidden states"}


@registered
@dataclass(frozen=True, kw_only=True)
class Agreement(PerInstanceCheck):
    """Mean over instances of Kendall's τ-b between attention and a feature importance over the real tokens.

    Args:
        importance: The feature importance: "gradient", "input_x_gradient" or "leave_one_out".
        at: Where the importance is computed: "inputs" for the embeddings of the tokens, "hidden" for their hidden
            states.
        preset: How the gradient is computed; only for importance="gradient". "meister" (the default) is the norm of the
            gradient. "jain_wallace" is gradient × input, with attention held constant.
        detach: Whether gradients treat attention as a constant. None (the default) leaves this choice to the preset:
            True for "jain_wallace", False for "meister". A value that contradicts the preset is an error. The gradient
            norm of "meister" cannot be combined with constant attention, because at the hidden states it would be
            proportional to attention, and τ would be 1 by construction.
    """

    importance: Literal["gradient", "input_x_gradient", "leave_one_out"] = "gradient"
    at: Literal["inputs", "hidden"] = "inputs"
    preset: Literal["meister", "jain_wallace"] | None = None
    detach: bool | None = None

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "agreement"
    why = (
        "If attention is shown as an explanation but does not rank the tokens by their effects on the output, readers "
        "are misled about which tokens matter. Importance methods disagree with each other, so compare the value with "
        "its references."
    )
    how_to_read = (
        "Kendall's τ-b compares two orderings of the same tokens: 1 is the same order, 0 no relation, and −1 the "
        "opposite order. Two importance measures do not agree perfectly either, so compare the value not with 1 but "
        "with its references: shuffled attention, and the agreement between two importance measures."
    )
    unit = "Kendall τ-b"
    value_name = "mean τ-b"
    values_label = "τ-b per instance"
    bounds = (-1.0, 1.0)
    threshold_references = ("floor", "gradient_loo")

    def validate(self) -> None:
        self.require_choice("importance", IMPORTANCES)
        self.require_choice("at", PLACES)
        if self.importance != "gradient":
            if self.preset is not None or self.detach is not None:
                raise CheckError(
                    "Agreement: preset and detach apply only to importance='gradient'; leave them out for "
                    f"{self.importance!r}."
                )
            return
        if self.preset is None:
            object.__setattr__(self, "preset", "meister")
        self.require_choice("preset", PRESETS)
        if self.detach not in (None, True, False):
            raise CheckError(f"Agreement: detach is {self.detach!r}; expected true or false.")
        detached = self.preset == "jain_wallace"
        if self.detach is not None and self.detach != detached:
            reason = (
                "with attention held constant, the gradient norm at hidden states is proportional to attention, so τ "
                "is 1 by construction"
                if self.at == "hidden" and self.detach
                else "with this preset, "
                f"{'attention is held constant' if detached else 'gradients also pass through attention'}"
            )
            raise CheckError(
                f"Agreement: detach={self.detach} is invalid with preset {self.preset!r}: {reason}. "
                f"Leave detach out, or choose preset {PRESETS[1 - PRESETS.index(str(self.preset))]!r}."
            )
        object.__setattr__(self, "detach", None)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {name: value for name, value in super().parameters.items() if name != "detach"}

    @property
    def column(self) -> str:
        """The name of the measured feature importance, such as "gradient.meister.inputs"."""
        return ".".join(part for part in (self.importance, self.preset, self.at) if part)

    @property
    def subject(self) -> str:
        return f"agreement.{self.column}"

    @property
    def title(self) -> str:
        return f"Attention agrees with {self._importance_name} at {PLACES[self.at]}"

    @property
    def question(self) -> str:
        return f"Does attention rank the tokens in the same order as {self._importance_name} at {PLACES[self.at]}?"

    @property
    def _importance_name(self) -> str:
        return PRESET_NAMES[self.preset] if self.preset else IMPORTANCES[self.importance]

    @property
    def token_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("attention", self.column, *TOKEN_COLUMNS)))

    def needs(self) -> tuple[str, ...]:
        return (f"agreement.{self.column}",)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar(f"{self.subject}.tau")

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues]:
        gradient = IMPORTANCES["gradient" if self.importance == "leave_one_out" else self.importance]
        return (
            ReferenceValues("floor", measurements.scalar(f"{self.subject}.floor"), "mean τ-b of shuffled attention"),
            ReferenceValues(
                "gradient_loo",
                measurements.scalar(f"{self.subject}.gradient_loo"),
                f"mean τ-b between {gradient} and leave-one-out",
            ),
        )

    def in_words(self, evidence: Evidence) -> str:
        if evidence.value is None:
            return ""
        return (
            f"The order of the tokens by attention and their order by {IMPORTANCES[self.importance]} have a rank "
            f"correlation of {number(evidence.value, digits=2)} on average: 1 means the same order, 0 no relation."
        )

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        significant = measurements.scalar(f"{self.subject}.p_value")[~np.isnan(values)] <= 0.05
        return {
            "standard deviation": standard_deviation(values),
            "share of texts with p ≤ .05 (depends mostly on their length)": float(significant.mean())
            if len(significant)
            else None,
            "share of token pairs that are nearly tied": mean_of(measurements.scalar(f"{self.subject}.near_ties")),
        }

    def note(self, measurements: Measurements, values: Floats) -> str:
        if self.preset == "jain_wallace" and self.at == "hidden":
            return (
                "with attention held constant, gradient × input at hidden states contains attention as a factor, so "
                "part of the agreement holds by construction"
            )
        return ""

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        attention = measurements.vectors.get("attention", [])
        tied = np.array([len(row) > 0 and np.ptp(row) == 0 for row in attention], dtype=bool)
        return (
            single_token(measurements),
            no_real_attention(measurements),
            ("all attention weights are equal", tied if len(tied) == len(undefined) else np.zeros_like(undefined)),
            (f"{IMPORTANCES[self.importance]} is the same for all tokens", undefined),
        )
