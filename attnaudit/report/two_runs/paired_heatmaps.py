"""Instances under two models: the attention weights of both over the same text, one below the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.records import CheckRecord, UnitNames
from attnaudit.records.unit_names import TOKENS_OF_TEXTS
from attnaudit.report.heatmaps import TokenRow, direction_of, positions, token_row
from attnaudit.report.run_files import MeasuredInstance
from attnaudit.report.wording import column_name

NOT_DRAWN = "undefined or not measured on this instance"
ROLES = ("base", "candidate")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedMap:
    """One instance under both models.

    Attributes:
        instance: The id of the instance.
        change: What changed on the instance, as text.
        label: The label of the instance; None if it has none.
        predicted: The class that each model predicts, the base model first; "" if it is unknown.
        same_tokens: Whether both models split the text into the same tokens.
        tokens: The number of tokens of the instance for each model.
        shown_tokens: The number of tokens that are shown for each model.
        rows: Pairs of a model ("base" or "candidate") and one of its rows. The rows of both models for the same
            column, such as "attention", are next to each other. In all rows, a colour means the same share (see
            `darkest_share`).
        direction: "rtl" if most letters of the text are written from right to left, otherwise "ltr".
        names: The names of the units and rows.
    """

    instance: str
    change: str
    label: str | None
    predicted: tuple[str, str]
    same_tokens: bool
    tokens: tuple[int, int]
    shown_tokens: tuple[int, int]
    rows: tuple[tuple[str, TokenRow], ...]
    direction: str
    names: UnitNames = TOKENS_OF_TEXTS


def columns_of(check: CheckRecord, measured: Sequence[set[str]]) -> list[str]:
    """Return the columns to draw for a check: attention, and the first other column that the check names.

    Args:
        check: The record of the check in the candidate run.
        measured: The names of the columns that each run measured.
    """
    attention = next((name for name in check.token_columns if name.split("/")[0] == "attention"), "attention")
    others = [name for name in check.token_columns if name != attention and all(name in known for known in measured)]
    return [attention, *others[:1]]


def paired_map(
    instance_id: str,
    change: str,
    both: Sequence[MeasuredInstance | None],
    columns: Sequence[str],
    names: UnitNames = TOKENS_OF_TEXTS,
) -> PairedMap:
    """Return one instance under both models. A row that cannot be drawn has a note instead.

    Args:
        instance_id: The id of the instance.
        change: What changed on the instance, as text.
        both: The measurements of the instance in the base run and in the candidate run; None if a file lacks it.
        columns: The names of the columns to draw.
        names: The names of the units and rows.
    """
    one, other = (instance or MeasuredInstance(label=None, predicted="") for instance in both)
    same = one.tokens == other.tokens
    drawable = {
        (name, i): values
        for name in columns
        for i, instance in enumerate((one, other))
        if (values := instance.columns.get(name)) is not None
        and len(values) == len(instance.tokens) > 0
        and any(value is not None and math.isfinite(value) for value in values)
    }
    shown = [
        positions([values for (_, j), values in drawable.items() if same or j == i], len(instance.tokens))
        for i, instance in enumerate((one, other))
    ]
    rows = []
    for name in columns:
        for i, instance in enumerate((one, other)):
            row = (
                token_row(name, drawable[name, i], instance.tokens, shown[i], names.unit)
                if (name, i) in drawable
                else TokenRow(name=column_name(name), hue="attention", note=NOT_DRAWN)
            )
            rows.append((ROLES[i], row))
    return PairedMap(
        instance=instance_id,
        change=change,
        label=other.label if other.label is not None else one.label,
        predicted=(one.predicted, other.predicted),
        same_tokens=same,
        tokens=(len(one.tokens), len(other.tokens)),
        shown_tokens=(len(shown[0]), len(shown[1])),
        rows=tuple(rows),
        direction=direction_of(one.tokens or other.tokens),
        names=names,
    )
