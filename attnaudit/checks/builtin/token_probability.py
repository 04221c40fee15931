"""Does one hidden state alone already give the prediction? (Tutek & Šnajder 2020, §5)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.evidence import Mask, ReferenceValues, number_defined, with_note
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import CheckRecord, Direction, Reference


@registered
@dataclass(frozen=True, kw_only=True)
class TokenProbability(PerInstanceCheck):
    """Mean over instances and tokens of the probability of the predicted class, given only the token's hidden state.

    If two models have the same accuracy, the model with the lower value is better.

    Args:
        among: Which instances are used. "correct": the correctly predicted instances, as in the paper. This needs
            labels, and n in the record counts only these instances. "all": all instances.
    """

    among: Literal["correct", "all"] = "correct"

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    family = "states"
    title = "One token's state alone does not decide"
    question = "Is the prediction less probable from one token's hidden state alone than from all of them?"
    why = (
        "If every hidden state alone gives the prediction, each state contains the information of the whole text, and "
        "the weight on a state says nothing about the token at its position."
    )
    how_to_read = (
        "If the value is near the probability from the whole text, a single hidden state already gives the "
        "prediction. If it is near 1 / (number of classes), a single state says nothing about the prediction."
    )
    unit = "probability"
    value_name = "mean per-token probability"
    values_label = "mean probability over tokens, per instance"
    bounds = (0.0, 1.0)
    worst = "highest"
    threshold_references = ("whole_text",)

    def validate(self) -> None:
        self.require_choice("among", ("correct", "all"))

    @property
    def subject(self) -> str:
        return "token_probability" + (".all" if self.among == "all" else "")

    def needs(self) -> tuple[str, ...]:
        return ("token_probability",)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar("token_probability")

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        chance = 1 / len(measurements.classes)
        whole = measurements.scalar("token_probability.whole")
        return (
            Reference(name="floor", value=chance, meaning="one over the number of classes", n=number_defined(values)),
            ReferenceValues("whole_text", whole, "mean probability of the prediction from the whole text"),
        )

    def linearised_values(self, measurements: Measurements) -> Floats:
        return np.where(self.judged_rows(measurements), super().linearised_values(measurements), np.nan)

    def judged_rows(self, measurements: Measurements) -> Mask:
        """Return an (n,) mask, True at the correctly predicted instances. With among="all", it is True everywhere."""
        rows: Mask = (measurements.labels == measurements.predicted) | (self.among == "all")
        return rows

    def note_on_judged_rows(self, measurements: Measurements) -> str:
        """Return the number of correctly predicted instances, or why there is none. With among="all", return ""."""
        if self.among == "all":
            return ""
        if measurements.no_decision:
            return f"no prediction is correct or wrong, because {measurements.no_decision}"
        if not (measurements.labels >= 0).any():
            return "the check needs labels: add a label column, or use among='all'"
        correct = int(self.judged_rows(measurements).sum())
        return f"measured on the {correct:,} of {len(measurements):,} instances that are predicted correctly"

    def judge(self, measurements: Measurements, *, gated: int = 1) -> CheckRecord:
        """Judge the check like `Check.judge`. With among="correct", use only the correctly predicted instances."""
        if self.among == "all":
            return super().judge(measurements, gated=gated)
        record = super().judge(measurements.only(self.judged_rows(measurements)), gated=gated)
        return with_note(record, self.note_on_judged_rows(measurements))
