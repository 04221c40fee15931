"""Is attention needed at all? (Wiegreffe & Pinter 2019, §3.1)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.checks.base import Description, registered
from attnaudit.checks.evidence import Evidence
from attnaudit.checks.retrained_models import F1_READING, RetrainingCheck, f1_difference, together
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction
from attnaudit.retraining import Retraining

MODEL, UNIFORM = "model", "uniform"


@registered
@dataclass(frozen=True, kw_only=True)
class RetrainedUniform(RetrainingCheck):
    """F1 of the model minus the mean F1 of copies that are trained with the weight 1/n on every real token.

    At_least: a model that is no better than such copies has no use for attention, and what its weights show explains
    little. Undefined without labels. Unlike UniformFragility, the copies could learn to do without. Trains `seeds`
    models, the first from the model's own seed.
    """

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    @property
    def subject(self) -> str:
        return "retrained_uniform"

    def retrainings(self) -> Sequence[Retraining]:
        return tuple(self.on_data(Retraining(seed=seed, attention="uniform")) for seed in range(self.seeds))

    @property
    def description(self) -> Description:
        return Description(
            family="retraining",
            title="Attention is needed: retrained with uniform weights",
            question="Does the model lose quality when it is trained anew with the same weight on every token?",
            why="Where a model without attention learns the task as well, the task does not need attention, and its "
            f"weights are no reason for anything. {self.cost()}",
            how_to_read=F1_READING,
            statistic="difference",
            unit="F1",
            value_name="F1 above uniform copies",
            low=-1.0,
            high=1.0,
            token_columns=("attention", "gradient.meister.inputs", "leave_one_out.inputs"),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        self.refuse_untrained(measurements)
        return f1_difference(
            self,
            measurements,
            ours=MODEL,
            others=UNIFORM,
            predicted={
                MODEL: measurements.predicted.astype(np.float64)[:, None],
                UNIFORM: together(measurements, self.retrainings(), "predicted"),
            },
        )
