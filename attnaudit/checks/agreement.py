"""Does attention rank tokens as a feature importance does? (Jain & Wallace 2019; Meister et al. 2021)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attnaudit.checks.base import TOKEN_COLUMNS, Check, Description, Parameter, registered
from attnaudit.checks.evidence import Detail, Evidence, by_predicted_class, mean_of, not_shown, reasons, reference
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval

PRESETS = ("meister", "jain_wallace")
WORDS = {
    "gradient": "the gradient",
    "input_x_gradient": "input × gradient",
    "leave_one_out": "leave-one-out",
}
PLACES = {"inputs": "the inputs", "hidden": "the hidden states"}


@registered
@dataclass(frozen=True, kw_only=True)
class Agreement(Check):
    """Mean Kendall τ-b, per instance over its real tokens, between attention and a feature importance.

    importance: "gradient", "input_x_gradient" or "leave_one_out". at: "inputs" or "hidden" (states). preset: of the
    gradient, "meister" (norm; the default) or "jain_wallace" (gradient × input, attention held constant). detach: only
    to say aloud what the preset does; the detached gradient norm is refused at hidden states, where it is proportional
    to attention for any decoder of the context, so that τ would be 1 by construction.
    """

    importance: Literal["gradient", "input_x_gradient", "leave_one_out"] = "gradient"
    at: Literal["inputs", "hidden"] = "inputs"
    preset: Literal["meister", "jain_wallace"] | None = None
    detach: bool | None = None

    def validate(self) -> None:
        self.choose("importance", WORDS)
        self.choose("at", PLACES)
        if self.importance != "gradient":
            if self.preset is not None or self.detach is not None:
                raise CheckError(
                    f"Agreement: preset and detach belong to importance='gradient'; "
                    f"leave them out for {self.importance!r}."
                )
            return
        if self.preset is None:
            object.__setattr__(self, "preset", "meister")
        self.choose("preset", PRESETS)
        detached = self.preset == "jain_wallace"
        if self.detach not in (None, True, False):
            raise CheckError(f"Agreement: detach is {self.detach!r}, expected true or false.")
        if self.detach is not None and self.detach != detached:
            why = (
                "the detached gradient norm at hidden states is proportional to attention, so τ is 1 by construction"
                if self.at == "hidden" and self.detach
                else f"that preset has attention {'held constant' if detached else 'differentiated'}"
            )
            raise CheckError(
                f"Agreement: detach={self.detach} with preset {self.preset!r} is refused: {why}. "
                f"Leave detach out, or choose preset {PRESETS[1 - PRESETS.index(str(self.preset))]!r}."
            )
        object.__setattr__(self, "detach", None)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {name: value for name, value in super().parameters.items() if name != "detach"}

    @property
    def column(self) -> str:
        """The measured feature importance, such as 'gradient.meister.inputs'."""
        return ".".join(part for part in (self.importance, self.preset, self.at) if part)

    @property
    def subject(self) -> str:
        return f"agreement.{self.column}"

    def needs(self) -> tuple[str, ...]:
        return (f"agreement.{self.column}",)

    @property
    def description(self) -> Description:
        named = WORDS[self.importance] + (f" ({self.preset})" if self.preset else "")
        return Description(
            family="agreement",
            title=f"Attention agrees with {named} at {PLACES[self.at]}",
            question=f"Does attention rank the tokens as {named} at {PLACES[self.at]} does?",
            why="If weights shown as an explanation rank tokens unlike what moves the output, readers are misled about "
            "which tokens matter. Importance methods disagree among themselves, so read the value beside its floor and "
            "ceiling.",
            how_to_read="Kendall's τ-b compares two orderings of the same tokens: 1 is the same order, 0 no relation, "
            "and −1 the opposite order. Importance measures also disagree with each other, so compare the value with "
            "its references, shuffled attention and the agreement of two importance measures, and not with 1.",
            statistic="mean",
            unit="Kendall τ-b",
            value_name="mean τ-b",
            low=-1.0,
            high=1.0,
            token_columns=tuple(dict.fromkeys(("attention", self.column, *TOKEN_COLUMNS))),
            references=("floor", "ceiling"),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        prefix = f"agreement.{self.column}"
        tau = measurements.scalar(f"{prefix}.tau")
        missing = np.isnan(tau)
        groups = Groups.of(measurements.instances, ~missing)
        significant = measurements.scalar(f"{prefix}.p_value")[~missing] <= 0.05
        details: dict[str, Detail] = {
            "standard deviation": float(tau[~missing].std(ddof=1)) if (~missing).sum() > 1 else None,
            "share with p ≤ .05 (mostly a matter of length)": float(significant.mean()) if len(significant) else None,
            "share of token pairs nearly tied": mean_of(measurements.scalar(f"{prefix}.near_ties")),
            **by_predicted_class(measurements, tau),
        }
        other = "gradient" if self.importance == "leave_one_out" else "leave-one-out"
        this = "leave-one-out" if self.importance == "leave_one_out" else "the gradient"
        detached_hidden = self.preset == "jain_wallace" and self.at == "hidden"
        return Evidence(
            value=mean_of(tau),
            interval=mean_interval(
                tau,
                groups,
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=(-1.0, 1.0),
            ),
            defined=~missing,
            undefined=self._reasons(measurements, missing),
            values=tau,
            values_label="τ-b per instance",
            values_range=(-1.0, 1.0),
            references=(
                reference("floor", measurements.scalar(f"{prefix}.floor"), "mean τ-b of shuffled attention"),
                reference(
                    "ceiling",
                    measurements.scalar(f"{prefix}.ceiling"),
                    f"mean τ-b between {this} and {other}, which contains no attention",
                ),
            ),
            reference_values={name: measurements.scalar(f"{prefix}.{name}") for name in ("floor", "ceiling")},
            details=details,
            note="gradient × input at hidden states with attention held constant contains attention as a factor"
            if detached_hidden
            else "",
        )

    def _reasons(self, measurements: Measurements, missing: NDArray[np.bool_]) -> dict[str, int]:
        attention = measurements.vectors.get("attention")
        flat = np.array([len(row) > 0 and np.ptp(row) == 0 for row in attention or []], dtype=bool)
        flat = flat if len(flat) == len(missing) else np.zeros(len(missing), dtype=bool)
        return reasons(
            ("a single token", missing & (measurements.lengths < 2)),
            not_shown(measurements, missing),
            ("every attention weight is tied", missing & flat),
            (f"{WORDS[self.importance]} is zero or tied on every token", missing),
        )
