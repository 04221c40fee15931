"""Does attention predict how much the output loses without some of the units? (Cohen-Wang et al. 2024)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.evidence import Mask, ReferenceValues, single_token
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference


@registered
@dataclass(frozen=True, kw_only=True)
class LinearDatamodellingScore(PerInstanceCheck):
    """Mean over instances of the linear datamodelling score of attention.

    The score is computed over random subsets of the units, such as the sources of a prompt. It is Spearman's
    correlation between two numbers of each subset: the sum of its attention weights, and the log-odds of the prediction
    if all other units are deleted. An instance has no value if it has a single unit, if all units have the same
    attention, or if no removal changes the output.

    Args:
        subsets: Number of random subsets per instance. If there are at most this many non-empty subsets, each of them
            is used once.
    """

    subsets: int = 32

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "pointing"
    title = "Attention predicts what is lost when parts of the input are left out"
    question = "Does attention predict how the output changes when some of the units are removed?"
    why = (
        "If attention is shown as a citation, readers conclude that the answer would change without the cited passages "
        "and stay the same without the others. The score tests this conclusion on many subsets at once."
    )
    how_to_read = (
        "The score is a rank correlation. At 1, a subset with more attention always gives a more probable answer; at "
        "0, attention says nothing about the effect of a removal. Compare it with the score of equal weights, which "
        "depends only on the number of units that are kept."
    )
    unit = "Spearman's ρ"
    value_name = "mean linear datamodelling score"
    bounds = (-1.0, 1.0)
    worst = "lowest"
    threshold_references = ("uniform",)

    def validate(self) -> None:
        """Require that `subsets` is a whole number in its range."""
        self.require_count("subsets", 2, 10_000)

    @property
    def subject(self) -> str:
        return f"linear_datamodelling_score.{self.subsets}"

    @property
    def column(self) -> str:
        """The name of the column with the scores."""
        return f"datamodel_score.{self.subsets}"

    def needs(self) -> tuple[str, ...]:
        return ("attention", self.column)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar(self.column)

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        uniform = measurements.scalar(f"{self.column}.uniform")
        return (
            ReferenceValues(
                "uniform",
                uniform,
                "the score of equal weights, which depends only on the number of units that are kept",
            ),
        )

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (
            single_token(measurements),
            ("all units have the same attention, or no removal changes the output", undefined),
        )
