"""Does the attention help a model that has no other context? (Wiegreffe & Pinter 2019, §4.1)"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnaudit.checks.base import Description, registered
from attnaudit.checks.evidence import Evidence
from attnaudit.checks.retrained_models import F1_READING, RetrainingCheck, f1_difference, together
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Direction
from attnaudit.retraining import DIVERGENCES, LONGER, Retraining

GUIDED, UNIFORM, LEARNED, ADVERSARY = "guided", "uniform", "its own", "adversary"


@registered
@dataclass(frozen=True, kw_only=True)
class GuidedMLP(RetrainingCheck):
    """F1 of context-free MLPs that pool with the model's attention, text by text, minus that of MLPs that pool with
    equal weights, both trained so.

    At_least: weights that point at the words that matter help a model that sees each word alone. Beside them stand MLPs
    that learn their own attention and, with adversary=λ, MLPs that pool with the attention of adversaries of that λ and
    divergence (see TrainedAdversary). Undefined without labels. Trains 3 × `seeds` models, 5 × with adversaries.
    """

    adversary: float | None = None
    divergence: Literal["kl", "jsd"] = "kl"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    def validate(self) -> None:
        super().validate()
        self.choose("divergence", DIVERGENCES)
        if self.adversary is not None:
            self.number("adversary", 0.0, 1e6)
        elif self.divergence != "kl":
            raise CheckError("GuidedMLP: divergence is that of the adversary: give adversary=λ, or leave it out.")

    @property
    def subject(self) -> str:
        return "guided_mlp"

    @property
    def kinds(self) -> dict[str, tuple[Retraining, ...]]:
        """The MLPs by what they pool with."""
        found = {
            GUIDED: Retraining(encoder="mlp", attention="base"),
            UNIFORM: Retraining(encoder="mlp", attention="uniform"),
            LEARNED: Retraining(encoder="mlp"),
        }
        if self.adversary is not None:
            found[ADVERSARY] = Retraining(
                encoder="mlp", attention="adversary", divergence=self.divergence, weight=self.adversary
            )
        return {
            name: tuple(self.on_data(dataclasses.replace(one, seed=seed)) for seed in range(self.seeds))
            for name, one in found.items()
        }

    @property
    def guides(self) -> tuple[Retraining, ...]:
        """The adversaries whose attention is used."""
        return tuple(dataclasses.replace(one, encoder="own") for one in self.kinds.get(ADVERSARY, ()))

    def retrainings(self) -> Sequence[Retraining]:
        return (*(copy for copies in self.kinds.values() for copy in copies), *self.guides)

    def cost(self) -> str:
        mlps = len(self.retrainings()) - len(self.guides)
        more = f", and {len(self.guides)} adversaries, each at up to {LONGER} times that cost" if self.guides else ""
        return f"Trains {mlps} MLPs, each at less than the cost of training the audited model{more}."

    @property
    def description(self) -> Description:
        return Description(
            family="retraining",
            title="Attention guides a model without context",
            question="Does a model that sees words one by one decide better with this attention than with equal "
            "weights?",
            why="Weights that only make sense together with the states that they were learnt with help no other model; "
            f"weights that point at the words that matter do. {self.cost()}",
            how_to_read=F1_READING,
            statistic="difference",
            unit="F1",
            value_name="F1 of guided above uniform MLPs",
            low=-1.0,
            high=1.0,
            token_columns=("attention", "gradient.meister.inputs", "leave_one_out.inputs"),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        self.refuse_untrained(measurements)
        found = {name: together(measurements, copies, "predicted") for name, copies in self.kinds.items()}
        found["audited model"] = measurements.predicted.astype(np.float64)[:, None]
        return f1_difference(self, measurements, ours=GUIDED, others=UNIFORM, predicted=found)
