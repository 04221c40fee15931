"""What measures and checks cost: the time, and how often rows ran through the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attnaudit.records.check_records import Record

#: The kinds of rows that are counted. A changed copy of a row is a row, too.
#:
#: * forward_rows: rows that ran through the whole model.
#: * resumed_rows: rows that ran through a part of the model, from known states of the unchanged row.
#: * reweighted_rows: rows whose output was computed from known hidden states with other attention weights.
#: * single_mask_rows: rows with a single masked (or unmasked) unit whose output was computed from known states.
#: * backward_rows: rows of which the gradient of one number was computed.
RowKind = Literal["forward_rows", "resumed_rows", "reweighted_rows", "single_mask_rows", "backward_rows"]


class Passes(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many passes of the model were needed. A pass is one row, or one changed copy of a row.

    Attributes:
        forward: The number of passes through the whole model.
        partial: The number of passes through a part of the model: with other attention weights for known hidden states,
            or from known states of the unchanged row.
        backward: The number of gradients. Each is the gradient of one number of one row, such as its output.
    """

    forward: int = 0
    partial: int = 0
    backward: int = 0

    @staticmethod
    def of(counts: Mapping[str, int]) -> Passes:
        """Return the passes, given kind of rows (see `RowKind`) -> number of rows. Other counts are ignored."""
        return Passes(
            forward=counts.get("forward_rows", 0),
            partial=sum(counts.get(kind, 0) for kind in ("resumed_rows", "reweighted_rows", "single_mask_rows")),
            backward=counts.get("backward_rows", 0),
        )


class MeasureCost(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of one measure, without the measures that it requires.

    Results that several measures use, such as the outputs under permuted weights, have entries of their own.

    Attributes:
        measure: The name of the measure, with its reading; or "shared: " and the name of a result that several measures
            use.
        needs: The entries of `MeasureRecord.needs` for which the measure or the result was computed: the measure
            itself, or measures that require or use it.
        seconds: The wall-clock time in seconds, added up over all shards.
        passes: Name of a call or kind of rows (see `MeasureRecord.passes`) -> how often it was done.
    """

    measure: str
    needs: list[str]
    seconds: float
    passes: dict[str, int]


class CheckCost(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of one check.

    Measures that several checks need are computed once, but they are included in the cost of each of these checks. The
    costs of the checks therefore do not add up, except those whose names begin with "own".

    Attributes:
        check: The id of the check.
        seconds: The wall-clock time, in seconds, of all measures that the check needs.
        own_seconds: The part of `seconds` that no other check needs: what an audit without this check would save.
        passes: The passes of all measures that the check needs.
        own_passes: The part of `passes` that no other check needs.
        models_trained: The number of models that were trained for the check. The passes of training are not counted.
    """

    check: str
    seconds: float
    own_seconds: float
    passes: Passes
    own_passes: Passes
    models_trained: int = 0
