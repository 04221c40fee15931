"""Are the attended tokens enough for the output, while attention is held fixed?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.builtin.class_weights import CLASSES, Classes, note_on_classes, weighted_rows, why_no_interval
from attnaudit.checks.evidence import (
    Detail,
    Evidence,
    Mask,
    Typical,
    join_remarks,
    mean_of,
    no_real_attention,
    single_token,
)
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import percentage
from attnaudit.records import Direction, Reference
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate

NUMBER = "mean share of the tokens that are attended"


@registered
@dataclass(frozen=True, kw_only=True)
class HeldSufficiency(PerInstanceCheck):
    """How much of the output the attended tokens keep if all other tokens are masked and attention is held fixed.

    The attended tokens S are the fewest tokens that have at least 80% of the attention. The other tokens are replaced
    by the mask token or the unknown token. The attention that is shown as the explanation keeps its weights. Let z be
    the vector of the logits minus their mean over the classes, z(S) that of the text with only the attended tokens, and
    z(∅) that of a text of masked tokens. The value is

        1 - Σ_x ‖z(x) - z(S)‖ / Σ_x ‖z(x) - z(∅)‖

    At 1, the attended tokens give the whole output. At 0, the text with only the attended tokens is as far from the
    output as a text of masked tokens: attention is on tokens that only collect what other tokens contribute, such as a
    separator. If each token moves the output in proportion to its attention, the value is about 0.8. The value depends
    neither on the scale of the logits nor on a bias per class.

    Args:
        classes: "balanced": every class has the same total weight. The classes are the labels if all rows have one, and
            otherwise the predicted classes. "as_sampled": every text has the same weight.
    """

    classes: Classes = "balanced"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)
    lists_classes: ClassVar[bool] = False
    needs_all_units: ClassVar[str] = "the attended tokens are not known if only a sample of the units is measured"

    family = "pointing"
    title = "The attended tokens are enough while attention is held fixed"
    question = "If only the attended tokens are kept and attention is held fixed, is the output kept?"
    when_failed = "The attended tokens alone do not give the output"
    why = (
        "A token can have an effect only because an earlier layer copies other tokens into its state. Attention on "
        "such a token marks a word that did not decide."
    )
    how_to_read = (
        "At 1, the tokens with 80% of the attention give the whole output. At 0, they give no more of it than masked "
        "tokens do."
    )
    unit = "share of the output"
    value_name = "share of the output that the attended tokens keep"
    values_label = "distance from the output with only the attended tokens, per instance"
    values_range = None
    statistic = "ratio of means"
    bounds = (-math.inf, 1.0)
    worst = "highest"

    @property
    def subject(self) -> str:
        return "held_sufficiency" + (".as_sampled" if self.classes == "as_sampled" else "")

    def validate(self) -> None:
        self.require_choice("classes", CLASSES)

    def needs(self) -> tuple[str, ...]:
        return ("attended_tokens",)

    def values(self, measurements: Measurements) -> Floats:
        """Return the distances ‖z(x) - z(S)‖."""
        return measurements.scalar("attended_tokens.others")

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (single_token(measurements), no_real_attention(measurements), ("not measured", undefined))

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        return self._value(*self._terms(measurements), self._weighted(measurements, groups))

    def value_of_part(self, measurements: Measurements, values: Floats, part: Mask) -> float | None:
        chosen = WeightedRows.equal(len(values), measurements.groups(part & ~np.isnan(values)))
        return self._value(*self._terms(measurements), chosen)

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        above, below = self._terms(measurements)
        rows = self._weighted(measurements, groups)
        if self._value(above, below, rows) is None:
            return None
        unit = float(below[groups.rows].max())  # no text moves further; texts that the sample missed may keep nothing
        return rows.ratio_interval(
            above / unit,
            below / unit,
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            bounds=self.bounds,
            extremes=(-1.0, 1.0),
        )

    @property
    def not_linearised(self) -> str:
        return ""

    def linearised_values(self, measurements: Measurements) -> Floats:
        above, below = self._terms(measurements)
        rows = self._weighted(measurements, measurements.groups(~np.isnan(above)))
        if self._value(above, below, rows) is None:
            undefined: Floats = filled(len(measurements), np.nan)
            return undefined
        return rows.linearised_ratio(above, below)

    def no_interval(self, measurements: Measurements, value: float | None, groups: Groups) -> str:
        if value is None or len(groups) < 2:
            return ""
        return (
            why_no_interval(measurements, self._weighted(measurements, groups))
            or "too few texts have an output that differs from that of masked tokens"
        )

    def note(self, measurements: Measurements, values: Floats) -> str:
        defined = measurements.groups(~np.isnan(values))
        unmoved = len(defined) and self.value(measurements, values, defined) is None
        why = "undefined: masking all tokens changes the output of no text"
        return join_remarks([why if unmoved else "", note_on_classes(measurements, self.classes)])

    def references(self, measurements: Measurements, values: Floats) -> Sequence[Reference]:
        count = int(np.count_nonzero(~np.isnan(values)))
        meaning = "effects in proportion to attention that add up"
        return (Reference(name="proportional", value=0.8, meaning=meaning, n=count),)

    def typical(self, measurements: Measurements, values: Floats) -> Typical:
        above, below = self._terms(measurements)
        with np.errstate(invalid="ignore", divide="ignore"):
            kept = np.where(below > 0, above / below, np.nan)
        if np.isnan(kept).all():
            return super().typical(measurements, values)
        reason = "typical texts: the attended tokens keep about as much of the output as on the median text"
        return Typical(reason, np.abs(kept - np.nanmedian(kept)))

    def in_words(self, evidence: Evidence) -> str:
        number = evidence.details.get(NUMBER)
        if evidence.value is None or not isinstance(number, float):
            return ""
        return (
            f"On average, {percentage(number)} of the tokens have 80% of the attention. If all others are masked, the "
            f"output keeps {percentage(max(0.0, evidence.value))} of its distance from the output of masked tokens."
        )

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        return {NUMBER: mean_of(measurements.scalar("attended_tokens.number") / measurements.lengths)}

    def _weighted(self, measurements: Measurements, groups: Groups) -> WeightedRows:
        return weighted_rows(measurements, groups, self.classes)

    def _terms(self, measurements: Measurements) -> tuple[Floats, Floats]:
        """Return (n,) ‖z(x) - z(∅)‖ - ‖z(x) - z(S)‖ and ‖z(x) - z(∅)‖; NaN where they are undefined."""
        below = measurements.scalar("attended_tokens.all")
        return below - measurements.scalar("attended_tokens.others"), below

    @staticmethod
    def _value(above: Floats, below: Floats, rows: WeightedRows) -> float | None:
        """Return the ratio of the two weighted means; None if it is undefined."""
        if not len(rows.groups):
            return None
        mean = float(rows.mean(below))
        return float(rows.mean(above)) / mean if mean > 0 else None
