"""Does it matter that attention is not uniform? (Tutek & Šnajder 2020)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.fragility import Fragility
from attnaudit.engine.measurements import Measurements


@registered
@dataclass(frozen=True, kw_only=True)
class UniformFragility(Fragility):
    """Every real token is given the weight 1/n after training, hidden states fixed.

    measure: "tvd" is the mean TVD of the output; "f1_drop" is the fall of F1, undefined without labels.
    """

    replaced_by: ClassVar[str] = "uniform weights"
    kind: ClassVar[str] = "uniform"

    def replaced_predictions(self, measurements: Measurements) -> Floats:
        return measurements.scalar(f"{self.column}.predicted")[:, None]
