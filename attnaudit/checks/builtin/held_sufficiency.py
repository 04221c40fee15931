"""Are the attended tokens enough for the output, while attention is held fixed?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.builtin.class_weights import (
    CLASSES,
    Classes,
    note_on_classes,
    units_of_rows,
    weighted_rows,
    why_no_interval,
)
from attnaudit.checks.builtin.measured_logits import centred_logits, stacked
from attnaudit.checks.evidence import (
    Detail,
    Evidence,
    Mask,
    Typical,
    join_remarks,
    mean_of,
    no_real_attention,
    single_token,
    undefined_values,
)
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.checks.sequential import NotYet, RowSequence
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import percentage
from attnaudit.records import Direction, Reference
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.kept_differences import KeptDifferences
from attnaudit.statistics.statistic_sequences import KEPT_ROWS, lost_share_sequence, unbet_units

#: Names of details.
NUMBER = "mean share of the tokens that are attended"
NOTHING_MASKED = "share of the texts in which all tokens are attended, so that none is masked"
FACTOR = "factor a (below 1 if the differences grow without the other tokens)"


@registered
@dataclass(frozen=True, kw_only=True)
class HeldSufficiency(PerInstanceCheck):
    """How much of the differences between outputs stays if only the attended tokens are kept and attention is held.

    The attended tokens are the fewest tokens that have at least 80% of the attention. All other tokens are replaced by
    the mask token or the unknown token. The attention that is shown as the explanation keeps its weights. Let u(x) be
    the logits of the text x minus their mean over the classes, and minus the mean of this vector over the texts. Let
    v(x) be the same vector if only the attended tokens of each text are kept. The value is

        1 - min_a Σ_x ‖u(x) - a v(x)‖ / Σ_x ‖u(x)‖        with 0 ≤ a ≤ 1

    At 1, the outputs differ between texts as before: the attended tokens decide. If the outputs of all texts become the
    same, the value is 0: attention is on tokens that tell no two texts apart, such as a separator that only collects
    what other tokens contribute. If each token moves the output in proportion to its attention, the value is about 0.8.
    Without the other tokens, the differences may also become larger, for example because of a layer norm. The factor a
    makes up for this: if they keep their directions and proportions, nothing is lost. The value depends neither on the
    scale of the logits nor on a bias per class.

    Args:
        classes: "balanced": every class has the same total weight. The classes are the labels if all rows have one, and
            otherwise the predicted classes. "as_sampled": every text has the same weight.
    """

    classes: Classes = "balanced"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)
    lists_classes: ClassVar[bool] = False
    needs_all_units: ClassVar[str] = "the attended tokens are not known if only a sample of the units is measured"

    family = "sufficiency"
    title = "The attended tokens are enough while attention is held fixed"
    question = "If only the attended tokens are kept and attention is held fixed, do the outputs differ as before?"
    when_failed = "The attended tokens alone do not tell the texts apart"
    why = (
        "A token may affect the output only through what an earlier layer has copied into its state, or it may shift "
        "the output of every text alike. Attention on such a token marks a word that did not decide."
    )
    how_to_read = (
        "At 1, the outputs differ between texts as before if only the tokens with 80% of the attention are kept. At 0, "
        "these tokens tell nothing about how the outputs differ."
    )
    unit = "share of the differences"
    value_name = "share of the differences between outputs that the attended tokens keep"
    values_label = "what the attended tokens alone lose, per instance"
    values_range = None
    token_columns = ("attention", "attended_tokens.kept")
    statistic = "ratio of means"
    bounds = (0.0, 1.0)
    worst = "highest"

    @property
    def subject(self) -> str:
        return "held_sufficiency" + (".as_sampled" if self.classes == "as_sampled" else "")

    def validate(self) -> None:
        self.require_choice("classes", CLASSES)

    def needs(self) -> tuple[str, ...]:
        return ("attended_tokens",)

    def values(self, measurements: Measurements) -> Floats:
        """Return the distances ‖u(x) - a v(x)‖."""
        kept = self._kept(measurements)
        return undefined_values(measurements) if kept is None else kept.lost

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        unmasked = self._nothing_masked(measurements) & (not self._any_masked(measurements))
        nothing = ("all tokens are attended, so that none is masked", unmasked)
        constant = ("the outputs do not vary", undefined)
        return (single_token(measurements), no_real_attention(measurements), nothing, constant)

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        kept = self._kept(measurements)
        return None if kept is None else kept.value

    def value_of_part(self, measurements: Measurements, values: Floats, part: Mask) -> float | None:
        """Return the value of some instances, with the means, the factor and the weights of all instances.

        It is 0 if these instances lose as much as possible, or more.
        """
        kept, chosen = self._kept(measurements), part & ~np.isnan(values)
        if kept is None or not chosen.any():
            return None
        weights = kept.rows.weights[chosen]
        total = float((weights * kept.sizes[chosen]).sum())
        return max(0.0, 1.0 - float((weights * kept.lost[chosen]).sum()) / total) if total > 0 else None

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        kept = self._kept(measurements)
        if kept is None:
            return None
        above, below = kept.terms
        unit = float(kept.sizes[groups.rows].max())  # texts that the sample missed may keep nothing
        return kept.rows.ratio_interval(
            above / unit,
            below / unit,
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            bounds=self.bounds,
            extremes=(-1.0, 1.0),
        )

    def row_sequence(self, measurements: Measurements) -> RowSequence | str:
        """Return the sequence of 1 minus the value, with means, a factor and a longest output of the first 100 rows.

        The value of the sequence is that of outputs which are at most as long as this one. It differs from the value of
        the check if longer outputs keep another share. The means and the factor need not be exact, and make no verdict
        wrong: each later row is compared with other later rows. A gate passes only if the value is high enough with the
        factor of the first rows, and fails only if it is too low even with another factor for each unit of rows.
        """
        if not self._any_masked(measurements):
            return NotYet("all tokens of every text are attended")
        classes = len(measurements.classes) if self.classes == "balanced" and not measurements.no_decision else 1
        rows_per_class = max(2, math.ceil(KEPT_ROWS / classes))
        found = units_of_rows(measurements, self._measured(measurements), self.classes, rows_per_class=rows_per_class)
        if isinstance(found, str):
            return found
        first = filled(len(measurements), False, np.bool_)
        first[found[: unbet_units(found)]] = True
        kept = self._kept_by(measurements, measurements.groups(first))
        if kept is None:
            return "the outputs of the first rows do not vary"
        possible = kept.open_classes
        if possible is not None and (possible[found] != possible[found[0, 0, 0]]).any():
            return "not all rows have the same possible answers"
        sequence = lost_share_sequence(kept.outputs, kept.kept, kept.factor, found, confidence=self.confidence)
        return RowSequence(sequence=sequence, rows=found, negated=True)

    @property
    def not_linearised(self) -> str:
        return ""

    def linearised_values(self, measurements: Measurements) -> Floats:
        kept = self._kept(measurements)
        return undefined_values(measurements) if kept is None else kept.rows.linearised_ratio(*kept.terms)

    def no_interval(self, measurements: Measurements, value: float | None, groups: Groups) -> str:
        if value is None or len(groups) < 2:
            return ""
        return (
            why_no_interval(measurements, weighted_rows(measurements, groups, self.classes))
            or "too few texts have an output that differs from the mean output"
        )

    def note(self, measurements: Measurements, values: Floats) -> str:
        why = ""
        if self._measured(measurements).any() and np.isnan(values).all():
            masked = self._any_masked(measurements)
            reason = "the output is the same for every text" if masked else "all tokens of every text are attended"
            why = f"undefined: {reason}"
        return join_remarks([why, note_on_classes(measurements, self.classes)])

    def references(self, measurements: Measurements, values: Floats) -> Sequence[Reference]:
        count = int(np.count_nonzero(~np.isnan(values)))
        meaning = "effects in proportion to attention that add up"
        return (Reference(name="proportional", value=0.8, meaning=meaning, n=count),)

    def typical(self, measurements: Measurements, values: Floats) -> Typical:
        kept = self._kept(measurements)
        if kept is None:
            return super().typical(measurements, values)
        with np.errstate(invalid="ignore", divide="ignore"):
            lost = np.where(kept.sizes > 0, kept.lost / kept.sizes, np.nan)
        reason = "texts whose attended tokens lose about as large a share as those of the median text"
        return Typical(reason, np.abs(lost - np.nanmedian(lost)))

    def in_words(self, evidence: Evidence) -> str:
        number = evidence.details.get(NUMBER)
        if evidence.value is None or not isinstance(number, float):
            return ""
        nothing = evidence.details.get(NOTHING_MASKED)
        unmasked = (
            f" In {percentage(nothing)} of the texts, these are all tokens, so none is masked."
            if isinstance(nothing, float) and nothing > 0
            else ""
        )
        return (
            f"On average, {percentage(number)} of the tokens have 80% of the attention. If all others are masked, "
            f"{percentage(evidence.value)} of the differences between the outputs of the texts stay.{unmasked}"
        )

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        kept = self._kept(measurements)
        return {
            NUMBER: mean_of(measurements.scalar("attended_tokens.number") / measurements.lengths),
            NOTHING_MASKED: mean_of(np.where(self._measured(measurements), self._nothing_masked(measurements), np.nan)),
            FACTOR: None if kept is None else kept.factor,
        }

    def _measured(self, measurements: Measurements) -> Mask:
        """Return an (n,) mask, True at instances with several tokens."""
        mask: Mask = ~np.isnan(measurements.scalar("attended_tokens.number"))
        return mask

    def _nothing_masked(self, measurements: Measurements) -> Mask:
        """Return an (n,) mask, True at instances with several tokens, all of which are attended."""
        mask: Mask = measurements.scalar("attended_tokens.number") >= measurements.lengths
        return mask

    def _any_masked(self, measurements: Measurements) -> bool:
        """Return whether a token was masked in any text. Otherwise, nothing was measured."""
        return bool((self._measured(measurements) & ~self._nothing_masked(measurements)).any())

    def _kept(self, measurements: Measurements) -> KeptDifferences | None:
        """Return the outputs and what is lost of them; None if the outputs do not vary, or if no token was masked."""
        if not self._any_masked(measurements):
            return None
        return self._kept_by(measurements, measurements.groups(self._measured(measurements)))

    def _kept_by(self, measurements: Measurements, groups: Groups) -> KeptDifferences | None:
        """Return the outputs and what is lost of them, with the means and the factor of some of the instances.

        Return None if the outputs of these instances do not vary.
        """
        rows = weighted_rows(measurements, groups, self.classes)
        centred = centred_logits(measurements, rows)
        changes = stacked(measurements.vector("attended_tokens.change"))
        return None if centred is None else KeptDifferences.of(centred, changes, rows)
