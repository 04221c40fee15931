"""Worst instances as lines of coloured tokens: attention beside the importance measures and the adversary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnaudit.formatting import number, visible
from attnaudit.records import CheckRecord
from attnaudit.report.run_files import ShownInstance
from attnaudit.report.wording import column

WHOLE = 80  # texts up to this many tokens are shown whole
WINDOW = 60  # of longer ones, about this many
AROUND = 4
NUMBERED = 3
LONGEST = 28

FIRST_CHOICE = ("gradient.meister.inputs", "leave_one_out.inputs", "adversarial.0.01.attention")
KINDS = ("gradient", "leave_one_out", "adversarial")
KIND_NAMES = {"gradient": "Gradient", "leave_one_out": "Leave-one-out", "adversarial": "Adversarial attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One token. heat: |value| as a share of the line's largest. skipped: tokens left out before this one."""

    text: str
    title: str
    heat: float
    negative: bool
    number: str
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measured column over the tokens. note stands in the place of the tokens when there is nothing to show."""

    name: str
    hue: str
    peak: str = ""
    pieces: tuple[Piece, ...] = ()
    left: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heatmap:
    instance: str
    value: str
    label: str | None
    predicted: str
    tokens: int
    shown: int
    lines: tuple[Line, ...]
    note: str = ""


def columns_to_show(check: CheckRecord, measured: Iterable[str]) -> list[str]:
    """Attention, gradient, leave-one-out and adversarial attention, and what the check itself names.

    A kind that the check names is not added a second time; a kind that was not measured is listed by its bare name.
    """
    available = set(measured)
    chosen = [next((name for name in check.token_columns if name.split("/")[0] == "attention"), "attention")]
    hidden = any(name.split("/")[0].endswith(".hidden") for name in (*check.token_columns, check.check))
    for kind, first in zip(KINDS, FIRST_CHOICE, strict=True):
        named = [name for name in check.token_columns if name.split(".")[0] == kind]
        if not named:
            ends = ".attention" if kind == "adversarial" else (".hidden", ".inputs")
            of_kind = sorted(n for n in available if n.split(".")[0] == kind and n.endswith(ends))
            order = (first.replace(".inputs", ".hidden"), first) if hidden else (first,)
            named = [name for name in order if name in available][:1] or of_kind[:1] or [kind]
        chosen += named
    chosen += check.token_columns
    return list(dict.fromkeys(chosen))


def positions(rows: Sequence[Sequence[float | None]], count: int) -> list[int]:
    """Which tokens to show: all of a short text; of a long one the surroundings of each line's heaviest tokens."""
    if count <= WHOLE:
        return list(range(count))
    kept: set[int] = set()
    ranked = [sorted(range(count), key=lambda i, row=row: -_size(row[i])) for row in rows]  # type: ignore[misc]
    for rank in range(NUMBERED):
        for order in ranked or [list(range(count))]:
            near = set(range(max(0, order[rank] - AROUND), min(count, order[rank] + AROUND + 1)))
            if len(kept | near) > WINDOW and kept:
                continue
            kept |= near
    return sorted(kept)


def _size(value: float | None) -> float:
    return abs(value) if value is not None and math.isfinite(value) else 0.0


def _hue(name: str) -> str:
    kind = name.split(".")[0]
    return {"attention": "attention", "adversarial": "adversarial"}.get(kind, "importance")


def _token(text: str) -> str:
    shown = visible(text.replace("\n", "⏎").replace("\t", "⇥"))
    if not shown.strip():
        return "␣" * max(1, min(len(shown), 3))
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def line(name: str, values: Sequence[float | None], tokens: Sequence[str], at: Sequence[int]) -> Line:
    """A column over the tokens at these places."""
    sizes = [_size(v) for v in values]
    peak = max(sizes, default=0.0)
    top = set(sorted((i for i in range(len(sizes)) if sizes[i] > 0), key=lambda i: -sizes[i])[:NUMBERED])
    pieces = []
    before = -1
    for i in at:
        value = values[i]
        says = number(value, digits=4) if value is not None and math.isfinite(value) else "undefined"
        full = f"{visible(tokens[i][:200])}: {says}" if len(tokens[i]) > LONGEST else says
        pieces.append(
            Piece(
                text=_token(tokens[i]),
                title=f"{full}, token {i + 1}",
                heat=round(sizes[i] / peak, 2) if peak else 0.0,
                negative=value is not None and value < 0,
                number=number(value, digits=2) if i in top else "",
                skipped=i - before - 1,
            )
        )
        before = i
    return Line(
        name=column(name), hue=_hue(name), peak=number(peak), pieces=tuple(pieces), left=len(tokens) - before - 1
    )


def heatmap(
    check: CheckRecord,
    instance: str,
    value: float,
    shown: ShownInstance | None,
    measured: Iterable[str],
    *,
    absent: bool,
) -> Heatmap:
    """The lines of one instance; each column that cannot be drawn says why."""
    if shown is None or not shown.tokens:
        note = (
            "measurements.parquet is not in this folder, so the tokens cannot be shown."
            if absent
            else "measurements.parquet holds no tokens of this instance."
        )
        return Heatmap(
            instance=instance, value=number(value), label=shown.label if shown else None,
            predicted=shown.predicted if shown else "", tokens=0, shown=0, lines=(), note=note,
        )  # fmt: skip
    available = set(measured)
    count = len(shown.tokens)
    drawn = {}
    notes = {}
    for name in columns_to_show(check, available):
        values = shown.columns.get(name)
        if name not in available:
            notes[name] = "not measured in this run"
        elif values is None or not any(v is not None and math.isfinite(v) for v in values):
            notes[name] = "undefined for this instance"
        elif len(values) != count:
            notes[name] = f"holds {len(values)} numbers for {count} tokens"
        else:
            drawn[name] = values
    at = positions(list(drawn.values()), count)
    lines = [
        line(name, drawn[name], shown.tokens, at)
        if name in drawn
        else Line(name=KIND_NAMES.get(name, column(name)), hue=_hue(name), note=notes[name])
        for name in columns_to_show(check, available)
    ]
    return Heatmap(
        instance=instance, value=number(value), label=shown.label, predicted=shown.predicted,
        tokens=count, shown=len(at), lines=tuple(lines),
    )  # fmt: skip
