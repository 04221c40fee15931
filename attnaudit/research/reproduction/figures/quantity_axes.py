"""The axes of strip plots. Quantities of the same kind, such as all accuracies of a table, have the same axis."""

from __future__ import annotations

from collections.abc import Sequence

from attnaudit.records import Record


class Axis(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An axis for one kind of number.

    Attributes:
        label: The label of the axis. Axes with the same label are the same axis.
        low: The largest number at which the axis may start.
        high: The smallest number at which the axis may end.
        otherwise: The largest number at which the axis may start if a number is below `low`. None if it is `low`.
    """

    label: str
    low: float = 0.0
    high: float = 0.0
    otherwise: float | None = None

    def start(self, numbers: Sequence[float]) -> float:
        """Return the number at which the axis starts if it shows these numbers."""
        lowest = min((self.low, *numbers))
        return min(lowest, self.otherwise) if self.otherwise is not None and lowest < self.low else lowest


#: The axis of quantities whose kind is not declared.
NUMBER = Axis(label="value")
ACCURACY = Axis(label="accuracy", low=0.5, high=1.0, otherwise=0.0)
F1 = Axis(label="F1", low=0.5, high=1.0, otherwise=0.0)
DROP = Axis(label="drop in F1")
TAU_B = Axis(label="Kendall τ-b", low=-1.0, high=1.0)
WEIGHTED_TAU = Axis(label="weighted τ", low=-1.0, high=1.0)
TAU_CHANGE = Axis(label="Δτ")
ENTROPY = Axis(label="normalised entropy H̃", high=1.0)
SHARE = Axis(label="share", high=1.0)
PROBABILITY = Axis(label="probability", high=1.0)
TVD = Axis(label="TVD")
JSD = Axis(label="JSD, nats (at most ln 2 = 0.693)", high=0.7)
INFORMATION = Axis(label="mutual information, nats")
TVD_PER_JSD = Axis(label="TVD per nat of JSD")
