"""Is one hidden state alone already sure of the prediction? (Tutek & Šnajder 2020, §5)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnaudit.checks.base import Check, Description, registered
from attnaudit.checks.evidence import Evidence, by_predicted_class, mean_of, reasons, reference, with_note
from attnaudit.engine.measurements import Measurements
from attnaudit.records import CheckRecord, Direction, Reference
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval


@registered
@dataclass(frozen=True, kw_only=True)
class TokenProbability(Check):
    """Mean over instances of the mean over tokens of the predicted class's probability from that token's state alone.

    among: "correct" counts instances that are predicted correctly (T), which takes labels; n is their number. "all"
    counts every instance. Low is good at equal accuracy, so the threshold is at_most. Needs token_probability; columns
    token_probability and token_probability.whole (from the whole input).
    """

    among: Literal["correct", "all"] = "correct"

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    def validate(self) -> None:
        self.choose("among", ("correct", "all"))

    @property
    def subject(self) -> str:
        return "token_probability" + (".all" if self.among == "all" else "")

    def needs(self) -> tuple[str, ...]:
        return ("token_probability",)

    @property
    def description(self) -> Description:
        return Description(
            family="states",
            title="One token's state alone does not decide",
            question="Is the predicted class less probable from one token's hidden state alone than from all of them?",
            why="Where every state by itself gives the prediction, each carries what the whole text says, and the "
            "weight on it says nothing about the token at its place.",
            how_to_read="Near the probability from the whole text, each hidden state alone already gives the "
            "prediction. Near one over the number of classes, one state alone says nothing about it.",
            statistic="mean",
            unit="probability",
            value_name="mean per-token probability",
            low=0.0,
            high=1.0,
            worst="highest",
            references=("ceiling",),
        )

    def judge(self, measurements: Measurements, **options: int) -> CheckRecord:
        """As every check, over the correctly predicted instances alone; the note says how many of all they are."""
        if self.among == "all":
            return super().judge(measurements, **options)
        correct = measurements.labels == measurements.predicted
        record = super().judge(measurements.only(correct), **options)
        said = f"{int(correct.sum()):,} of {len(measurements):,} instances, those that are predicted correctly"
        if not (measurements.labels >= 0).any():
            said = "needs labels: add a label column, or use among='all'"
        return with_note(record, said)

    def evidence(self, measurements: Measurements) -> Evidence:
        probability = measurements.scalar("token_probability")
        missing = np.isnan(probability)
        defined = int((~missing).sum())
        return Evidence(
            value=mean_of(probability),
            interval=mean_interval(
                probability,
                Groups.of(measurements.instances, ~missing),
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=(0.0, 1.0),
            ),
            defined=~missing,
            undefined=reasons(("not measured", missing)),
            values=probability,
            values_label="mean probability over tokens, per instance",
            values_range=(0.0, 1.0),
            reference_values={"ceiling": measurements.scalar("token_probability.whole")},
            references=(
                Reference(name="floor", value=1 / len(measurements.classes), meaning="one over the classes", n=defined),
                reference(
                    "ceiling",
                    measurements.scalar("token_probability.whole"),
                    "mean probability of the predicted class from the whole input",
                ),
            ),
            details=by_predicted_class(measurements, probability),
        )
