"""What comprehensiveness and sufficiency share: tokens are taken away in the order of their attention (DeYoung et al.
2020).

Two references frame the value: a random order, which is what pointing at nothing gives, and the order by signed
leave-one-out, which knows what each token does alone. Two operators take tokens away, deletion and mask substitution.
They need not agree (deletion moves the tokens that follow, substitution shows the model a word it may never have learnt
from), so both are measured, and the verdicts under both compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.checks.base import Check, Description
from attnaudit.checks.evidence import (
    Detail,
    Evidence,
    by_predicted_class,
    mean_of,
    not_shown,
    reasons,
    reference,
    with_note,
)
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Chart, CheckRecord, Direction, Reference, Series
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import mean_interval, ratio_interval

#: Per cent of the tokens taken, as they are measured.
PERCENTS = (1, 5, 10, 20, 50)
OPERATORS = {"deletion": "deletion", "mask": "mask substitution"}
LACKING = {
    "deletion": "the model's adapter cannot delete tokens",
    "mask": "the model's adapter names no mask token",
}


GAIN_READING = (
    "Tokens are erased from the most attended down. At 0, the order of attention does no better than a random order; "
    "compare a positive value with the order by signed leave-one-out, which knows the effect of each token."
)
SHARE_READING = (
    "Tokens are erased from the most attended down. At 0, the order of attention does no better than a random order; "
    "at 1, it does as well as the order by signed leave-one-out. A better order may exceed 1."
)


@dataclass(frozen=True, kw_only=True)
class Erasure(Check):
    """Base of the two checks.

    operator: how tokens are taken away, "deletion" (ids removed, the rest encoded again) or "mask" (the mask or unknown
    id in their place). against: "random", the value is the mean gain over random orders; "signed_loo", that gain as a
    share of the gain of the order by signed leave-one-out (a ratio of means: 0 is a random order, 1 is that order),
    which does not move with the scale of the logits. measure: "probability" of the predicted class, or "decision", 1
    where the predicted class is another one.

    Columns: <name>.<operator>[.decision].attention, .random, .loo, .shuffled: the mean (AOPC) over 1, 5, 10, 20 and 50%
    of the tokens, rounded up, at least one.
    """

    operator: Literal["deletion", "mask"] = "deletion"
    against: Literal["random", "signed_loo"] = "random"
    measure: Literal["probability", "decision"] = "probability"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)
    name: ClassVar[str] = ""
    #: 1 where more is better (taking tokens away must hurt), -1 where less is (the tokens alone must do).
    sign: ClassVar[float] = 1.0

    def validate(self) -> None:
        self.choose("operator", OPERATORS)
        self.choose("against", ("random", "signed_loo"))
        self.choose("measure", ("probability", "decision"))

    @property
    def subject(self) -> str:
        return f"{self.name}.{self.operator}.{self.against}" + (".decision" if self.measure == "decision" else "")

    def needs(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{operator}" for operator in OPERATORS)

    @property
    def column(self) -> str:
        return f"{self.name}.{self.operator}" + (".decision" if self.measure == "decision" else "")

    def words(self) -> tuple[str, str, str]:
        """title, question, why."""
        raise NotImplementedError

    @property
    def description(self) -> Description:
        title, question, why = self.words()
        to_random = self.against == "random"
        return Description(
            family="erasure",
            title=f"{title} ({OPERATORS[self.operator]})",
            question=question,
            why=why,
            how_to_read=GAIN_READING if to_random else SHARE_READING,
            statistic="mean" if to_random else "ratio of means",
            unit=("gain in AOPC" if to_random else "share of the signed leave-one-out gain")
            + (", decisions" if self.measure == "decision" else ""),
            value_name="mean gain over random order" if to_random else "share of the signed-LOO gain",
            low=-1.0 if to_random else -np.inf,
            high=1.0 if to_random else np.inf,
            references=("floor", "ceiling") if to_random else (),
        )

    def judge(self, measurements: Measurements, **options: int) -> CheckRecord:
        """As every check; the note says where the other operator would give another verdict."""
        record = super().judge(measurements, **options)
        other: Literal["deletion", "mask"] = "mask" if self.operator == "deletion" else "deletion"
        readings = measurements.readings_of(self.reading or "")
        if any(f"erasure.{other}" in measurements.under(one).facts for one in readings):
            said = f"{LACKING[other]}, so that only {OPERATORS[self.operator]} was tried"
        else:
            rival = Check.judge(replace(self, operator=other), measurements, **options)
            if record.requirement is None or rival.verdict == record.verdict:
                return record
            said = (
                f"depends on the erasure operator: {record.verdict} under {OPERATORS[self.operator]}, "
                f"{rival.verdict} under {OPERATORS[other]}"
            )
        return with_note(record, said)

    def gains(self, measurements: Measurements, column: str) -> tuple[Floats, Floats, Floats]:
        """(n,) gain over random orders of attention, of one random order, and of the signed leave-one-out order."""
        by_chance = measurements.scalar(f"{column}.random")
        attention, shuffled, loo = (
            self.sign * (measurements.scalar(f"{column}.{order}") - by_chance)
            for order in ("attention", "shuffled", "loo")
        )
        return attention, shuffled, loo

    def evidence(self, measurements: Measurements) -> Evidence:
        gain, shuffled, reach = self.gains(measurements, self.column)
        missing = np.isnan(gain)
        groups = Groups.of(measurements.instances, ~missing)
        other = self.column.replace(self.operator, "mask" if self.operator == "deletion" else "deletion")
        details: dict[str, Detail] = {
            "mean AOPC, order of attention": mean_of(measurements.scalar(f"{self.column}.attention")),
            "mean AOPC, random order": mean_of(measurements.scalar(f"{self.column}.random")),
            "mean AOPC, order of signed leave-one-out": mean_of(measurements.scalar(f"{self.column}.loo")),
            "mean gain over random order": mean_of(gain),
            "the same under the other operator": mean_of(self.gains(measurements, other)[0]),
            **by_predicted_class(measurements, gain),
        }
        value, interval, references = self._against(measurements, gain, shuffled, reach, groups)
        return Evidence(
            value=value,
            interval=interval,
            defined=~missing,
            undefined=self._reasons(measurements, missing),
            values=gain,
            values_label="gain over random order per instance",
            values_range=(-1.0, 1.0),
            references=references,
            reference_values={"floor": shuffled, "ceiling": reach} if self.against == "random" else {},
            details=details,
            charts=(self._chart(measurements),),
            no_interval="the gain of the signed leave-one-out order is not clearly above 0: a share of it has no "
            "interval"
            if interval is None and value is not None and len(groups) > 1
            else "",
            note="the signed leave-one-out order gains nothing over a random one, so there is no share of it"
            if value is None and len(groups)
            else "",
        )

    def _against(
        self, measurements: Measurements, gain: Floats, shuffled: Floats, reach: Floats, groups: Groups
    ) -> tuple[float | None, IntervalEstimate | None, tuple[Reference, ...]]:
        generator = self.generator(measurements, "interval")
        if self.against == "random":
            return (
                mean_of(gain),
                mean_interval(gain, groups, confidence=self.confidence, generator=generator, bounds=(-1.0, 1.0)),
                (
                    reference("floor", shuffled, "mean gain of one random order over the mean of several"),
                    reference("ceiling", reach, "mean gain of the order by signed leave-one-out"),
                ),
            )
        sums = groups.sums(np.column_stack([gain, shuffled, reach]))
        total = sums.sum(0)
        known = len(groups) > 0 and bool(total[2] > 0)
        return (
            float(total[0] / total[2]) if known else None,
            ratio_interval(gain, reach, groups, confidence=self.confidence, generator=generator, extremes=(-1.0, 1.0))
            if known
            else None,
            (
                Reference(
                    name="floor",
                    value=float(total[1] / total[2]) if known else None,
                    meaning="the share of one random order",
                    n=len(groups.rows),
                ),
                Reference(
                    name="ceiling",
                    value=1.0,
                    meaning="the order by signed leave-one-out itself; a better order may exceed it",
                    n=len(groups.rows),
                ),
            ),
        )

    def _reasons(self, measurements: Measurements, missing: NDArray[np.bool_]) -> dict[str, int]:
        impossible = np.full(len(missing), f"erasure.{self.operator}" in measurements.facts)
        return reasons(
            (LACKING[self.operator], missing & impossible),
            ("a single token", missing & (measurements.lengths < 2)),
            not_shown(measurements, missing),
            ("every attention weight is tied", missing),
        )

    def _chart(self, measurements: Measurements) -> Chart:
        orders = {"attention": "attention", "random": "random order", "loo": "signed leave-one-out"}
        return Chart(
            title=f"{self.name.capitalize()} by share of tokens",
            x_label="tokens taken, %",
            y_label="decisions changed" if self.measure == "decision" else "fall of the predicted class's probability",
            kind="line",
            series=[
                Series(name=said, x=[float(p) for p in PERCENTS], y=_mean_curve(measurements, f"{self.column}.{order}"))
                for order, said in orders.items()
            ],
        )


def _mean_curve(measurements: Measurements, column: str) -> list[float | None]:
    rows = [row for row in measurements.vector(f"{column}.curve") if len(row) and not np.isnan(row).any()]
    return [float(x) for x in np.mean(rows, axis=0)] if rows else [None] * len(PERCENTS)
