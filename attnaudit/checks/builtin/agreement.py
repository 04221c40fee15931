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
    join_remarks,
    mean_of,
    no_real_attention,
    single_token,
    standard_deviation,
)
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.disk_arrays.filed_arrays import filled, from_numbers
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.formatting import number
from attnaudit.records import Direction
from attnaudit.unit_samples import FEWEST_DIFFERENT, FEWEST_SAMPLED, MOST_SAMPLED, units_measured, with_sample

PRESETS = ("meister", "jain_wallace")
IMPORTANCES = {
    "gradient": "the gradient",
    "input_x_gradient": "input × gradient",
    "leave_one_out": "leave-one-out",
}
PRESET_NAMES = {"meister": "the norm of the gradient", "jain_wallace": "gradient × input (Jain & Wallace 2019)"}
#: The name of a detail.
UNITS_MEASURED = "units for which leave-one-out was measured, per row"
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
        sampled_units: If above 0, leave-one-out is measured for this number of random units of each instance, from 32
            to 4,096; instances with fewer units are measured completely. τ-b is then estimated from these units (see
            `sampled_tau_b`), and the interval includes the uncertainty due to this sample. Meant for bags with
            thousands of units, and for models in which every unit left out costs another pass. Gradients are always
            measured for all units.
    """

    importance: Literal["gradient", "input_x_gradient", "leave_one_out"] = "gradient"
    at: Literal["inputs", "hidden"] = "inputs"
    preset: Literal["meister", "jain_wallace"] | None = None
    detach: bool | None = None
    sampled_units: int = 0

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
        if self.sampled_units:
            self.require_count("sampled_units", FEWEST_SAMPLED, MOST_SAMPLED)
        self.require_count("sampled_units", 0, MOST_SAMPLED)
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
        column = ".".join(part for part in (self.importance, self.preset, self.at) if part)
        return with_sample(column, self.sampled_units if self._samples_importance else 0)

    @property
    def subject(self) -> str:
        return f"agreement.{self.column}" if self._samples_importance else self._with_sampled_rival

    @property
    def _samples_importance(self) -> bool:
        """Whether the importance itself, and not only a reference value, is measured for a sample of the units."""
        return self.sampled_units > 0 and self.importance == "leave_one_out"

    @property
    def _with_sampled_rival(self) -> str:
        return with_sample(f"agreement.{self.column}", self.sampled_units)

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
        return (self.subject,)

    def values(self, measurements: Measurements) -> Floats:
        values = measurements.scalar(f"{self.subject}.tau")
        return _none_if(self._samples_importance and bool(self._unresolved(measurements).any()), values)

    def _unresolved(self, measurements: Measurements) -> Mask:
        """Return an (n,) mask, True at the instances whose sample of units is too small; all False without samples."""
        if not self.sampled_units:
            nothing: Mask = filled(len(measurements), False, np.bool_)
            return nothing
        unresolved: Mask = measurements.scalar(f"{self.subject}.unresolved") > 0
        return unresolved

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues]:
        too_small = bool(self._unresolved(measurements).any())
        gradient = IMPORTANCES["gradient" if self.importance == "leave_one_out" else self.importance]
        return (
            ReferenceValues(
                "floor",
                _none_if(self._samples_importance and too_small, measurements.scalar(f"{self.subject}.floor")),
                "mean τ-b of shuffled attention",
            ),
            ReferenceValues(
                "gradient_loo",
                _none_if(too_small, measurements.scalar(f"{self.subject}.gradient_loo")),
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
        details: dict[str, Detail] = {"standard deviation": standard_deviation(values)}
        if self._samples_importance:
            variances = measurements.scalar(f"{self.subject}.sampling_variance")[~np.isnan(values)]
            details["standard error that is due to the sample of the units"] = (
                float(np.sqrt(variances.sum()) / len(variances)) if len(variances) else None
            )
        else:
            significant = measurements.scalar(f"{self.subject}.p_value")[~np.isnan(values)] <= 0.05
            details["share of texts with p ≤ .05 (depends mostly on their length)"] = (
                float(significant.mean()) if len(significant) else None
            )
        details["share of token pairs that are nearly tied"] = mean_of(measurements.scalar(f"{self.subject}.near_ties"))
        if self.sampled_units:
            details[UNITS_MEASURED] = units_measured(measurements.lengths, self.sampled_units)
        return details

    def note(self, measurements: Measurements, values: Floats) -> str:
        remarks = []
        if self.sampled_units and bool((measurements.lengths > self.sampled_units).any()):
            counts = units_measured(measurements.lengths, self.sampled_units)
            remarks.append(
                f"leave-one-out was measured for {counts} per row; the interval includes the sampling of units"
                if self._samples_importance
                else f"leave-one-out, which the reference 'gradient_loo' uses, was measured for {counts} per row"
            )
        if self.preset == "jain_wallace" and self.at == "hidden":
            remarks.append(
                "with attention held constant, gradient × input at hidden states contains attention as a factor, so "
                "part of the agreement holds by construction"
            )
        return join_remarks(remarks)

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        if self._samples_importance and (unresolved := self._unresolved(measurements)).any():
            return (
                (
                    f"fewer than {FEWEST_DIFFERENT} of the sampled units differ from the others in leave-one-out or in "
                    "attention, so τ cannot be estimated; set sampled_units higher",
                    unresolved,
                ),
                ("not used, because leaving out only the rows above would bias the mean", undefined),
            )
        attention = measurements.vectors.get("attention", [])
        tied = from_numbers((len(row) > 0 and np.ptp(row) == 0 for row in attention), np.bool_)
        return (
            single_token(measurements),
            no_real_attention(measurements),
            ("all attention weights are equal", tied if len(tied) == len(undefined) else np.zeros_like(undefined)),
            (f"{IMPORTANCES[self.importance]} is the same for all tokens", undefined),
        )


def _none_if(condition: bool, values: Floats) -> Floats:
    """Return NaN for all values (n,) if the condition is true, and the values otherwise."""
    return np.full_like(values, np.nan) if condition else values
