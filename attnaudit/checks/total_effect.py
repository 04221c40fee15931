"""Is attention used? The total-effect index of attention (Homma & Saltelli 1996; Jansen 1999)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.evidence import Detail, Evidence, Mask, mean_of, no_real_attention, number_defined, single_token
from attnaudit.checks.where_replaced import WhereReplaced
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference
from attnaudit.statistics.cohens_kappa import CohensKappa
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.total_effect_index import TotalEffectIndex

OUTPUTS = ("probabilities", "logits")
#: The largest squared Euclidean distance between two vectors of probabilities.
LARGEST_CHANGE = 2.0


@registered
@dataclass(frozen=True, kw_only=True)
class TotalEffect(WhereReplaced):
    """Total-effect index of attention: how far rearranged weights move the output, relative to how much it varies.

    The index is S_T = mean of E ‖y(x, α) - y(x, α′)‖² / (2 V). Here y(x, α) is the output for the text x with the
    attention α, α′ is a random rearrangement of the weights that differs from α, and V is the variance of y(x, α) over
    the texts, summed over the classes. Texts whose weights cannot be rearranged, because they have one token or equal
    weights only, enter neither the mean nor the variance. The details contain Cohen's κ between the decisions under α
    and α′. The arguments `where` and `replacement` are described in `WhereReplaced`.

    Args:
        on: The output. "probabilities": the class probabilities, where single texts with extreme logits have bounded
            influence. "logits": the logits minus their mean over the classes.
    """

    on: Literal["probabilities", "logits"] = "probabilities"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "total effect"
    why = "If other weights on the same tokens give the same output, the model does not use its attention."
    how_to_read = (
        "At 0, the output is the same however the attention weights are shuffled over the tokens: the model does not "
        "use them. At 1, shuffling the weights of a text changes the output as much as replacing the text by another "
        "one. Values above 1 are possible."
    )
    statistic = "ratio of means"
    unit = "total-effect index"
    bounds = (0.0, math.inf)
    values_label = "contribution to the total-effect index per instance"

    def validate(self) -> None:
        self.require_choice("on", OUTPUTS)
        super().validate()

    @property
    def subject(self) -> str:
        return f"total_effect.{self.on}{self.place}"

    @property
    def title(self) -> str:
        return f"Attention is used: its total effect on the {self.on}"

    @property
    def question(self) -> str:
        return (
            f"How much do the {self.on} change when the attention weights are rearranged over the tokens, "
            f"{self.place_in_words}, compared with how much they differ between texts?"
        )

    @property
    def value_name(self) -> str:
        return f"total-effect index of the {self.on}"

    @property
    def column(self) -> str:
        """The name of the measure that the check reads."""
        return f"rearrangement{self.place}"

    def needs(self) -> tuple[str, ...]:
        return (self.column,)

    def values(self, measurements: Measurements) -> Floats:
        index, _ = self._index(measurements, self.on)
        return np.full(len(measurements), np.nan) if index is None else index.effects

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        index, groups = self._index(measurements, self.on)
        if index is None:
            return None
        return index.interval(
            groups,
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            largest_change=LARGEST_CHANGE if self.on == "probabilities" else math.inf,
        )

    def no_interval(self, value: float | None, groups: Groups) -> str:
        if value is None or len(groups) < 2:
            return ""
        return f"the variance of the {self.on} is too uncertain, so an index relative to it has no interval"

    def references(self, measurements: Measurements, values: Floats) -> Sequence[Reference]:
        meaning = "the effect of replacing the text by another one"
        return (Reference(name="another_text", value=1.0, meaning=meaning, n=number_defined(values)),)

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (
            no_real_attention(measurements),
            single_token(measurements),
            ("all attention weights are equal", np.isnan(self._changes(measurements, self.on))),
            (f"the {self.on} do not vary", undefined),
        )

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        other = OUTPUTS[1 - OUTPUTS.index(self.on)]
        index, groups = self._index(measurements, self.on)
        other_index, _ = self._index(measurements, other)
        kappa = CohensKappa.of(measurements.predicted, self._decisions(measurements))
        estimate = kappa.interval(groups, confidence=self.confidence, generator=self.generator(measurements, "kappa"))
        changed = 1 - kappa.columns[groups.rows, -1]
        return {
            f"total-effect index of the {other}": None if other_index is None else mean_of(other_index.effects),
            f"standard deviation of the {self.on}": None if index is None else math.sqrt(index.variance),
            "share of decisions changed": mean_of(changed),
            "Cohen's κ of the decisions": kappa.value(groups),
            f"Cohen's κ, {100 * self.confidence:g}% interval": None
            if estimate is None
            else f"{estimate.low:.3f} to {estimate.high:.3f}",
        }

    def evidence(self, measurements: Measurements) -> Evidence:
        evidence = super().evidence(measurements)
        if evidence.value is None and not np.isnan(self._changes(measurements, self.on)).all():
            note = f"the {self.on} are the same for every text, so an effect relative to their variance is undefined"
            return replace(evidence, note=note)
        return evidence

    def _changes(self, measurements: Measurements, on: str) -> Floats:
        """Return the (n,) mean squared change of the output, NaN where the weights cannot be rearranged."""
        return measurements.scalar(f"{self.column}.{on}")

    def _index(self, measurements: Measurements, on: str) -> tuple[TotalEffectIndex | None, Groups]:
        """Return the index of an output, None if it is undefined, and the instances that it is computed from."""
        changes = self._changes(measurements, on)
        groups = measurements.groups(~np.isnan(changes))
        return TotalEffectIndex.of(changes, _outputs(measurements, on), groups), groups

    def _decisions(self, measurements: Measurements) -> Floats:
        """Return the (n, C) share of the rearrangements under which each class is predicted."""
        shares = np.full((len(measurements), len(measurements.classes)), np.nan)
        for i, row in enumerate(measurements.vector(f"{self.column}.decisions")):
            shares[i] = row
        return shares


def _outputs(measurements: Measurements, on: str) -> Floats:
    """Return the (n, C) probabilities, or logits minus their mean over the classes; a sigmoid logit counts as two."""
    count = len(measurements)
    if on == "probabilities":
        return np.reshape(measurements.vector("probabilities"), (count, -1)) if count else np.zeros((0, 1))
    logits = np.reshape(measurements.vector("logits"), (count, -1)) if count else np.zeros((0, 1))
    if logits.shape[1] == 1:
        logits = np.column_stack([np.zeros_like(logits), logits])
    centred: Floats = logits - logits.mean(1, keepdims=True)
    return centred
