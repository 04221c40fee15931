"""Does the output change when the attention weights are permuted? (Jain & Wallace 2019; Tutek & Šnajder 2020)"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.fragility import Fragility
from attnaudit.engine.measurements import Measurements


@registered
@dataclass(frozen=True, kw_only=True)
class PermutationFragility(Fragility):
    """Change of the output when the weights are permuted over the real tokens.

    With measure="tvd", the value is the mean over instances of the median TVD over the permutations (Jain & Wallace
    2019, §4.2.1). With measure="f1_drop", it is the mean drop in F1 over the permutations (Tutek & Šnajder 2020, §3.2),
    which is undefined without labels. There are 100 permutations per instance, or 10 if `where` names whole layers. The
    other arguments are described in `Fragility`.
    """

    measured_as = "permutation"
    replaced_by = "permutations"
    tvd_value_name = "mean of median TVD"
    f1_value_name = "mean drop in F1"

    def replaced_predictions(self, measurements: Measurements) -> Floats:
        rows = measurements.vector(f"{self.column}.predicted")
        width = max((len(row) for row in rows), default=1)
        predictions = np.full((len(rows), width), np.nan)
        for i, row in enumerate(rows):
            predictions[i, : len(row)] = row
        return predictions
