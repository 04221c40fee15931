"""Is attention used? The total-effect index of attention (Homma & Saltelli 1996; Jansen 1999)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.checks.base import registered
from attnaudit.checks.breakdowns import confidence
from attnaudit.checks.builtin.class_weights import (
    CLASSES,
    note_on_classes,
    units_of_rows,
    weighted_rows,
    why_no_interval,
)
from attnaudit.checks.builtin.measured_logits import centred_logits, stacked
from attnaudit.checks.builtin.predicted_classes import FrequentClasses, with_texts_of
from attnaudit.checks.builtin.where_replaced import WhereReplaced
from attnaudit.checks.evidence import (
    Detail,
    Evidence,
    Mask,
    Typical,
    join_remarks,
    mean_of,
    no_real_attention,
    number_defined,
    single_token,
    undefined_values,
)
from attnaudit.checks.sequential import RowSequence
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import percentage
from attnaudit.records import CheckRecord, Direction, Reference
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.centred_logits import CentredLogits
from attnaudit.statistics.cohens_kappa import CohensKappa
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.standardised_logits import OtherLogits, StandardisedLogits
from attnaudit.statistics.statistic_sequences import total_effect_sequence, unbet_units
from attnaudit.statistics.total_effect_index import TotalEffectIndex

#: The argument `on` -> the output, in words.
OUTPUTS = {
    "probabilities": "probabilities",
    "logits": "logits",
    "standardised": "standardised probabilities",
}
#: The share of the texts that count as those about which the model is least sure.
UNSURE = 0.25
#: The largest squared Euclidean distance between two vectors of probabilities.
LARGEST_CHANGE = 2.0
#: The name of the detail that contains the class whose index counts.
SMALLEST = "predicted class with the smallest index"


@registered
@dataclass(frozen=True, kw_only=True)
class TotalEffect(WhereReplaced):
    """Total-effect index of attention: how far rearranged weights move the output, relative to the output's variance.

    The index is S_T = mean of E ‖y(x, α) - y(x, α′)‖² / (2 V). Here, y(x, α) is the output for the text x with the
    attention α, and α′ is a random rearrangement of the weights that differs from α. V is the variance of y(x, α) over
    the texts, summed over the classes. If all weights of a text are equal, rearranging them changes nothing, and the
    change of the output is 0. If this holds for all texts, the index is undefined. Texts with a single token are left
    out of both the mean and the variance. The details contain Cohen's κ between the decisions under α and α′. The
    arguments `where` and `replacement` are described in `WhereReplaced`.

    Args:
        on: The output y. "probabilities": the class probabilities. A single text with extreme logits then has a bounded
            influence. "logits": the logits minus their mean over the classes. The index then depends neither on the
            scale of the logits nor on a bias per class. "standardised": the softmax of these logits after they are
            shifted and scaled, so that each class has mean 0 over the texts, and the classes have variance 1 on
            average. A single text then has a bounded influence, and the scale and the biases have none.
        classes: "balanced": every class has the same total weight. The classes are the labels if all rows have one, and
            otherwise the predicted classes. "as_sampled": every text has the same weight. "smallest": the index is
            computed for each predicted class, and the smallest one is the value. The mean of the numerator is taken
            over the texts of this class; V is the same for all classes, and every predicted class has the same weight
            in it. A class that is predicted for fewer than 10 sources is left out. The value is undefined if only one
            class remains. If the output is not a decision, the value is the index of all texts.
    """

    on: Literal["probabilities", "logits", "standardised"] = "probabilities"
    classes: Literal["balanced", "as_sampled", "smallest"] = "balanced"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "total effect"
    why = "If other weights on the same tokens give the same output, the model does not use its attention."
    unit = "total-effect index"
    bounds = (0.0, math.inf)
    values_label = "contribution to the total-effect index per instance"

    def validate(self) -> None:
        self.require_choice("on", OUTPUTS)
        self.require_choice("classes", (*CLASSES, "smallest"))
        super().validate()

    @property
    def of_smallest(self) -> bool:
        """Whether the value is the smallest index of a predicted class."""
        return self.classes == "smallest"

    @property
    def how_to_read(self) -> str:
        each = (
            "The index is computed for each predicted class, and the smallest one counts. " if self.of_smallest else ""
        )
        return (
            f"{each}At 0, the output is the same however the attention weights are shuffled over the tokens: the model "
            "does not use them. At 1, shuffling the weights of a text changes the output as much as replacing the text "
            "with another text of the data set does. Values above 1 are possible."
        )

    @property
    def when_failed(self) -> str:
        where = "In one of the predicted classes, attention" if self.of_smallest else "Attention"
        return f"{where} is barely used: shuffling it hardly changes the output"

    @property
    def statistic(self) -> str:
        return "smallest ratio of means" if self.of_smallest else "ratio of means"

    @property
    def subject(self) -> str:
        return f"total_effect.{self.on}{self.place}" + ("" if self.classes == "balanced" else f".{self.classes}")

    @property
    def title(self) -> str:
        in_every = " in every predicted class that counts" if self.of_smallest else ""
        return f"Attention is used{in_every}: its total effect on the {OUTPUTS[self.on]}{self.place_in_title}"

    @property
    def question(self) -> str:
        where = ", in the predicted class in which they change least," if self.of_smallest else ""
        return (
            f"How much do the {OUTPUTS[self.on]} change{where} when the attention weights are rearranged over the "
            f"tokens, {self.place_in_words}, compared with how much the {OUTPUTS[self.on]} differ between texts?"
        )

    @property
    def value_name(self) -> str:
        smallest = "smallest " if self.of_smallest else ""
        return f"{smallest}total-effect index of the {OUTPUTS[self.on]}"

    @property
    def column(self) -> str:
        """The name of the measure that the check uses."""
        return f"rearrangement{self.place}"

    def needs(self) -> tuple[str, ...]:
        return (self.column,)

    def values(self, measurements: Measurements) -> Floats:
        index = self._index(measurements, self.on)
        return undefined_values(measurements) if index is None else index.effects

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        return self._index_value(measurements, self.on)

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        index = self._index(measurements, self.on)
        if index is None:
            return None
        interval = index.interval_of_smallest if self.of_smallest else index.interval
        return interval(
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            largest_change=math.inf if self.on == "logits" else LARGEST_CHANGE,
        )

    def row_sequence(self, measurements: Measurements) -> RowSequence | str:
        if self.classes == "smallest":
            return "the predicted classes are known only after measuring"
        if self.on == "logits":
            return "the change of the logits has no upper bound"
        found = units_of_rows(measurements, self._counted(measurements), self.classes, rows_per_class=2)
        if isinstance(found, str):
            return found
        if self.on == "standardised":
            first = filled(len(measurements), False, np.bool_)
            first[found[: unbet_units(found)]] = True
            rows = self._weighted(measurements, measurements.groups(first))
            standardised = self._standardised(measurements, rows, found.ravel())
            if standardised is None:
                return f"the {OUTPUTS[self.on]} of the first rows do not vary"
            changes, outputs = standardised
        else:
            unchanged = self._counted(measurements) & ~self._rearranged(measurements)
            changes = np.where(unchanged, 0.0, measurements.scalar(f"{self.column}.{self.on}"))
            outputs = stacked(measurements.vector("probabilities"))
        sequence = total_effect_sequence(changes, outputs, found, confidence=self.confidence)
        return RowSequence(sequence=sequence, rows=found)

    @property
    def not_linearised(self) -> str:
        return "its value is the smallest index of a class, and this can be another class" if self.of_smallest else ""

    def linearised_values(self, measurements: Measurements) -> Floats:
        if self.not_linearised:
            return super().linearised_values(measurements)
        index = self._index(measurements, self.on)
        if index is None:
            return undefined_values(measurements)
        return index.linearised(self._through_scale(measurements, index) if self.on == "standardised" else None)

    def no_interval(self, measurements: Measurements, value: float | None, groups: Groups) -> str:
        if value is None or len(groups) < 2:
            return ""
        few = why_no_interval(measurements, self._weighted(measurements, groups))
        return few or (
            f"the variance of the {OUTPUTS[self.on]} is too uncertain, so an index relative to it has no interval"
        )

    def typical(self, measurements: Measurements, values: Floats) -> Typical:
        """Choose texts about which the model is unsure, because their outputs change most easily."""
        sure = confidence(measurements)
        if sure is None or np.isnan(values).all():
            return super().typical(measurements, values)
        unsure = sure <= np.nanquantile(np.where(np.isnan(values), np.nan, sure), UNSURE)
        chosen = np.where(unsure, values, np.nan)
        return Typical(
            f"texts with about the median value, among the {UNSURE:.0%} of texts about which the model is least sure",
            np.abs(chosen - np.nanmedian(chosen)),
        )

    def references(self, measurements: Measurements, values: Floats) -> Sequence[Reference]:
        meaning = "the effect of replacing the text with another text of the data set"
        return (Reference(name="another_text", value=1.0, meaning=meaning, n=number_defined(values)),)

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        of_classes = self._frequent(measurements).undefined_reasons() if self.of_smallest else ()
        return (
            no_real_attention(measurements),
            single_token(measurements),
            *of_classes,
            ("all attention weights are equal", self._equal(measurements)),
            (f"the {OUTPUTS[self.on]} do not vary", undefined),
        )

    def in_words(self, evidence: Evidence) -> str:
        if evidence.value is None:
            return ""
        smallest = evidence.details.get(SMALLEST)
        if smallest is not None:
            return (
                f"In the texts predicted as '{smallest}', shuffling the attention weights over the tokens changes the "
                f"{OUTPUTS[self.on]} {percentage(evidence.value)} as much as replacing the text with another text of "
                "the data set does (mean squared changes). In every other class that counts, it changes them at "
                "least as much."
            )
        return (
            f"Shuffling the attention weights over the tokens changes the {OUTPUTS[self.on]} "
            f"{percentage(evidence.value)} as much as replacing the text with another text of the data set does "
            "(mean squared changes)."
        )

    def judge(self, measurements: Measurements, *, gated: int = 1) -> CheckRecord:
        """Judge the check like `Check.judge`. If the output is not a decision, no text mentions predicted classes."""
        record = super().judge(measurements, gated=gated)
        if not (self.of_smallest and measurements.no_decision):
            return record
        return with_texts_of(record, replace(self, classes="as_sampled"), measurements)

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        index = self._index(measurements, self.on)
        deviation = None if index is None else math.sqrt(index.variance)
        others = {on: self._index_value(measurements, on) for on in OUTPUTS if on != self.on}
        of_smallest = self.of_smallest and not measurements.no_decision
        kind = "smallest total-effect index" if of_smallest else "total-effect index"
        of_classes: dict[str, Detail] = {}
        if of_smallest and index is not None:
            rows = index.rows.members[int(np.argmin(index.of_classes))]
            of_classes = {
                SMALLEST: measurements.classes[int(measurements.predicted[rows[0]])],
                "mean index of the predicted classes": index.value,
            }
        groups = measurements.groups(self._counted(measurements))
        decisions: dict[str, Detail] = {}
        if not measurements.no_decision:
            kappa = CohensKappa.of(measurements.predicted, self._decisions(measurements))
            generator = self.generator(measurements, "kappa")
            estimate = kappa.interval(groups, confidence=self.confidence, generator=generator)
            decisions = {
                "share of decisions changed": mean_of(kappa.disagreement(groups.rows)),
                "Cohen's κ of the decisions": kappa.value(groups),
                f"Cohen's κ, {100 * self.confidence:g}% interval": None
                if estimate is None
                else f"{estimate.low:.3f} to {estimate.high:.3f}",
            }
        return {
            **of_classes,
            **{f"{kind} of the {OUTPUTS[on]}": value for on, value in others.items()},
            f"standard deviation of the {OUTPUTS[self.on]}": deviation,
            **decisions,
        }

    def note(self, measurements: Measurements, values: Floats) -> str:
        counted = not self.of_smallest or self._counted(measurements).any()
        constant = counted and np.isnan(values).all() and self._rearranged(measurements).any()
        unvaried = (
            f"the {OUTPUTS[self.on]} are the same for every text, so an effect relative to their variance is undefined"
        )
        equal = 0 if np.isnan(values).all() else int(np.count_nonzero(self._equal(measurements)))
        unchanged = f"{equal} texts whose attention weights are all equal count as unchanged" if equal else ""
        on_classes = (
            self._frequent(measurements).note
            if self.classes == "smallest"
            else note_on_classes(measurements, self.classes)
        )
        return join_remarks([unvaried if constant else "", unchanged, on_classes])

    def _rearranged(self, measurements: Measurements) -> Mask:
        """Return an (n,) mask, True at instances whose weights can be rearranged."""
        mask: Mask = ~np.isnan(measurements.scalar(f"{self.column}.probabilities"))
        return mask

    def _equal(self, measurements: Measurements) -> Mask:
        """Return an (n,) mask, True at instances with several tokens whose weights are all equal."""
        (_, single), (_, nothing) = single_token(measurements), no_real_attention(measurements)
        mask: Mask = ~self._rearranged(measurements) & ~single & ~nothing
        return mask

    def _known(self, measurements: Measurements) -> Mask:
        """Return an (n,) mask, True at instances whose change is known: none if no weights can be rearranged."""
        rearranged = self._rearranged(measurements)
        mask: Mask = rearranged | (self._equal(measurements) & rearranged.any())
        return mask

    def _frequent(self, measurements: Measurements) -> FrequentClasses:
        """Return the predicted classes that have an index of their own."""
        return FrequentClasses.of(measurements, self._known(measurements))

    def _counted(self, measurements: Measurements) -> Mask:
        """Return an (n,) mask, True at instances that count in the index."""
        return self._frequent(measurements).rows if self.of_smallest else self._known(measurements)

    def _weighted(self, measurements: Measurements, groups: Groups) -> WeightedRows:
        """Return the weights of instances, by class."""
        if self.classes != "smallest":
            return weighted_rows(measurements, groups, self.classes)
        if measurements.no_decision:
            return WeightedRows.equal(len(measurements), groups)
        return WeightedRows.balanced(measurements.predicted, groups)

    def _index(self, measurements: Measurements, on: str) -> TotalEffectIndex | None:
        """Return the index of the output `on`; None if it is undefined."""
        counted = self._counted(measurements)
        rows = self._weighted(measurements, measurements.groups(counted))
        if on != "standardised":
            unchanged = counted & ~self._rearranged(measurements)
            changes = np.where(unchanged, 0.0, measurements.scalar(f"{self.column}.{on}"))
            changes = np.where(counted, changes, np.nan)
            if on == "probabilities":
                return TotalEffectIndex.of(changes, stacked(measurements.vector("probabilities")), rows)
            centred = centred_logits(measurements, rows)
            return (
                None if centred is None else TotalEffectIndex.of(changes, centred.outputs(rows), rows, centred.rounding)
            )
        standardised = self._standardised(measurements, rows, np.flatnonzero(counted))
        return None if standardised is None else TotalEffectIndex.of(*standardised, rows)

    def _index_value(self, measurements: Measurements, on: str) -> float | None:
        """Return the value of the index of the output `on`; None if it is undefined."""
        index = self._index(measurements, on)
        if index is None:
            return None
        return index.smallest if self.of_smallest else index.value

    def _standardised(
        self, measurements: Measurements, rows: WeightedRows, chosen: Integers
    ) -> tuple[Floats, Floats] | None:
        """Return the changes of the chosen instances, NaN for all others, and the standardised probabilities of all.

        The mean and the scale are estimated from the logits of `rows`. Return None if these logits do not vary.
        """
        centred = centred_logits(measurements, rows)
        standard = None if centred is None else StandardisedLogits.of(centred.values, rows, centred.rounding)
        if centred is None or standard is None:
            return None
        mask = filled(len(measurements), False, np.bool_)
        mask[chosen] = True
        changes = standard.squared_changes(centred.values, self._rearranged_logits(measurements, mask, centred))
        changes[mask & ~self._rearranged(measurements)] = 0.0
        return changes, standard.probabilities(centred.values)

    def _rearranged_logits(self, measurements: Measurements, chosen: Mask, centred: CentredLogits) -> OtherLogits:
        """Return the logits of the chosen instances, one per class, under their rearrangements."""
        return OtherLogits(
            measurements.vector(f"{self.column}.centred_logits"),
            chosen & self._rearranged(measurements),
            centred.values.shape[1],
            centred,
        )

    def _through_scale(self, measurements: Measurements, index: TotalEffectIndex) -> Floats:
        """Return (n,) influences of the instances on the index through the estimated mean and scale of the logits."""
        centred = centred_logits(measurements, index.rows)
        assert centred is not None  # the index was computed with it
        logits = centred.values
        standard = StandardisedLogits.of(logits, index.rows, centred.rounding)
        assert standard is not None
        others = self._rearranged_logits(measurements, self._counted(measurements), centred)
        of_changes = standard.derivatives_of_changes(logits, others)
        outputs = standard.probabilities(logits)
        of_deviations = standard.derivatives_of_deviation(logits, outputs - index.rows.mean(outputs))
        derivative = index.derivative(np.nan_to_num(of_changes, nan=0.0), of_deviations)
        through: Floats = standard.influences(logits) @ derivative
        return through

    def _decisions(self, measurements: Measurements) -> Floats:
        """Return (n, C) shares of the rearrangements under which each class is predicted."""
        shares = stacked(measurements.vector(f"{self.column}.decisions"))
        own = measurements.predicted[:, None] == np.arange(len(measurements.classes))
        decisions: Floats = np.where(self._equal(measurements)[:, None], own, shares)
        return decisions
