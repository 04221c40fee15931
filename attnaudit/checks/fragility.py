"""What both fragility checks share: other weights are put in place, hidden states fixed, and the output compared.

A model whose output does not depend on which tokens are attended to cannot be explained by them (T §3.2; JW §4.2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.checks.base import Check, Description
from attnaudit.checks.evidence import Detail, Evidence, by_predicted_class, mean_of, not_shown, reasons
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Chart, Reference, Series
from attnaudit.statistics.f1_drop import F1Drop
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval

BINS = 4
#: TVD of outputs that are alike but for rounding.
SAME = 1e-6
PLACES = {
    "reading": "hidden states fixed",
    "layer": "in all rows of the layer",
    "everywhere": "in all rows of every layer",
}
TVD_READING = (
    "Total variation distance runs from 0, where replacing the weights does not change the output, to 1. Near 0, the "
    "model does not use which tokens are attended."
)
F1_READING = (
    "The drop is the F1 score with the model's own attention minus the F1 score with replaced weights. Near 0, the "
    "predictions are as good with other weights; below 0, they are better."
)
REPLACED = {"live": ", live (each layer's own weights)", "frozen": ", frozen (the unchanged model's weights)"}


@dataclass(frozen=True, kw_only=True)
class Fragility(Check):
    """Base of the two checks. measure: "tvd" (total variation of the output, per instance) or "f1_drop" (labels).

    where: which weights are replaced. "reading" (the default): the rows that are shown, all states that they are
    applied to being fixed. "layer": all rows of that layer. "everywhere": all rows of every layer. replacement: there,
    what is permuted in a deeper layer: the weights that come out of the changed states below it ("live"), or those of
    the unchanged model ("frozen").
    """

    measure: Literal["tvd", "f1_drop"] = "tvd"
    where: Literal["reading", "layer", "everywhere"] = "reading"
    replacement: Literal["live", "frozen"] | None = None

    replaced_by: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    tvd_words: ClassVar[str] = "mean TVD"
    f1_words: ClassVar[str] = "drop in F1"

    def validate(self) -> None:
        self.choose("measure", ("tvd", "f1_drop"))
        self.choose("where", PLACES)
        if self.where == "everywhere":
            object.__setattr__(self, "replacement", "live" if self.replacement is None else self.replacement)
            self.choose("replacement", ("live", "frozen"))
        elif self.replacement is not None:
            raise CheckError(
                f"{self._name}: replacement={self.replacement!r} tells live from frozen weights in deeper layers and "
                "goes with where='everywhere': leave it out."
            )

    @property
    def subject(self) -> str:
        return f"{self.kind}_fragility.{self.measure}{self.column.removeprefix(self.kind)}"

    @property
    def column(self) -> str:
        """The measure behind it."""
        words = {"reading": "", "layer": ".layer", "everywhere": f".everywhere.{self.replacement}"}
        return f"{self.kind}{words[self.where]}"

    def needs(self) -> tuple[str, ...]:
        return (self.column,)

    def replaced_predictions(self, measurements: Measurements) -> Floats:
        """(n, R) class indices under other weights, NaN where undefined."""
        raise NotImplementedError

    @property
    def description(self) -> Description:
        tvd = self.measure == "tvd"
        return Description(
            family="fragility",
            title=f"The {'output' if tvd else 'F1'} depends on attention: {self.replaced_by}",
            question=f"Does the {'output' if tvd else 'quality of the predictions'} change when the attention weights "
            f"are replaced by {self.replaced_by}, {PLACES[self.where]}{REPLACED.get(self.replacement or '', '')}?",
            why="If other weights give the same output, the weights cannot be the reason for it.",
            how_to_read=TVD_READING if tvd else F1_READING,
            statistic="mean" if tvd else "difference",
            unit="total variation distance" if tvd else "F1",
            value_name=self.tvd_words if tvd else self.f1_words,
            low=0.0 if tvd else -1.0,
            high=1.0,
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        tvd = measurements.scalar(f"{self.column}.tvd")
        replaced = self.replaced_predictions(measurements)
        known: NDArray[np.bool_] = np.logical_not(np.isnan(replaced).any(axis=1))
        changed = np.where(known, (replaced != measurements.predicted[:, None]).mean(1), np.nan)
        labelled = measurements.labels >= 0
        groups = Groups.of(measurements.instances, labelled & known)
        f1, f1_replaced, drop = math.nan, math.nan, math.nan
        own = measurements.predicted[:, None].astype(np.float64)
        by_f1 = F1Drop.of(measurements.labels, own, replaced, classes=len(measurements.classes))
        if len(groups):
            f1, f1_replaced, drop = by_f1.value(groups)
        generator = self.generator(measurements, "interval")
        details: dict[str, Detail] = {
            "mean TVD": mean_of(tvd),
            "share of decisions changed": mean_of(changed),
            "F1": _or_none(f1),
            f"F1 under {self.replaced_by}": _or_none(f1_replaced),
            "drop in F1": _or_none(drop),
            "instances labelled": int(labelled.sum()),
        }
        charts = (_by_attention(measurements, tvd),)
        if self.measure == "tvd":
            single = (measurements.lengths < 2) & (tvd < SAME)  # there is no other weight to put in place
            tvd = np.where(single, np.nan, tvd)
            missing = np.isnan(tvd)
            return Evidence(
                value=mean_of(tvd),
                interval=mean_interval(
                    tvd,
                    Groups.of(measurements.instances, ~missing),
                    confidence=self.confidence,
                    generator=generator,
                    bounds=(0.0, 1.0),
                ),
                defined=~missing,
                undefined=reasons(
                    ("a single token", single), not_shown(measurements, missing), ("not measured", missing)
                ),
                values=tvd,
                values_label="TVD per instance",
                details={**details, **by_predicted_class(measurements, tvd)},
                charts=charts,
            )
        unlabelled = int((~labelled).sum())
        return Evidence(
            value=_or_none(drop),
            interval=by_f1.interval(groups, confidence=self.confidence) if len(groups) else None,
            defined=labelled & known,
            undefined=reasons(("no label", ~labelled), not_shown(measurements, ~known), ("not measured", ~known)),
            values=changed,
            values_label=f"share of {self.replaced_by} that change the decision",
            values_range=(0.0, 1.0),
            ranked=measurements.lengths > 1,
            references=(
                Reference(
                    name="original", value=_or_none(f1), meaning="F1 of the unchanged model", n=int(labelled.sum())
                ),
            ),
            details=details,
            charts=charts,
            note="F1 needs labels: add a label column, or use measure='tvd'" if unlabelled == len(labelled) else "",
        )


def _or_none(x: float) -> float | None:
    return None if math.isnan(x) else x


def _by_attention(measurements: Measurements, tvd: Floats) -> Chart:
    """JW's violins in figures: the median TVD by largest attention weight in 4 equal bins, by predicted class."""
    peak = measurements.scalar("attention.max")
    bins = np.clip((np.nan_to_num(peak) * BINS).astype(int), 0, BINS - 1)
    series = []
    for index, name in enumerate(measurements.classes):
        chosen = (measurements.predicted == index) & ~np.isnan(tvd) & ~np.isnan(peak)
        inside = [tvd[chosen & (bins == b)] for b in range(BINS)]
        series.append(
            Series(
                name=f"predicted {name}",
                x=[(b + 0.5) / BINS for b in range(BINS)],
                y=[float(np.median(part)) if len(part) else None for part in inside],
            )
        )
    return Chart(
        title="Median TVD by how peaked attention is",
        x_label="largest attention weight (middle of four equal bins)",
        y_label="median TVD",
        kind="bar",
        series=series,
    )
