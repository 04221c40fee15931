"""The base class of the checks that replace the attention weights and compare the output.

If the output does not depend on which tokens are attended to, attention cannot explain it (Jain & Wallace 2019, §4.2.1;
Tutek & Šnajder 2020, §3.2).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.builtin.where_replaced import WhereReplaced
from attnaudit.checks.evidence import (
    Detail,
    Evidence,
    Mask,
    count_reasons,
    mean_of,
    no_real_attention,
    number_or_none,
    predictions_of_model,
)
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import number, percentage
from attnaudit.records import Chart, Direction, Reference, Series
from attnaudit.statistics.f1_drop import F1Drop
from attnaudit.statistics.groups import Groups

#: The number of bins into which the chart divides the largest attention weight.
BINS = 4
#: If the TVD between two outputs is below this limit, it counts as a rounding error.
ROUNDING = 1e-6
HOW_TO_READ_TVD = (
    "Total variation distance runs from 0, where replacing the weights does not change the output, to 1. Near 0, it "
    "makes little difference to the output which tokens are attended to."
)
CLASS_OF_F1 = (
    "With two classes, F1 is that of the second class of the model, so the value depends on the order of the classes."
)
HOW_TO_READ_F1 = (
    "The drop is the F1 score with the model's own attention minus the F1 score with replaced weights. Near 0, the "
    "predictions are as good with other weights; below 0, they are better. "
    f"{CLASS_OF_F1}"
)


@dataclass(frozen=True, kw_only=True)
class Fragility(WhereReplaced):
    """The base class of `PermutationFragility` and `UniformFragility`.

    Args:
        measure: "tvd" for the total variation distance of the output, per instance; "f1_drop" for the drop in F1 on the
            labelled instances.
    """

    measure: Literal["tvd", "f1_drop"] = "tvd"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)
    #: The name of the measure that the check uses, without `where` and `replacement`. The id of the check begins with
    #: this name.
    measured_as: ClassVar[str]
    #: What replaces the weights, in words.
    replaced_by: ClassVar[str]
    #: The replacement of the weights, as the subject of a sentence.
    replacing: ClassVar[str]
    #: The name of the value for each `measure`.
    tvd_value_name: ClassVar[str] = "mean TVD"
    f1_value_name: ClassVar[str] = "drop in F1"

    family = "fragility"
    why = "If other weights give the same output, the weights cannot be the reason for it."
    values_label = "TVD per instance"
    values_range = None

    def validate(self) -> None:
        self.require_choice("measure", ("tvd", "f1_drop"))
        super().validate()

    @property
    def column(self) -> str:
        """The name of the measure that the check uses."""
        return f"{self.measured_as}{self.place}"

    @property
    def subject(self) -> str:
        return f"{self.measured_as}_fragility.{self.measure}{self.place}"

    @property
    def title(self) -> str:
        changed = "output" if self.measure == "tvd" else "F1"
        return f"The {changed} depends on attention: {self.replaced_by}{self.place_in_title}"

    @property
    def question(self) -> str:
        return (
            f"Does the {'output' if self.measure == 'tvd' else 'quality of the predictions'} change when the attention "
            f"weights are replaced by {self.replaced_by}, {self.place_in_words}?"
        )

    @property
    def how_to_read(self) -> str:
        return HOW_TO_READ_TVD if self.measure == "tvd" else HOW_TO_READ_F1

    @property
    def statistic(self) -> str:
        return "mean" if self.measure == "tvd" else "difference"

    @property
    def unit(self) -> str:
        return "total variation distance" if self.measure == "tvd" else "F1"

    @property
    def value_name(self) -> str:
        return self.tvd_value_name if self.measure == "tvd" else self.f1_value_name

    @property
    def bounds(self) -> tuple[float, float]:
        return (0.0, 1.0) if self.measure == "tvd" else (-1.0, 1.0)

    @property
    def otherwise_undefined(self) -> str:
        """Why an instance has no value, if no more specific reason applies."""
        return "not measured"

    def needs(self) -> tuple[str, ...]:
        return (self.column,)

    @abstractmethod
    def replaced_predictions(self, measurements: Measurements) -> Floats:
        """Return the (n, R) class indices that are predicted for R replacements of the weights; NaN if undefined."""

    def values(self, measurements: Measurements) -> Floats:
        tvd = measurements.scalar(f"{self.column}.tvd")
        values: Floats = np.where(self._not_replaceable(measurements), np.nan, tvd)
        return values

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (
            ("a single token", self._not_replaceable(measurements)),
            no_real_attention(measurements),
            (self.otherwise_undefined, undefined),
        )

    def in_words(self, evidence: Evidence) -> str:
        if evidence.value is None:
            return ""
        if self.measure == "f1_drop":
            change = f"{'lowers' if evidence.value >= 0 else 'raises'} F1 by {number(abs(evidence.value))}"
            return f"{self.replacing} {change}."
        if evidence.no_decision:
            return f"{self.replacing} changes the probability of the target by {number(evidence.value)} on average."
        return f"{self.replacing} moves {percentage(evidence.value)} of the predicted probability to other classes."

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        f1_drop, groups = self._f1_drop(measurements)
        f1, replaced_f1, drop = f1_drop.value(groups)
        return {
            "mean TVD": mean_of(measurements.scalar(f"{self.column}.tvd")),
            "share of decisions changed": mean_of(self._changed(measurements)),
            **class_of_f1(measurements),
            "F1": number_or_none(f1),
            f"F1 under {self.replaced_by}": number_or_none(replaced_f1),
            "drop in F1": number_or_none(drop),
            "instances labelled": int((measurements.labels >= 0).sum()),
        }

    def charts(self, measurements: Measurements, values: Floats) -> Sequence[Chart]:
        return (_tvd_by_largest_weight(measurements, measurements.scalar(f"{self.column}.tvd")),)

    def evidence(self, measurements: Measurements) -> Evidence:
        return super().evidence(measurements) if self.measure == "tvd" else self._f1_evidence(measurements)

    def _f1_evidence(self, measurements: Measurements) -> Evidence:
        """Return the evidence for the drop in F1, with the shares of changed decisions as values per instance."""
        changed, labelled = self._changed(measurements), measurements.labels >= 0
        known = ~np.isnan(changed)
        f1_drop, groups = self._f1_drop(measurements)
        f1, _, drop = f1_drop.value(groups)
        no_attention, unattended = no_real_attention(measurements)
        return Evidence(
            value=number_or_none(drop),
            interval=f1_drop.interval(groups, confidence=self.confidence) if len(groups) else None,
            defined=labelled & known,
            undefined=count_reasons(
                (measurements.no_decision or "no label", ~labelled),
                (no_attention, unattended & ~known),
                (self.otherwise_undefined, ~known),
            ),
            values=changed,
            values_label=f"share of {self.replaced_by} that change the decision",
            values_range=(0.0, 1.0),
            rankable=measurements.lengths > 1,
            references=(
                Reference(
                    name="original",
                    value=number_or_none(f1),
                    meaning="F1 of the unchanged model",
                    n=int(labelled.sum()),
                ),
            ),
            details=self.details(measurements, changed),
            charts=tuple(self.charts(measurements, changed)),
            note=self._note_on_f1(measurements),
        )

    @staticmethod
    def _note_on_f1(measurements: Measurements) -> str:
        """Return why F1 is undefined for all instances; "" if it is not."""
        if measurements.no_decision:
            return f"F1 is undefined, because {measurements.no_decision}"
        if (measurements.labels >= 0).any():
            return ""
        return "F1 cannot be computed without labels: add a label column, or use measure='tvd'"

    def _not_replaceable(self, measurements: Measurements) -> Mask:
        """Return the (n,) mask of the instances that have a single token and whose output does not change."""
        mask: Mask = (measurements.lengths < 2) & (measurements.scalar(f"{self.column}.tvd") < ROUNDING)
        return mask

    def _changed(self, measurements: Measurements) -> Floats:
        """Return the (n,) shares of the replacements that change the decision; NaN where undefined.

        All are NaN if the output is not a decision.
        """
        if measurements.no_decision:
            undefined: Floats = filled(len(measurements), np.nan)
            return undefined
        replaced = self.replaced_predictions(measurements)
        known = np.logical_not(np.isnan(replaced).any(axis=1))
        changed: Floats = np.where(known, (replaced != measurements.predicted[:, None]).mean(1), np.nan)
        return changed

    def _f1_drop(self, measurements: Measurements) -> tuple[F1Drop, Groups]:
        """Return the drop in F1, and the labelled instances that it is computed from, grouped by source."""
        own, replaced = predictions_of_model(measurements), self.replaced_predictions(measurements)
        usable = (measurements.labels >= 0) & ~np.isnan(replaced).any(axis=1)
        f1_drop = F1Drop.of(measurements.labels, own, replaced, classes=len(measurements.classes))
        return f1_drop, measurements.groups(usable)


def class_of_f1(measurements: Measurements) -> dict[str, Detail]:
    """Return the name of the class whose F1 is computed, as a detail. With more than two classes, return no detail."""
    if len(measurements.classes) != 2 or measurements.no_decision:
        return {}
    return {"class of the F1": measurements.classes[1]}


def _tvd_by_largest_weight(measurements: Measurements, tvd: Floats) -> Chart:
    """Chart the median TVD by predicted class, against the largest attention weight in several bins of equal width.

    This is the figure of Jain & Wallace 2019 (§4.2.1) with medians instead of violins.
    """
    peak = measurements.scalar("attention.max")
    bins = np.clip((np.nan_to_num(peak) * BINS).astype(int), 0, BINS - 1)
    series = []
    for index, name in enumerate(measurements.classes):
        if measurements.no_decision and not (measurements.predicted == index).any():
            continue
        chosen = (measurements.predicted == index) & ~np.isnan(tvd) & ~np.isnan(peak)
        by_bin = [tvd[chosen & (bins == b)] for b in range(BINS)]
        series.append(
            Series(
                name="all texts" if measurements.no_decision else f"predicted {name}",
                x=[(b + 0.5) / BINS for b in range(BINS)],
                y=[float(np.median(values)) if len(values) else None for values in by_bin],
            )
        )
    return Chart(
        title="Median TVD by how peaked attention is",
        x_label="largest attention weight (centres of four equal bins)",
        y_label="median TVD",
        kind="bar",
        series=series,
    )
