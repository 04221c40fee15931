"""Does attention point at the tokens that the prediction depends on?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.checks.base import registered
from attnaudit.checks.builtin.class_weights import (
    CLASSES,
    Classes,
    note_on_classes,
    units_of_rows,
    weighted_rows,
    why_no_interval,
)
from attnaudit.checks.builtin.pointing_terms import (
    HOW_TO_READ,
    POINTS,
    ROUNDING,
    UNITS,
    VALUE_NAMES,
    Measure,
    cosine_of_effects,
    cosines,
    gains,
    half_of,
    largest_weight,
    pointed,
    without_effect,
)
from attnaudit.checks.evidence import Detail, Evidence, Mask, Typical, join_remarks, no_real_attention, single_token
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.checks.sequential import RowSequence
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import listed, percentage
from attnaudit.records import Direction, Reference
from attnaudit.records.check_records import NO_BETTER
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.statistic_sequences import limited_ratio_sequence
from attnaudit.statistics.verdict import MINIMUM_DEFINED
from attnaudit.statistics.weighted_share import weighted_share_interval

#: Kind of output on which effects are measured -> suffix of the columns.
SUFFIXES = {"probabilities": "", "logits": ".logits"}
#: Names of details.
PRECISION = "precision: effect of a token drawn according to attention, as a share of the largest effect"
BY_CHANCE = "the same for a token drawn at random"
QUARTER = "share of the texts on which the cosine is at least a quarter of the way from equal weights to 1"
UNWEIGHTED = "share at a quarter of the way, if every text whose tokens have unequal effects counts the same"
#: The largest number of sampled orders per instance.
MOST_ORDERS = 100_000
#: A higher limit, which is used only for a detail in the report.
POINTS_CLOSELY = 0.5


@registered
@dataclass(frozen=True, kw_only=True)
class Pointing(PerInstanceCheck):
    """How much closer attention is to the effects of the tokens than uniform weights are, measured by the cosine.

    The effect e_i of token i on the output f is ½ [f(x) - f(x without i)] + ½ [f(i alone) - f(nothing)]. It is the mean
    of two changes: what the output loses without token i, and what it gains from token i alone. A removed token is
    replaced by the mask token or the unknown token. While tokens are replaced, the attention α that is shown as the
    explanation keeps its values, so that only the weighted states change. Let m_x = max |e_i|. The value is C:

        c(α) = Σ_x m_x cos(α, |e|) / Σ_x m_x        C = (c(α) - c(uniform)) / (1 - c(uniform))

    C equals Σ_x r_x c_x / Σ_x r_x, a weighted mean over the texts of c_x = (cos(α, |e|) - cos(uniform, |e|)) / (1 -
    cos(uniform, |e|)). The weight of a text, r_x = m_x (1 - cos(uniform, |e|)), is large if the effects of its tokens
    are large and unequal. A text has no weight if no token has an effect, or if all tokens have the same effect. The
    value is undefined if no text has weight.

    Args:
        on: The output f. "probabilities": the probability of the predicted class. A text then has no weight if no
            replacement of tokens changes this probability. "logits": the vector of all logits minus their mean over the
            classes. |e_i| is then the Euclidean norm over the classes. The value depends neither on the scale of the
            logits nor on a bias per class.
        measure: "cosine": the value is C. "plain": the value is c(α), without a comparison with uniform weights. It is
            the same whether or not a text contains tokens that have neither weight nor effect. The weight of a text is
            m_x, so texts whose tokens have the same effect count, too. "share": the value is
            Σ_x r_x [c_x ≥ ¼] / Σ_x r_x. This is the share of the texts, weighted by r_x, on which attention is at least
            a quarter of the way from uniform weights to the effects.
        classes: "balanced": every class has the same total weight. The classes are the labels if all rows have one, and
            otherwise the predicted classes. "as_sampled": every text has the same weight. In both cases, r_x (m_x for
            "plain") is an additional weight.
        shapley_orders: If above 0, the details compare the effects with Shapley values, which are estimated from this
            number of random orders per text (exact for short texts).
    """

    on: Literal["probabilities", "logits"] = "probabilities"
    measure: Measure = "cosine"
    classes: Classes = "balanced"
    shapley_orders: int = 0

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)
    lists_classes: ClassVar[bool] = False
    needs_all_units: ClassVar[str] = (
        "the cosine and the weight of a row depend on its largest effects, which a sample of the units may not contain"
    )

    family = "pointing"
    when_failed = "Attention points at other tokens than those that the prediction depends on"
    why = (
        "Readers take large attention weights as marks of the words behind a decision. If replacing the attended words "
        "changes the prediction no more than replacing other words, attention marks the wrong words."
    )
    statistic = "ratio of means"
    worst = "highest"

    @property
    def title(self) -> str:
        measure = {"cosine": "", "plain": "plain cosine, ", "share": "share of the texts, "}[self.measure]
        return f"Attention points at the influential tokens ({measure}effects on the {self.on})"

    @property
    def question(self) -> str:
        if self.measure == "share":
            return "On which share of the texts is attention larger on the tokens that change the prediction more?"
        return "Is attention larger on the tokens whose replacement changes the prediction more?"

    @property
    def how_to_read(self) -> str:
        return HOW_TO_READ[self.measure]

    @property
    def unit(self) -> str:
        return UNITS[self.measure]

    @property
    def value_name(self) -> str:
        return VALUE_NAMES[self.measure]

    @property
    def values_label(self) -> str:
        if self.measure == "share":
            return "weight of the texts on which attention does not point"
        return "largest effect × (1 - cosine) per instance"

    @property
    def bounds(self) -> tuple[float, float]:
        return (-math.inf, 1.0) if self.measure == "cosine" else (0.0, 1.0)

    @property
    def subject(self) -> str:
        measure = "" if self.measure == "cosine" else f".{self.measure}"
        sampled = ".as_sampled" if self.classes == "as_sampled" else ""
        return f"pointing.{self.on}{measure}{sampled}" + (
            f".shapley.{self.shapley_orders}" if self.shapley_orders else ""
        )

    @property
    def values_range(self) -> tuple[float, float] | None:
        return (0.0, 1.0) if self.on == "probabilities" else None

    @property
    def token_columns(self) -> tuple[str, ...]:
        return ("attention", self._effects("held"), self._effects("live"))

    def validate(self) -> None:
        self.require_choice("on", SUFFIXES)
        self.require_choice("measure", VALUE_NAMES)
        self.require_choice("classes", CLASSES)
        self.require_count("shapley_orders", 0, MOST_ORDERS)

    def needs(self) -> tuple[str, ...]:
        needs = ("pointing.held", "pointing.live")
        if not self.shapley_orders:
            return needs
        shapley = f"shapley.{self.shapley_orders}"
        return (*needs, f"pointing.{shapley}", "token_effect.held", f"token_effect.{shapley}")

    def _column(self, kind: str = "held") -> str:
        """Return the prefix of the columns for one kind of effect, such as "pointing.held.logits"."""
        return f"pointing.{kind}{SUFFIXES[self.on]}"

    def _effects(self, kind: str) -> str:
        """Return the name of the column with one kind of effect, such as "token_effect.held"."""
        return f"token_effect.{kind}{SUFFIXES[self.on]}"

    def values(self, measurements: Measurements) -> Floats:
        """Return what each instance contributes to the distance of the value from 1, without normalisation.

        With measure="share", the contribution is r_x if attention does not point at the influential tokens of the
        instance, and 0 if it does. Otherwise, it is the largest effect times the distance of the cosine from 1.
        """
        if self.measure == "share":
            above, possible = self._terms(measurements, self._column())
            return possible - above
        largest = measurements.scalar(f"{self._column()}.largest")
        distance = np.maximum(1 - measurements.scalar(f"{self._column()}.cosine"), 0.0)
        values: Floats = np.where(without_effect(largest), 0.0, largest * distance)
        return values

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        largest = measurements.scalar(f"{self._column()}.largest")
        return (
            single_token(measurements),
            no_real_attention(measurements),
            ("replacing tokens does not change the output", largest == 0),
            ("not measured", undefined),
        )

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        return self._value_of(measurements, self._column())

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        if self._value_of(measurements, self._column()) is None:
            return None
        above, possible = self._terms(measurements, self._column())
        rows = self._weighted(measurements, groups)
        if self.measure == "share":
            return weighted_share_interval(above, possible, rows, confidence=self.confidence)
        # The interval allows for texts that the sample may have missed. Their effects on a probability are at most 1.
        # Effects on logits have no limit, so the largest observed effect is used.
        largest = measurements.scalar(f"{self._column()}.largest")[groups.rows].max()
        unit = 1.0 if self.on == "probabilities" else float(largest)
        return rows.ratio_interval(
            above / unit,
            possible / unit,
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            bounds=self.bounds,
            extremes=(-1.0 if self.measure == "cosine" else 0.0, 1.0),
        )

    @property
    def not_linearised(self) -> str:
        return ""

    def linearised_values(self, measurements: Measurements) -> Floats:
        if self._value_of(measurements, self._column()) is None:
            undefined: Floats = filled(len(measurements), np.nan)
            return undefined
        above, possible = self._terms(measurements, self._column())
        return self._weighted(measurements, measurements.groups(~np.isnan(above))).linearised_ratio(above, possible)

    def value_of_part(self, measurements: Measurements, values: Floats, part: Mask) -> float | None:
        return self._value_of(measurements, self._column(), chosen=part)

    def typical(self, measurements: Measurements, values: Floats) -> Typical:
        """Choose texts with a large weight in the value, whose own values are near the median."""
        measure: Measure = "plain" if self.measure == "plain" else "cosine"
        gain, possible = self._terms(measurements, self._column(), measure)
        largest = measurements.scalar(f"{self._column()}.largest")
        with np.errstate(invalid="ignore", divide="ignore"):
            pointing = np.where(possible > ROUNDING * largest, gain / possible, np.nan)
        if np.isnan(pointing).all():
            return super().typical(measurements, values)
        much = possible >= np.nanmedian(np.where(np.isnan(pointing), np.nan, possible))
        chosen = np.where(much, pointing, np.nan)
        effects = "large effects" if measure == "plain" else "large and unequal effects"
        return Typical(
            f"texts whose tokens have {effects}, and on which attention points at the influential tokens about as well "
            "as on the median text of this kind",
            np.abs(chosen - np.nanmedian(chosen)),
        )

    def row_sequence(self, measurements: Measurements) -> RowSequence | str:
        above, below = self._terms(measurements, self._column())
        found = units_of_rows(measurements, ~np.isnan(above), self.classes, rows_per_class=1)
        if isinstance(found, str):
            return found
        share = self.measure == "share"
        sequence = limited_ratio_sequence(
            above if share else self.values(measurements),
            below,
            below if share else measurements.scalar(f"{self._column()}.largest"),
            found,
            confidence=self.confidence,
            high=math.inf if self.measure == "cosine" else 1.0,
            largest=1.0 if self.on == "probabilities" else None,
        )
        return RowSequence(sequence=sequence, rows=found, negated=not share)

    def no_interval(self, measurements: Measurements, value: float | None, groups: Groups) -> str:
        if value is None or len(groups) < 2:
            return ""
        texts = "tokens with an effect" if self.measure == "plain" else "effects that differ between tokens"
        return (
            why_no_interval(measurements, self._weighted(measurements, groups))
            or f"too few texts have {texts}, so the denominator of the value is not clearly above 0"
        )

    def note(self, measurements: Measurements, values: Floats) -> str:
        equal = not np.isnan(values).all() and self._value_of(measurements, self._column()) is None
        why = "in every text, all tokens have the same effect, so uniform weights point perfectly"
        if self.measure == "plain":
            why = "in no text whose cosine is defined does replacing a token change the output"
        return join_remarks([f"undefined: {why}" if equal else "", note_on_classes(measurements, self.classes)])

    def references(self, measurements: Measurements, values: Floats) -> Sequence[Reference]:
        count = int(np.count_nonzero(~np.isnan(values)))
        proportional = Reference(
            name="proportional", value=1.0, meaning="attention in proportion to the effects", n=count
        )
        if self.measure == "plain":
            column = self._column()
            uniform = self._ratio(measurements, column, *cosines(measurements, column, "uniform_cosine"))
            return Reference(name="uniform", value=uniform, meaning="uniform weights", n=count), proportional
        return Reference(name="uniform", value=0.0, meaning="uniform weights, by definition", n=count), proportional

    def in_words(self, evidence: Evidence) -> str:
        precision, by_chance, unweighted = (evidence.details.get(name) for name in (PRECISION, BY_CHANCE, UNWEIGHTED))
        if evidence.value is None or not isinstance(precision, float) or not isinstance(by_chance, float):
            return ""
        drawn = (
            f"On average, the effect of a token drawn according to attention is {percentage(precision)} of the effect "
            f"of the most influential token. For a token drawn at random, it is {percentage(by_chance)}."
        )
        if not isinstance(unweighted, float):
            return drawn
        if self.measure != "share":
            texts = f"{percentage(unweighted)} of the texts"
            few = f"If every text counts the same, attention points at the influential tokens on only {texts}."
            return drawn if unweighted >= 0.5 else f"{drawn} {few}"
        balanced = "every class counts the same, and " if self.classes == "balanced" else ""
        return (
            f"On {percentage(evidence.value)} of the texts, attention points at the influential tokens rather than at "
            f"others. In this share, {balanced}texts whose tokens have larger and more unequal effects count more. If "
            f"every text counts the same, it is {percentage(unweighted)}. {drawn}"
        )

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        rows = np.flatnonzero(~np.isnan(values))
        if not len(rows):
            return {}
        column = self._column()
        weights = self._weighted(measurements, measurements.groups(~np.isnan(values))).weights[rows]
        largest, cosine, uniform, drawn, drawn_uniform = (
            measurements.scalar(f"{column}.{name}")[rows]
            for name in ("largest", "cosine", "uniform_cosine", "drawn", "drawn_uniform")
        )
        effect = weights * largest
        total = effect.sum()
        if total == 0:
            return {}
        cosine, uniform = (np.where(largest == 0, 0.0, part) for part in (cosine, uniform))
        gain, possible = (part[rows] for part in gains(measurements, column))
        unequal = possible > ROUNDING * largest
        other = "logits" if self.on == "probabilities" else "probabilities"
        details: dict[str, Detail] = {
            "mean cosine, weighted by the largest effect": float(effect @ cosine / total),
            "the same with uniform weights": float(effect @ uniform / total),
            PRECISION: float(weights @ drawn / total),
            BY_CHANCE: float(weights @ drawn_uniform / total),
            QUARTER: self._value_of(measurements, column, "share"),
            "the same, at least half of the way": self._value_of(measurements, column, "share", POINTS_CLOSELY),
            UNWEIGHTED: float((pointed(gain, possible, POINTS)[unequal] > 0).mean()) if unequal.any() else None,
            "mean largest effect of a token": float(largest.mean()),
            "instances that carry half of the weight": half_of(effect),
            f"value on {other}": self._value_of(measurements, f"pointing.held{SUFFIXES[other]}"),
            "value with live attention": self._value_of(measurements, self._column("live")),
            **largest_weight(measurements, rows),
        }
        if self.measure != "cosine":
            details["cosine above uniform weights"] = self._value_of(measurements, column, "cosine")
        if self.shapley_orders:
            details |= self._against_shapley(measurements, rows)
        no_better = []
        for index, name in enumerate(() if measurements.no_decision else measurements.classes):
            part = measurements.predicted == index
            details[f"value where '{name}' is predicted"] = self._value_of(measurements, column, chosen=part)
            above_uniform = self._value_of(measurements, column, "cosine", chosen=part)
            if above_uniform is not None and above_uniform <= 0 and part[rows].sum() >= MINIMUM_DEFINED:
                no_better.append(f"'{name}'")
        return details | ({NO_BETTER: listed(no_better)} if no_better else {})

    def _against_shapley(self, measurements: Measurements, rows: Integers) -> dict[str, Detail]:
        """Return the value with Shapley values as effects, and the similarity of the Shapley values to the effects."""
        kind = f"shapley.{self.shapley_orders}"
        effects, shapley = (measurements.vector(self._effects(each)) for each in ("held", kind))
        return {
            "value with Shapley values": self._value_of(measurements, self._column(kind)),
            "cosine of the effects and Shapley values": cosine_of_effects(effects, shapley, rows),
        }

    def _weighted(self, measurements: Measurements, groups: Groups) -> WeightedRows:
        return weighted_rows(measurements, groups, self.classes)

    def _terms(
        self, measurements: Measurements, column: str, measure: Measure | None = None, limit: float = POINTS
    ) -> tuple[Floats, Floats]:
        """Return the (n,) terms of the two sums whose ratio is the value; NaN where they are undefined.

        Args:
            measurements: The measurements of n instances.
            column: The prefix of the columns.
            measure: The measure; None for that of the check.
            limit: The smallest c_x of a text that counts in the share.
        """
        measure = measure or self.measure
        if measure == "plain":
            return cosines(measurements, column)
        gain, possible = gains(measurements, column)
        return (gain if measure == "cosine" else pointed(gain, possible, limit)), possible

    def _value_of(
        self,
        measurements: Measurements,
        column: str,
        measure: Measure | None = None,
        limit: float = POINTS,
        chosen: Mask | None = None,
    ) -> float | None:
        """Return the value (see `Pointing`) for one kind of effect; None if it is undefined.

        Args:
            measurements: The measurements of n instances.
            column: The prefix of the columns.
            measure: The measure; None for that of the check.
            limit: The smallest c_x of a text that counts in the share.
            chosen: (n,) True at the instances to use, with equal weights; None for all instances, with the weights of
                the check.
        """
        above, possible = self._terms(measurements, column, measure, limit)
        return self._ratio(measurements, column, above, possible, chosen)

    def _ratio(
        self, measurements: Measurements, column: str, above: Floats, possible: Floats, chosen: Mask | None = None
    ) -> float | None:
        """Return the ratio of the two means of `_terms`; None if it is undefined."""
        defined = ~np.isnan(above) if chosen is None else ~np.isnan(above) & chosen
        groups = measurements.groups(defined)
        if not len(groups):
            return None
        rows = self._weighted(measurements, groups) if chosen is None else WeightedRows.equal(len(above), groups)
        mean_possible = float(rows.mean(possible))
        if mean_possible <= ROUNDING * float(rows.mean(measurements.scalar(f"{column}.largest"))):
            return None
        return float(rows.mean(above)) / mean_possible
