"""Does a hidden state, or the prediction, depend on a few tokens or on all of them? (Meister et al. 2021, §4)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.evidence import Detail, Mask, mean_of, single_token, standard_deviation
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction

COLUMNS = {
    "hidden": "influence.hidden.entropy",
    "gradient": "entropy.gradient.meister.inputs",
    "leave_one_out": "entropy.leave_one_out.inputs",
}
INFLUENCES = {
    "hidden": "the inputs' influence on a hidden state",
    "gradient": "the gradient of the prediction",
    "leave_one_out": "leave-one-out",
}


@registered
@dataclass(frozen=True, kw_only=True)
class InfluenceEntropy(PerInstanceCheck):
    """Mean over instances of the normalised entropy -Σ p log p / log n of influence on the n real tokens.

    Here, p is the share of a token in the total influence. A low entropy is good. An instance has no value if it has a
    single token, or if no token has any influence.

    Args:
        of: Which influence is measured. "hidden": the influence of each input on a hidden state, with the entropy
            averaged over all hidden states (Meister et al. 2021, eq. 5). "gradient": the norm of the gradient of the
            prediction at each input. "leave_one_out": the change of the prediction when an input token is deleted.
    """

    of: Literal["hidden", "gradient", "leave_one_out"] = "hidden"

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)
    needs_all_units: ClassVar[str] = "the entropy depends on the share of every unit in the total influence"

    family = "influence"
    how_to_read = (
        "Normalised entropy runs from 0, where all influence comes from one token, to 1, where every token has the "
        "same influence. The nearer the value is to 1, the less a weight says about any single token."
    )
    unit = "normalised entropy"
    bounds = (0.0, 1.0)
    worst = "highest"

    def validate(self) -> None:
        self.require_choice("of", COLUMNS)

    @property
    def subject(self) -> str:
        return "influence_entropy.hidden" if self.of == "hidden" else f"influence_{COLUMNS[self.of]}"

    @property
    def title(self) -> str:
        return f"Entropy of {INFLUENCES[self.of]}"

    @property
    def question(self) -> str:
        if self.of == "hidden":
            return "Does a hidden state represent one token, so that attention to it points at that token?"
        return f"Does {INFLUENCES[self.of]} single out a few tokens?"

    @property
    def why(self) -> str:
        if self.of == "hidden":
            return (
                "Attention gives weights to hidden states, not to tokens. If a state mixes all tokens evenly, a large "
                "weight on it says little about the token at its position. Low entropy alone is not enough: check "
                "also that a state's own token has a large share."
            )
        return "An explanation that names a few tokens can be right only if the prediction depends on a few tokens."

    def needs(self) -> tuple[str, ...]:
        return ("influence.hidden",) if self.of == "hidden" else (COLUMNS[self.of],)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar(COLUMNS[self.of])

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        details: dict[str, Detail] = {"standard deviation": standard_deviation(values)}
        if self.of == "hidden":
            details["mean share of influence from the state's own token"] = mean_of(
                measurements.scalar("influence.hidden.own_share")
            )
            details["mean of the largest share from another token"] = mean_of(
                measurements.scalar("influence.hidden.rival_share")
            )
        return details

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (single_token(measurements), ("no token has an influence that exceeds rounding errors", undefined))
