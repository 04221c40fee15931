"""The axes of strip plots. Quantities of the same kind, such as all accuracies of a table, have the same axis."""

from __future__ import annotations

from attnaudit.records import Record


class Axis(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An axis for one kind of number.

    Attributes:
        label: The label of the axis. Axes with the same label are the same axis.
        low: The largest number at which the axis may start.
        high: The smallest number at which the axis may end.
    """

    label: str
    low: float = 0.0
    high: float = 0.0


#: The axis of quantities whose kind is not declared.
NUMBER = Axis(label="value")
ACCURACY = Axis(label="accuracy", high=1.0)
F1 = Axis(label="F1", high=1.0)
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
