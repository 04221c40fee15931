"""Does the model need attention at all? (Wiegreffe & Pinter 2019, §3.1)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attnaudit.checks.base import registered
from attnaudit.checks.builtin.retrained_models import (
    HOW_TO_READ_F1,
    RetrainingCheck,
    columns_of_copies,
    f1_difference,
)
from attnaudit.checks.builtin.seed_variance import copies_from_other_seeds
from attnaudit.checks.evidence import Evidence, predictions_of_model
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction
from attnaudit.retraining import Retraining


@registered
@dataclass(frozen=True, kw_only=True)
class RetrainedUniform(RetrainingCheck):
    """F1 of the model minus the mean F1 of copies that are trained with the weight 1/n on each of the n real tokens.

    A model that is no better than such copies does not need attention, so its weights explain little. Unlike
    `UniformFragility`, which replaces the weights in the trained model, this check lets copies learn the task without
    attention. The first copy has the seed of the model. The value is undefined without labels. The arguments are
    described in `RetrainingCheck`.

    The check also trains one copy with attention, from another seed. It shows whether training works: if this copy
    decides no better than a constant class (see `decides_better_than_a_constant`), then uniform copies that do no
    better say nothing about attention, and the value is undefined.
    """

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    title = "Attention is needed: retrained with uniform weights"
    question = "Does the model lose quality when it is retrained with the same weight on every token?"
    how_to_read = HOW_TO_READ_F1
    statistic = "difference"
    unit = "F1"
    value_name = "F1 above uniform copies"
    bounds = (-1.0, 1.0)
    token_columns = ("attention", "gradient.meister.inputs", "leave_one_out.inputs")
    subject = "retrained_uniform"

    @property
    def why(self) -> str:
        return (
            "If a model without attention learns the task as well, the task does not need attention, and the weights "
            f"explain little. {self.cost()}"
        )

    @property
    def uniform_copies(self) -> tuple[Retraining, ...]:
        """The training settings of the copies with uniform attention."""
        return tuple(self.on_data(Retraining(seed=seed, attention="uniform")) for seed in range(self.seeds))

    @property
    def copies_with_attention(self) -> tuple[Retraining, ...]:
        """The training settings of the copy that shows whether training works. `SeedVariance` trains it, too."""
        return tuple(self.on_data(copy) for copy in copies_from_other_seeds(1))

    def retrainings(self) -> Sequence[Retraining]:
        return (*self.uniform_copies, *self.copies_with_attention)

    def evidence(self, measurements: Measurements) -> Evidence:
        self.require_trained(measurements)
        return f1_difference(
            self,
            measurements,
            minuend="model",
            subtrahend="uniform",
            predictions={
                "model": predictions_of_model(measurements),
                "uniform": columns_of_copies(measurements, self.uniform_copies, "predicted"),
                "retrained with attention": columns_of_copies(measurements, self.copies_with_attention, "predicted"),
            },
            must_have_learned=("retrained with attention",),
        )
