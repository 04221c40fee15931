"""Does the output change when the attention weights are permuted? (Jain & Wallace 2019; Tutek & Šnajder 2020)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.builtin.fragility import Fragility
from attnaudit.disk_arrays.filed_arrays import written
from attnaudit.engine.measurements import Measurements

#: `draws` -> the measure that the check uses.
MEASURES = {"published": "permutation", "distinct": "rearrangement"}
#: The number of rows whose predictions are copied at once.
ROWS_AT_ONCE = 256


@registered
@dataclass(frozen=True, kw_only=True)
class PermutationFragility(Fragility):
    """Change of the output when the weights are permuted over the real tokens.

    With measure="tvd", the value is the mean over instances of the median total variation distance (TVD) over the
    permutations (Jain & Wallace 2019, §4.2.1). With measure="f1_drop", the value is the mean drop in F1 over the
    permutations (Tutek & Šnajder 2020, §3.2). It is undefined without labels. There are 100 permutations per instance,
    or 10 if `where` names whole layers. The other arguments are described in `Fragility` and `WhereReplaced`.

    Args:
        draws: Which permutations are used. "published": random permutations, as in the published code. Some of these
            change nothing: with two tokens, half of them. "distinct": only permutations that change the weights,
            and all such permutations if there are few. Texts with one token or with equal weights have no such
            permutation and are left out.
    """

    draws: Literal["published", "distinct"] = "published"

    measured_as = "permutation"
    replaced_by = "permutations"
    replacing = "Shuffling the attention weights over the tokens of a text"
    tvd_value_name = "mean of median TVD"
    f1_value_name = "mean drop in F1"

    def validate(self) -> None:
        self.require_choice("draws", MEASURES)
        super().validate()

    @property
    def column(self) -> str:
        return f"{MEASURES[self.draws]}{self.place}"

    @property
    def subject(self) -> str:
        return super().subject + (".distinct" if self.draws == "distinct" else "")

    @property
    def otherwise_undefined(self) -> str:
        return "a single token, or equal attention weights" if self.draws == "distinct" else super().otherwise_undefined

    def replaced_predictions(self, measurements: Measurements) -> Floats:
        rows = measurements.vector(f"{self.column}.predicted")
        width = max((len(row) for row in rows), default=1)

        def padded(first: int) -> Floats:
            some = rows[first : first + ROWS_AT_ONCE]
            block = np.full((len(some), width), np.nan)
            for i, row in enumerate(some):
                block[i, : len(row)] = row
            return block

        predictions: Floats = written(padded(first) for first in range(0, max(1, len(rows)), ROWS_AT_ONCE))
        return predictions
