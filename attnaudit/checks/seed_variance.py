"""How different is the attention of models that differ by their seed alone? (Wiegreffe & Pinter 2019, §3.2)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import LN2, Description, registered
from attnaudit.checks.evidence import Evidence, by_predicted_class, mean_of, reasons
from attnaudit.checks.retrained_models import JSD_READING, RetrainingCheck, together
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Chart, Direction, Reference, Series
from attnaudit.retraining import Retraining
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval


@registered
@dataclass(frozen=True, kw_only=True)
class SeedVariance(RetrainingCheck):
    """Mean over instances, and over copies that are trained from the next `seeds` seeds, of the JSD (nats) between the
    attention of the copy and the model's.

    At_most: attention that another seed would have shown otherwise explains the seed as much as the text. It is also
    the yardstick for adversaries, whose JSD means little below it. One token is undefined. Trains `seeds` models.
    """

    seeds: int = 8

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    @property
    def subject(self) -> str:
        return "seed_variance"

    def retrainings(self) -> Sequence[Retraining]:
        return tuple(self.on_data(one) for one in other_seeds(self.seeds))

    @property
    def description(self) -> Description:
        return Description(
            family="retraining",
            title="Attention is the same from other seeds",
            question="Do models that are trained alike, from other seeds, attend to the same tokens?",
            why="Where another seed gives as good a model with other attention, the weights are one of several stories "
            f"that training can end in. {self.cost()}",
            how_to_read=JSD_READING,
            statistic="mean",
            unit="nats",
            value_name="mean JSD to other seeds",
            low=0.0,
            high=LN2,
            worst="highest",
            token_columns=("attention", "retrained.seed=1*", "gradient.meister.inputs", "leave_one_out.inputs"),
            references=("uniform",),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        self.refuse_untrained(measurements)
        copies = self.retrainings()
        each = together(measurements, copies, "jsd")
        jsd, uniform = each.mean(1), to_uniform(measurements)
        missing = np.isnan(jsd)
        by_seed = [m for m in (mean_of(column) for column in each.T) if m is not None]
        decided = together(measurements, copies, "predicted")
        return Evidence(
            value=mean_of(jsd),
            interval=mean_interval(
                jsd,
                Groups.of(measurements.instances, ~missing),
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=(0.0, LN2),
            ),
            defined=~missing,
            undefined=reasons(("a single token", missing & (measurements.lengths < 2)), ("nothing shown", missing)),
            values=jsd,
            values_label="mean JSD to other seeds per instance, nats",
            values_range=(0.0, LN2),
            references=(
                Reference(
                    name="uniform",
                    value=mean_of(np.where(missing, np.nan, uniform)),
                    meaning="JSD of the model's attention to equal weights",
                    n=int((~missing).sum()),
                ),
            ),
            reference_values={"uniform": uniform},
            details={
                "lowest of a seed": min(by_seed, default=None),
                "highest of a seed": max(by_seed, default=None),
                "mean TVD of the output to other seeds": mean_of(together(measurements, copies, "tvd").mean(1)),
                "share of decisions that other seeds share": float((decided == measurements.predicted[:, None]).mean()),
                **by_predicted_class(measurements, jsd),
            },
            charts=(
                Chart(
                    title="JSD by seed",
                    x_label="seed of the copy, counted from the model's own",
                    y_label="mean JSD, nats (at most ln 2 = 0.693)",
                    kind="bar",
                    series=[
                        Series(
                            name="mean JSD",
                            x=[float(one.seed) for one in copies],
                            y=[mean_of(each[:, i]) for i in range(len(copies))],
                        )
                    ],
                ),
            ),
        )


def other_seeds(count: int) -> tuple[Retraining, ...]:
    """Copies from the seeds that follow the model's own."""
    return tuple(Retraining(seed=seed) for seed in range(1, count + 1))


def to_uniform(measurements: Measurements) -> Floats:
    """(n,) JSD in nats of the model's attention to equal weights; NaN for one token or none shown."""
    found = np.full(len(measurements), np.nan)
    for i, row in enumerate(measurements.vector("attention")):
        if len(row) > 1 and not np.isnan(row).any():
            even = np.full(len(row), 1 / len(row))
            middle = (row + even) / 2
            logs = np.log(np.where(row > 0, row, 1.0) / middle)
            found[i] = ((row * logs).sum() + (even * np.log(even / middle)).sum()) / 2
    return found
