"""Does the model's attention help another model that sees words without context? (Wiegreffe & Pinter 2019, §3.3)"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from attnaudit.checks.base import registered
from attnaudit.checks.builtin.retrained_models import (
    HOW_TO_READ_F1,
    RetrainingCheck,
    columns_of_copies,
    f1_difference,
)
from attnaudit.checks.evidence import Evidence, predictions_of_model
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Direction
from attnaudit.retraining import DIVERGENCES, LONGER, Retraining

GUIDED, UNIFORM, LEARNED, ADVERSARY = "guided", "uniform", "its own", "adversary"


@registered
@dataclass(frozen=True, kw_only=True)
class GuidedMLP(RetrainingCheck):
    """Mean F1 of MLPs with the model's attention minus the mean F1 of MLPs with uniform weights.

    The MLPs process each word separately, without context. Weights that mark the important words improve the
    predictions of the MLPs. The report also shows MLPs that learn their own attention. The value is undefined without
    labels, and if none of the three kinds of MLPs decides better than a constant class (see
    `decides_better_than_a_constant`), because training then taught them nothing. The check trains 3 × `seeds` models,
    or 5 × `seeds` with `adversary`. The arguments `seeds`, `train` and `dev` are described in `RetrainingCheck`.

    Args:
        adversary: The λ with which adversaries are trained (see `weight` of `TrainedAdversary`). The report then also
            shows MLPs with the attention of these adversaries. None (the default) trains no adversary.
        divergence: The divergence from the model's attention that the adversaries maximise, "kl" or "jsd". It needs
            `adversary`.
    """

    adversary: float | None = None
    divergence: Literal["kl", "jsd"] = "kl"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    title = "Attention guides a model without context"
    question = "Does a model that sees words one by one decide better with this attention than with uniform weights?"
    how_to_read = HOW_TO_READ_F1
    statistic = "difference"
    unit = "F1"
    value_name = "F1 of guided MLPs minus F1 of uniform MLPs"
    bounds = (-1.0, 1.0)
    token_columns = ("attention", "gradient.meister.inputs", "leave_one_out.inputs")
    subject = "guided_mlp"

    def validate(self) -> None:
        super().validate()
        self.require_choice("divergence", DIVERGENCES)
        if self.adversary is not None:
            self.require_number("adversary", 0.0, 1e6)
        elif self.divergence != "kl":
            raise CheckError(
                "GuidedMLP: divergence applies only to the adversary. Give adversary=λ as well, or leave divergence "
                "out."
            )

    @property
    def why(self) -> str:
        return (
            "Large weights on the words that matter also help another model. Weights that suit only the hidden "
            f"states of this model do not help. {self.cost()}"
        )

    @property
    def mlps(self) -> dict[str, tuple[Retraining, ...]]:
        """Source of the attention -> the MLPs that use it, one per seed."""
        kinds = {
            GUIDED: Retraining(encoder="mlp", attention="base"),
            UNIFORM: Retraining(encoder="mlp", attention="uniform"),
            LEARNED: Retraining(encoder="mlp"),
        }
        if self.adversary is not None:
            kinds[ADVERSARY] = Retraining(
                encoder="mlp", attention="adversary", divergence=self.divergence, weight=self.adversary
            )
        return {
            name: tuple(self.on_data(dataclasses.replace(kind, seed=seed)) for seed in range(self.seeds))
            for name, kind in kinds.items()
        }

    @property
    def adversaries(self) -> tuple[Retraining, ...]:
        """The adversaries whose attention the MLPs use; none without the argument `adversary`."""
        return tuple(dataclasses.replace(mlp, encoder="own") for mlp in self.mlps.get(ADVERSARY, ()))

    def retrainings(self) -> Sequence[Retraining]:
        return (*(mlp for mlps in self.mlps.values() for mlp in mlps), *self.adversaries)

    def cost(self) -> str:
        adversaries = len(self.adversaries)
        mlps = len(self.retrainings()) - adversaries
        trained = f"The check trains {mlps} MLPs, each at a lower cost than training the audited model."
        if not adversaries:
            return trained
        return (
            f"{trained} It also trains {adversaries} adversaries, each at up to {LONGER} times the cost of training "
            "the audited model."
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        self.require_trained(measurements)
        predictions = {name: columns_of_copies(measurements, mlps, "predicted") for name, mlps in self.mlps.items()}
        predictions["audited model"] = predictions_of_model(measurements)
        return f1_difference(
            self,
            measurements,
            minuend=GUIDED,
            subtrahend=UNIFORM,
            predictions=predictions,
            must_have_learned=(GUIDED, UNIFORM, LEARNED),
        )
