"""How much does attention differ between models that differ only by their seed? (Wiegreffe & Pinter 2019, §3.2)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import LN2, registered
from attnaudit.checks.builtin.retrained_models import HOW_TO_READ_JSD, RetrainingCheck, columns_of_copies
from attnaudit.checks.evidence import Detail, Mask, ReferenceValues, mean_of, single_token
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Chart, Direction, Series
from attnaudit.retraining import Retraining


@registered
@dataclass(frozen=True, kw_only=True)
class SeedVariance(RetrainingCheck, PerInstanceCheck):
    """Mean over instances and copies of the JSD (nats) between the attention of a copy and the attention of the model.

    The copies are trained like the model, but with other seeds: the seeds that follow the seed of the model. If their
    attention differs, the weights depend on the seed as well as on the text. The value is also a reference for
    `TrainedAdversary`: an adversary is evidence only if its JSD is larger than the JSD that another seed causes. An
    instance with a single token has no value. The arguments are described in `RetrainingCheck`.
    """

    seeds: int = 8

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    title = "Attention is the same with other seeds"
    question = "Do models that are trained in the same way, but with other seeds, attend to the same tokens?"
    how_to_read = HOW_TO_READ_JSD
    unit = "nats"
    value_name = "mean JSD to other seeds"
    values_label = "mean JSD to other seeds per instance, nats"
    bounds = (0.0, LN2)
    worst = "highest"
    token_columns = ("attention", "retrained.seed=1*", "gradient.meister.inputs", "leave_one_out.inputs")
    threshold_references = ("uniform",)
    subject = "seed_variance"

    @property
    def why(self) -> str:
        return (
            "If another seed gives an equally good model with different attention, the weights are only one of "
            f"several possible results of training. {self.cost()}"
        )

    def retrainings(self) -> Sequence[Retraining]:
        return tuple(self.on_data(copy) for copy in copies_from_other_seeds(self.seeds))

    def values(self, measurements: Measurements) -> Floats:
        self.require_trained(measurements)
        values: Floats = columns_of_copies(measurements, self.retrainings(), "jsd").mean(1)
        return values

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues]:
        uniform = np.where(np.isnan(values), np.nan, divergence_to_uniform(measurements))
        return (ReferenceValues("uniform", uniform, "JSD between the model's attention and equal weights"),)

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        by_seed = [mean for mean in self._means_by_seed(measurements) if mean is not None]
        predicted = columns_of_copies(measurements, self.retrainings(), "predicted")
        tvd = columns_of_copies(measurements, self.retrainings(), "tvd")
        same_decision = predicted == measurements.predicted[:, None]
        decides = len(measurements) and not measurements.no_decision
        return {
            "lowest mean JSD of a seed": min(by_seed, default=None),
            "highest mean JSD of a seed": max(by_seed, default=None),
            "mean TVD to the outputs of other seeds": mean_of(tvd.mean(1)),
            "share of decisions on which other seeds agree": float(same_decision.mean()) if decides else None,
        }

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (single_token(measurements), ("no attention to compare", undefined))

    def charts(self, measurements: Measurements, values: Floats) -> Sequence[Chart]:
        return (
            Chart(
                title="JSD by seed",
                x_label="seed of the copy, counted from the model's own",
                y_label="mean JSD, nats (at most ln 2 = 0.693)",
                kind="bar",
                series=[
                    Series(
                        name="mean JSD",
                        x=[float(copy.seed) for copy in self.retrainings()],
                        y=self._means_by_seed(measurements),
                    )
                ],
            ),
        )

    def _means_by_seed(self, measurements: Measurements) -> list[float | None]:
        """Return the mean JSD to each copy; None if no instance has a value."""
        return [mean_of(jsd) for jsd in columns_of_copies(measurements, self.retrainings(), "jsd").T]


def copies_from_other_seeds(count: int) -> tuple[Retraining, ...]:
    """Return the training settings of copies with the seeds that follow the seed of the model."""
    return tuple(Retraining(seed=seed) for seed in range(1, count + 1))


def divergence_to_uniform(measurements: Measurements) -> Floats:
    """Return the (n,) JSD (nats) between attention and uniform weights.

    It is NaN for instances with a single token, and for instances without attention on real tokens.
    """
    divergences = np.full(len(measurements), np.nan)
    for i, weights in enumerate(measurements.vector("attention")):
        if len(weights) > 1 and not np.isnan(weights).any():
            uniform = np.full(len(weights), 1 / len(weights))
            mixture = (weights + uniform) / 2
            logs = np.log(np.where(weights > 0, weights, 1.0) / mixture)
            divergences[i] = ((weights * logs).sum() + (uniform * np.log(uniform / mixture)).sum()) / 2
    return divergences
