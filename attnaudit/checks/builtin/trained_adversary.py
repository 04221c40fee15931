"""Can a copy be trained to give the same outputs with other attention? (Wiegreffe & Pinter 2019, §4)"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import LN2, registered
from attnaudit.checks.builtin.retrained_models import (
    HOW_TO_READ_JSD,
    MOST_SEEDS,
    RetrainingCheck,
    columns_of_copies,
    mean_f1,
    measure_of,
)
from attnaudit.checks.builtin.seed_variance import copies_from_other_seeds
from attnaudit.checks.evidence import Detail, Mask, ReferenceValues, mean_of, predictions_of_model, single_token
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.formatting import number
from attnaudit.records import Chart, Direction, Series
from attnaudit.retraining import DIVERGENCES, Retraining

#: The factors by which a sweep multiplies λ.
SWEEP = (0.1, 0.3, 1.0, 3.0, 10.0)


@registered
@dataclass(frozen=True, kw_only=True)
class TrainedAdversary(RetrainingCheck, PerInstanceCheck):
    """Mean over instances of the JSD (nats) between the attention of the model and the attention of an adversary.

    An adversary is a copy of the model that is trained without labels. It minimises TVD(outputs) - λ ·
    divergence(attentions), where both terms compare the adversary with the model. Read the value together with the TVD
    of the adversary, which the note gives. A large JSD at a small TVD means that other attention gives the same
    outputs. An instance with a single token has no value. The arguments `seeds` (here, the number of adversaries),
    `train` and `dev` are described in `RetrainingCheck`.

    A small value has two possible causes: no different attention gives the same outputs, or `weight` is so small that
    training hardly seeks different attention. The check cannot tell them apart. A gate with a tiny weight can therefore
    pass for any model. Choose the weight from the curve that `sweep` adds. A gate needs a weight above 0.

    Args:
        weight: λ, from 0 to 1e6. The papers use 2e-4 to 8e-4. For a single sigmoid output, the code of Wiegreffe &
            Pinter 2019 computes half of the TVD that this check computes over both classes. Their λ therefore
            corresponds to a weight of 2λ.
        divergence: "kl" for KL(adversary ‖ model) (Wiegreffe & Pinter 2019; Wen et al. 2022), "jsd" for the
            Jensen-Shannon divergence (Tutek & Šnajder 2020).
        frozen: Whether to copy the model's parameters and train only the attention. By default, all parameters start
            from random values and are trained (Meister et al. 2021).
        sweep: Whether to train additional adversaries with 0.1, 0.3, 3 and 10 times λ, and to chart their JSD against
            their TVD.
        compare_seeds: The number of copies with other seeds to train (see `SeedVariance`). If above 0, their mean JSD
            is the reference "seeds", and the details give the value as a multiple of this reference.
    """

    seeds: int = 1
    weight: float = 0.01
    divergence: Literal["kl", "jsd"] = "kl"
    frozen: bool = False
    sweep: bool = False
    compare_seeds: int = 0

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    how_to_read = HOW_TO_READ_JSD
    unit = "nats"
    value_name = "mean JSD to the adversary"
    values_label = "JSD to the adversary per instance, nats"
    bounds = (0.0, LN2)
    worst = "highest"

    def validate(self) -> None:
        super().validate()
        self.require_number("weight", 0.0, 1e6)
        self.require_choice("divergence", DIVERGENCES)
        for argument in ("frozen", "sweep"):
            value = getattr(self, argument)
            if not isinstance(value, bool):
                raise CheckError(f"TrainedAdversary: {argument} is {value!r}; expected true or false.")
        self.require_count("compare_seeds", 0, MOST_SEEDS)
        if self.severity == "gate" and self.weight == 0:
            raise CheckError(
                "TrainedAdversary: weight is 0, so no different attention is sought, and a gate would pass for every "
                'model. Give a weight above 0, or use severity="report".'
            )
        if self.sweep and self.weight == 0:
            raise CheckError(
                "TrainedAdversary: sweep=True multiplies weight by several factors, but weight is 0. Give "
                "a weight above 0."
            )

    @property
    def subject(self) -> str:
        return f"trained_adversary.{self.divergence}.{self.weight:g}{'.frozen' if self.frozen else ''}"

    @property
    def title(self) -> str:
        return f"A trained adversary (λ {self.weight:g}{', frozen' if self.frozen else ''})"

    @property
    def question(self) -> str:
        training = "with only its attention retrained" if self.frozen else "trained from scratch"
        return f"Can a copy of the model, {training}, learn to give the same outputs with other attention?"

    @property
    def why(self) -> str:
        return (
            "If such a copy exists, other weights give the same outputs as well. But if retraining with another seed "
            f"changes attention just as much, the adversary shows only the effect of the seed. {self.cost()}"
        )

    @property
    def token_columns(self) -> tuple[str, ...]:
        adversary = f"{measure_of(self.adversaries()[0])}.attention"
        return ("attention", adversary, "gradient.meister.inputs", "leave_one_out.inputs")

    @property
    def threshold_references(self) -> tuple[str, ...]:
        return ("seeds",) if self.compare_seeds else ()

    def adversaries(self, factor: float = 1.0) -> tuple[Retraining, ...]:
        """Return the training settings of one adversary per seed. All use the λ of the check, times `factor`."""
        adversary = Retraining(
            attention="adversary",
            divergence=self.divergence,
            weight=float(f"{self.weight * factor:.6g}"),
            frozen=self.frozen,
        )
        return tuple(self.on_data(dataclasses.replace(adversary, seed=seed)) for seed in range(self.seeds))

    def copies_to_compare(self) -> tuple[Retraining, ...]:
        """Return the training settings of the copies with other seeds. The value is compared with these copies."""
        return tuple(self.on_data(copy) for copy in copies_from_other_seeds(self.compare_seeds))

    def retrainings(self) -> Sequence[Retraining]:
        factors = SWEEP if self.sweep else (1.0,)
        adversaries = [adversary for factor in factors for adversary in self.adversaries(factor)]
        return (*adversaries, *self.copies_to_compare())

    def values(self, measurements: Measurements) -> Floats:
        self.require_trained(measurements)
        return self._mean_over_seeds(measurements, "jsd")

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues]:
        if not self.compare_seeds:
            return ()
        seeds = columns_of_copies(measurements, self.copies_to_compare(), "jsd").mean(1)
        meaning = f"mean JSD to {self.compare_seeds} copies from other seeds"
        return (ReferenceValues("seeds", np.where(np.isnan(values), np.nan, seeds), meaning),)

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        mean = mean_of(values)
        predicted = columns_of_copies(measurements, self.adversaries(), "predicted")
        same_decision = predicted == measurements.predicted[:, None]
        decides = len(measurements) and not measurements.no_decision
        details: dict[str, Detail] = {
            "mean TVD of the output": mean_of(self._mean_over_seeds(measurements, "tvd")),
            "mean JSD / ln 2": None if mean is None else mean / LN2,
            "share of decisions that are the same": float(same_decision.mean()) if decides else None,
            "F1, model": mean_f1(measurements, predictions_of_model(measurements)),
            "F1, adversary": mean_f1(measurements, predicted),
        }
        for reference in self.references(measurements, values):
            between_seeds = mean_of(reference.values)
            multiple = mean / between_seeds if mean is not None and between_seeds else None
            details["mean JSD as a multiple of that between seeds"] = multiple
        return details

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (single_token(measurements), ("no attention to compare", undefined))

    def note(self, measurements: Measurements, values: Floats) -> str:
        return (
            "the adversary's outputs differ from the model's by a mean TVD of "
            f"{number(mean_of(self._mean_over_seeds(measurements, 'tvd')) or 0.0)}"
        )

    def charts(self, measurements: Measurements, values: Floats) -> Sequence[Chart]:
        if not self.sweep:
            return ()
        points = []
        for factor in SWEEP:
            tvd, jsd = (mean_of(self._mean_over_seeds(measurements, name, factor)) for name in ("tvd", "jsd"))
            points.append((tvd or 0.0, jsd))
        points.sort(key=lambda point: point[0])
        return (
            Chart(
                title="JSD by the TVD that the adversary reaches",
                x_label=f"mean TVD of the output, λ from {SWEEP[0] * self.weight:g} to {SWEEP[-1] * self.weight:g}",
                y_label="mean JSD, nats (at most ln 2 = 0.693)",
                kind="line",
                series=[Series(name="adversaries", x=[tvd for tvd, _ in points], y=[jsd for _, jsd in points])],
            ),
        )

    def _mean_over_seeds(self, measurements: Measurements, name: str, factor: float = 1.0) -> Floats:
        """Return one column of the adversaries with λ times `factor`, averaged over seeds, (n,)."""
        mean: Floats = columns_of_copies(measurements, self.adversaries(factor), name).mean(1)
        return mean
