"""Does the output change when every token gets the same weight? (Tutek & Šnajder 2020)"""

from __future__ import annotations

from dataclasses import dataclass

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.builtin.fragility import Fragility
from attnaudit.engine.measurements import Measurements


@registered
@dataclass(frozen=True, kw_only=True)
class UniformFragility(Fragility):
    """Change of the output when each of the n real tokens gets the weight 1/n. The model is not retrained.

    With measure="tvd", the value is the mean total variation distance (TVD) of the output. With measure="f1_drop", it
    is the drop in F1, which is undefined without labels. The other arguments are described in `Fragility` and
    `WhereReplaced`.
    """

    measured_as = "uniform"
    replaced_by = "uniform weights"
    replacing = "Giving all tokens of a text the same weight"

    def replaced_predictions(self, measurements: Measurements) -> Floats:
        return measurements.scalar(f"{self.column}.predicted")[:, None]
