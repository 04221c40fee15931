"""Does one token dominate a hidden state, or the prediction, or is influence spread? (Meister et al. 2021, §4)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnaudit.checks.base import Check, Description, registered
from attnaudit.checks.evidence import Detail, Evidence, by_predicted_class, mean_of, reasons
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval

COLUMNS = {
    "hidden": "influence.hidden.entropy",
    "gradient": "entropy.gradient.meister.inputs",
    "leave_one_out": "entropy.leave_one_out.inputs",
}
WORDS = {
    "hidden": "the inputs' influence on a hidden state",
    "gradient": "the gradient of the prediction",
    "leave_one_out": "leave-one-out",
}


@registered
@dataclass(frozen=True, kw_only=True)
class InfluenceEntropy(Check):
    """Mean normalised entropy H̃(p) = -Σ p log p / log n of influence over the real tokens, in [0, 1].

    of: "hidden" (g_{h_p}(x), mean over positions p; M eq. 5), "gradient" (g_ŷ, preset meister) or "leave_one_out"
    (D_ŷ), both at the inputs. One token is undefined. Low is good, so the threshold is at_most.
    """

    of: Literal["hidden", "gradient", "leave_one_out"] = "hidden"

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    def validate(self) -> None:
        self.choose("of", COLUMNS)

    @property
    def subject(self) -> str:
        return "influence_entropy.hidden" if self.of == "hidden" else f"influence_{COLUMNS[self.of]}"

    def needs(self) -> tuple[str, ...]:
        return ("influence.hidden",) if self.of == "hidden" else (COLUMNS[self.of],)

    @property
    def description(self) -> Description:
        hidden = self.of == "hidden"
        return Description(
            family="influence",
            title=f"Entropy of {WORDS[self.of]}",
            question="Does a hidden state stand for one token, so that attention on it points at that token?"
            if hidden
            else f"Does {WORDS[self.of]} single out few tokens?",
            why="Attention weighs hidden states. Where a state mixes all tokens evenly, a sharp weight on it says "
            "little about the token at its position. Low entropy alone is not enough: see the own-token share."
            if hidden
            else "An explanation by few tokens can only be true of a prediction that depends on few tokens.",
            how_to_read="Normalised entropy runs from 0, where all influence comes from one token, to 1, where every "
            "token has the same influence. The nearer the value is to 1, the less a weight says about any single "
            "token.",
            statistic="mean",
            unit="normalised entropy",
            value_name="mean normalised entropy",
            low=0.0,
            high=1.0,
            worst="highest",
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        entropy = measurements.scalar(COLUMNS[self.of])
        missing = np.isnan(entropy)
        details: dict[str, Detail] = {
            "standard deviation": float(entropy[~missing].std(ddof=1)) if (~missing).sum() > 1 else None
        }
        if self.of == "hidden":
            details["mean share of a state's own token"] = mean_of(measurements.scalar("influence.hidden.own_share"))
            details["mean share of its largest rival"] = mean_of(measurements.scalar("influence.hidden.rival_share"))
        return Evidence(
            value=mean_of(entropy),
            interval=mean_interval(
                entropy,
                Groups.of(measurements.instances, ~missing),
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=(0.0, 1.0),
            ),
            defined=~missing,
            undefined=reasons(
                ("a single token", missing & (measurements.lengths < 2)), ("influence is zero on every token", missing)
            ),
            values=entropy,
            values_label="normalised entropy per instance",
            values_range=(0.0, 1.0),
            details={**details, **by_predicted_class(measurements, entropy)},
        )
