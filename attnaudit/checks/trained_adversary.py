"""Can a model be trained to answer the same with other attention? (Wiegreffe & Pinter 2019, §4.2)"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats
from attnaudit.checks.base import LN2, Description, registered
from attnaudit.checks.evidence import Detail, Evidence, by_predicted_class, mean_of, reasons
from attnaudit.checks.retrained_models import JSD_READING, RetrainingCheck, column, f1_of, together
from attnaudit.checks.seed_variance import other_seeds
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import Chart, Direction, Reference, Series
from attnaudit.retraining import DIVERGENCES, Retraining
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval

#: What λ is multiplied by for the curve.
SWEEP = (0.1, 0.3, 1.0, 3.0, 10.0)


@registered
@dataclass(frozen=True, kw_only=True)
class TrainedAdversary(RetrainingCheck):
    """Mean over instances of the JSD (nats) between the model's attention and that of an adversary: a copy trained on
    TVD(outputs) - λ · divergence(attentions) in place of the labels, as the TVD that it reaches stands beside it.

    weight: λ; the papers' lie between 2e-4 and 8e-4. divergence: "kl", KL(adversary ‖ model) (Wiegreffe & Pinter; Wen
    et al. 2022), or "jsd" (Tutek & Šnajder 2020). TVD is over all classes; Wiegreffe & Pinter's code halves it for one
    sigmoid output: give 2λ to repeat it. frozen: the copy has the model's parameters, and only attention is trained;
    otherwise all is new (Meister et al. 2021). seeds: how many adversaries, mean over them. sweep: train at λ × 0.1,
    0.3, 3 and 10 as well, for the curve of JSD against TVD. compare_seeds: how many copies from other seeds the JSD is
    held against (see SeedVariance), as a multiple and as the reference "seeds".

    At_most, and read with the TVD: a large JSD at a small TVD means that other attention does the same work. One token
    is undefined.
    """

    seeds: int = 1
    weight: float = 0.01
    divergence: Literal["kl", "jsd"] = "kl"
    frozen: bool = False
    sweep: bool = False
    compare_seeds: int = 0

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    def validate(self) -> None:
        super().validate()
        self.number("weight", 0.0, 1e6)
        self.choose("divergence", DIVERGENCES)
        for name in ("frozen", "sweep"):
            if not isinstance(getattr(self, name), bool):
                raise CheckError(f"TrainedAdversary: {name} is {getattr(self, name)!r}, expected true or false.")
        self.whole("compare_seeds", 0)
        if self.sweep and self.weight == 0:
            raise CheckError("TrainedAdversary: sweep=True multiplies weight, which is 0: give a weight above 0.")

    @property
    def subject(self) -> str:
        return f"trained_adversary.{self.divergence}.{self.weight:g}{'.frozen' if self.frozen else ''}"

    def adversaries(self, times: float = 1.0) -> tuple[Retraining, ...]:
        weight = float(f"{self.weight * times:.6g}")
        one = Retraining(attention="adversary", divergence=self.divergence, weight=weight, frozen=self.frozen)
        return tuple(self.on_data(dataclasses.replace(one, seed=seed)) for seed in range(self.seeds))

    @property
    def yardstick(self) -> tuple[Retraining, ...]:
        return tuple(self.on_data(one) for one in other_seeds(self.compare_seeds))

    def retrainings(self) -> Sequence[Retraining]:
        swept = [one for times in (SWEEP if self.sweep else (1.0,)) for one in self.adversaries(times)]
        return (*swept, *self.yardstick)

    @property
    def description(self) -> Description:
        how = "its parameters kept and only attention trained" if self.frozen else "trained from nothing"
        return Description(
            family="retraining",
            title=f"A trained adversary (λ {self.weight:g}{', frozen' if self.frozen else ''})",
            question=f"Can a copy of the model, {how}, learn to give the same outputs with other attention?",
            why="Where one can, the weights are not the only way to these outputs; where another seed alone moves "
            f"attention as far, an adversary shows no more than that. {self.cost()}",
            how_to_read=JSD_READING,
            statistic="mean",
            unit="nats",
            value_name="mean JSD to the adversary",
            low=0.0,
            high=LN2,
            worst="highest",
            token_columns=(
                "attention",
                f"{column(self.adversaries()[0])}.attention",
                "gradient.meister.inputs",
                "leave_one_out.inputs",
            ),
            references=("seeds",) if self.compare_seeds else (),
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        self.refuse_untrained(measurements)
        adversaries = self.adversaries()
        jsd = together(measurements, adversaries, "jsd").mean(1)
        tvd = together(measurements, adversaries, "tvd").mean(1)
        missing, mean = np.isnan(jsd), mean_of(jsd)
        predicted = together(measurements, adversaries, "predicted")
        details: dict[str, Detail] = {
            "mean TVD of the output": mean_of(tvd),
            "mean JSD / ln 2": None if mean is None else mean / LN2,
            "share of decisions that are the model's": float((predicted == measurements.predicted[:, None]).mean()),
            "F1, model": f1_of(measurements, measurements.predicted.astype(np.float64)[:, None]),
            "F1, adversary": f1_of(measurements, predicted),
        }
        references, reference_values = self._held_against(measurements, missing, mean, details)
        return Evidence(
            value=mean,
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
            values_label="JSD to the adversary per instance, nats",
            values_range=(0.0, LN2),
            references=references,
            reference_values=reference_values,
            details={**details, **by_predicted_class(measurements, jsd)},
            charts=(self._curve(measurements),) if self.sweep else (),
            note=f"at a mean TVD of the output of {mean_of(tvd) or 0.0:.3f}",
        )

    def _held_against(
        self, measurements: Measurements, missing: NDArray[np.bool_], mean: float | None, details: dict[str, Detail]
    ) -> tuple[tuple[Reference, ...], dict[str, Floats]]:
        """The seeds' own variance as a reference; adds the multiple to the details."""
        if not self.compare_seeds:
            return (), {}
        seeds = together(measurements, self.yardstick, "jsd").mean(1)
        among = mean_of(np.where(missing, np.nan, seeds))
        details["mean JSD as a multiple of that between seeds"] = mean / among if mean is not None and among else None
        meaning = f"mean JSD to {self.compare_seeds} copies from other seeds"
        return (Reference(name="seeds", value=among, meaning=meaning, n=int((~missing).sum())),), {"seeds": seeds}

    def _curve(self, measurements: Measurements) -> Chart:
        points = []
        for times in SWEEP:
            found = (mean_of(together(measurements, self.adversaries(times), what).mean(1)) for what in ("tvd", "jsd"))
            points.append(tuple(found))
        points.sort(key=lambda point: point[0] or 0.0)
        return Chart(
            title="JSD by the TVD that the adversary reaches",
            x_label=f"mean TVD of the output, λ from {SWEEP[0] * self.weight:g} to {SWEEP[-1] * self.weight:g}",
            y_label="mean JSD, nats (at most ln 2 = 0.693)",
            kind="line",
            series=[Series(name="adversaries", x=[x or 0.0 for x, _ in points], y=[y for _, y in points])],
        )
