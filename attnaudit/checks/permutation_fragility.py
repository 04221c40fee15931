"""Does it matter which token receives which weight? (Jain & Wallace 2019; Tutek & Šnajder 2020)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.fragility import Fragility
from attnaudit.engine.measurements import Measurements


@registered
@dataclass(frozen=True, kw_only=True)
class PermutationFragility(Fragility):
    """The weights are shuffled over the real tokens: R = 100 times per instance, 10 times where whole layers are.

    measure: "tvd" is the mean over instances of the per-instance median TVD over the shuffles (JW); "f1_drop" is the
    fall of F1, mean over the shuffles (T), undefined without labels.
    """

    replaced_by: ClassVar[str] = "permutations"
    kind: ClassVar[str] = "permutation"
    tvd_words: ClassVar[str] = "mean of median TVD"
    f1_words: ClassVar[str] = "mean drop in F1"

    def replaced_predictions(self, measurements: Measurements) -> Floats:
        rows = measurements.vector(f"{self.column}.predicted")
        width = max((len(row) for row in rows), default=1)
        found = np.full((len(rows), width), np.nan)
        for i, row in enumerate(rows):
            found[i, : len(row)] = row
        return found
