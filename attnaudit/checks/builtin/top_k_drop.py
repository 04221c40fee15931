"""Does the answer become less probable without the most attended units? (Cohen-Wang et al. 2024)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.evidence import Mask, ReferenceValues
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference


@registered
@dataclass(frozen=True, kw_only=True)
class TopKDrop(PerInstanceCheck):
    """Mean over instances of the drop in log-probability without the k most attended units.

    The units, such as the sources of a prompt, are deleted. The probability is that of the predicted class, or of the
    target. An instance has no value if it has at most k units, or if all units have the same attention.

    Args:
        k: Number of units that are removed.
    """

    k: int = 1

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "pointing"
    title = "The answer needs the most attended parts of the input"
    question = "Does the output become less probable without the most attended units?"
    why = (
        "If attention is shown as a citation, readers conclude that the answer comes from the cited passages. This is "
        "wrong if the answer is as probable without these passages."
    )
    how_to_read = (
        "A drop of 0.7 nats means that the probability halves. If the answer does not need the units, the drop is "
        "0. Compare it with the drop without k random units."
    )
    unit = "nats"
    value_name = "mean top-k drop"
    bounds = (-np.inf, np.inf)
    worst = "lowest"
    threshold_references = ("random",)

    def validate(self) -> None:
        """Require that `k` is a whole number in its range."""
        self.require_count("k", 1, 1_000)

    @property
    def subject(self) -> str:
        return f"top_k_drop.{self.k}"

    @property
    def column(self) -> str:
        """The name of the column with the drops."""
        return f"top_k_drop.{self.k}"

    def needs(self) -> tuple[str, ...]:
        return ("attention", self.column)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar(self.column)

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        random = measurements.scalar(f"{self.column}.random")
        return (ReferenceValues("random", random, f"mean drop without {self.k} random units"),)

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (
            (f"at most {self.k} units", np.asarray(measurements.lengths <= self.k)),
            ("all units have the same attention", undefined),
        )
