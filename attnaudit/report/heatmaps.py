"""The worst instances as rows of coloured tokens: attention, feature importance and adversarial attention."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnaudit.formatting import number, plural, visible
from attnaudit.records import CheckRecord, UnitNames
from attnaudit.records.unit_names import TOKENS_OF_TEXTS, names_of
from attnaudit.report.pictures import EmbeddedPicture, PictureStore
from attnaudit.report.placed_units import PlacedRow, placed_row
from attnaudit.report.run_files import MeasuredInstance
from attnaudit.report.wording import column_name, shorten

#: Texts with at most this many tokens are shown in full.
MOST_TOKENS = 80
#: Of longer texts, about this many tokens are shown.
EXCERPT_TOKENS = 60
#: How many tokens are shown on each side of a large value in an excerpt.
CONTEXT_TOKENS = 4
#: How many of the largest values of a row are written under their tokens. The text of _instances.html.j2 gives the same
#: number.
NUMBERED_TOKENS = 3
#: The darkest tokens have at least this many times the share of n equal tokens.
STRONG = 6.0
#: A token with more characters than this is shortened.
LONGEST_TOKEN = 28
#: The same limit for a unit of several words, such as a passage.
LONGEST_PASSAGE = 160

#: The columns with the class probabilities, and with the logits under several rearrangements, one after the other.
PROBABILITIES, REARRANGED = "probabilities", "rearrangement.centred_logits"
OUTPUT_COLUMNS = (PROBABILITIES, REARRANGED)
KINDS = ("gradient", "leave_one_out", "adversarial")
#: The preferred column of each kind in KINDS.
PREFERRED_COLUMNS = ("gradient.meister.inputs", "leave_one_out.inputs", "adversarial.0.01.attention")
#: The note of a row whose column the run did not measure.
NOT_MEASURED = "not measured in this run"
KIND_NAMES = {"gradient": "Gradient", "leave_one_out": "Leave-one-out", "adversarial": "Adversarial attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCell:
    """One token of a row.

    Attributes:
        text: The token, shortened if it is long, with invisible characters made visible.
        tooltip: The value and the position of the token in words.
        heat: How dark the token is, from 0 to 1 (see `darkest_share`).
        negative: Whether the value is below 0.
        value: The value as text.
        number: The value if it is one of the largest in the row; otherwise "".
        skipped: Number of tokens that are left out directly before this one.
    """

    text: str
    tooltip: str
    heat: float
    negative: bool
    value: str
    number: str
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One measured column over the tokens of an instance.

    Attributes:
        name: The name of the column in words.
        hue: The colour of the row: "attention", "importance" or "adversarial".
        largest: The largest absolute value in the row, as text.
        cells: The tokens that are shown.
        skipped_at_end: Number of tokens that are left out after the last one that is shown.
        note: Why the column cannot be drawn; "" if it can. A row with a note has no cells.
        placed: The tokens at their places in the picture or the recording; None for a text.
    """

    name: str
    hue: str
    largest: str = ""
    cells: tuple[TokenCell, ...] = ()
    skipped_at_end: int = 0
    note: str = ""
    placed: PlacedRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heatmap:
    """One instance, with a row of tokens for each column.

    Attributes:
        instance: The id of the instance.
        value: The value of the check on the instance, as text.
        label: The label of the instance; None if it has none.
        predicted: The predicted class; "" if it is unknown.
        outputs: The probability of the predicted class, and its range under rearranged attention weights, in words; ""
            if the run did not measure them.
        tokens: Number of tokens of the instance.
        shown_tokens: Number of tokens that each row shows.
        rows: One row per column.
        direction: "rtl" if most letters of the tokens are written from right to left, otherwise "ltr".
        note: Why the instance cannot be drawn; "" if it can. An instance with a note has no rows.
        layout: How the rows are drawn: as "text", over the "picture", or over a "timeline".
        picture: The picture; None unless the layout is "picture".
        names: The names of the units and rows.
    """

    instance: str
    value: str
    label: str | None
    predicted: str
    tokens: int
    shown_tokens: int
    rows: tuple[TokenRow, ...]
    outputs: str = ""
    direction: str = "ltr"
    note: str = ""
    layout: Literal["text", "picture", "timeline"] = "text"
    picture: EmbeddedPicture | None = None
    names: UnitNames = TOKENS_OF_TEXTS

    @property
    def not_measured(self) -> list[str]:
        """The names of the rows that the run did not measure."""
        return [row.name for row in self.rows if row.note == NOT_MEASURED]


def columns_to_show(check: CheckRecord, measured: Iterable[str]) -> list[str]:
    """Choose the columns to draw for a check.

    These are attention, at least one column of each kind in KINDS, and all columns that the check names.

    Args:
        check: The check.
        measured: The names of the columns that the run measured.

    Returns:
        The names of the columns. If the check names a column of a kind, no other column of this kind is added. If no
        column of a kind was measured, the name of the kind is listed instead of a column.
    """
    available = set(measured)
    columns = [next((name for name in check.token_columns if name.split("/")[0] == "attention"), "attention")]
    at_hidden = any(name.split("/")[0].endswith(".hidden") for name in (*check.token_columns, check.check))
    for kind, preferred in zip(KINDS, PREFERRED_COLUMNS, strict=True):
        named = [name for name in check.token_columns if name.split(".")[0] == kind]
        if not named:
            endings = ".attention" if kind == "adversarial" else (".hidden", ".inputs")
            of_kind = sorted(name for name in available if name.split(".")[0] == kind and name.endswith(endings))
            order = (preferred.replace(".inputs", ".hidden"), preferred) if at_hidden else (preferred,)
            named = [name for name in order if name in available][:1] or of_kind[:1] or [kind]
        columns += named
    columns += check.token_columns
    return list(dict.fromkeys(columns))


def positions(columns: Sequence[Sequence[float | None]], count: int) -> list[int]:
    """Choose which tokens to show.

    Args:
        columns: The columns to draw. Each has `count` values.
        count: The number of tokens.

    Returns:
        The positions of the tokens in ascending order. For a short text, these are all positions. For a long text, they
        are the positions of the largest values of each column, and of some tokens around them.
    """
    if count <= MOST_TOKENS:
        return list(range(count))
    chosen: set[int] = set()
    orders = [_largest_first(values) for values in columns] or [list(range(count))]
    for rank in range(NUMBERED_TOKENS):
        for order in orders:
            near = set(range(max(0, order[rank] - CONTEXT_TOKENS), min(count, order[rank] + CONTEXT_TOKENS + 1)))
            if chosen and len(chosen | near) > EXCERPT_TOKENS:
                continue
            chosen |= near
    return sorted(chosen)


def darkest_share(count: int) -> float:
    """Return the share of the row's sum that a token must have to get the darkest colour.

    If all `count` tokens had equal values, each would have the share 1 / count. The darkest colour needs STRONG times
    this share, or 1 if that is less. All rows of an instance use this scale, so that a colour means the same share in
    every row. If all weights are equal, the tokens stay light.
    """
    return min(1.0, STRONG / count) if count else 1.0


def heats(values: Sequence[float | None]) -> list[float]:
    """Return how dark each token of a row is, from 0 to 1 (see `darkest_share`)."""
    total, darkest = sum(map(_size, values)), darkest_share(len(values))
    return [round(min(1.0, _size(value) / total / darkest), 2) if total else 0.0 for value in values]


def token_row(
    name: str, values: Sequence[float | None], tokens: Sequence[str], shown: Sequence[int], unit: str = "token"
) -> TokenRow:
    """Return the row of one column over the tokens of an instance.

    Args:
        name: The name of the column.
        values: One value per token of the instance; None where undefined.
        tokens: All tokens of the instance.
        shown: The positions of the tokens to show, in ascending order.
        unit: The name of a unit.
    """
    largest, heat = max(map(_size, values), default=0.0), heats(values)
    numbered = {i for i in _largest_first(values)[:NUMBERED_TOKENS] if _size(values[i]) > 0}
    cells = []
    previous = -1
    for i in shown:
        value = values[i]
        cells.append(
            TokenCell(
                text=_token_text(tokens[i]),
                tooltip=_tooltip(tokens[i], value, position=i, unit=unit),
                heat=heat[i],
                negative=value is not None and value < 0,
                value=number(value, digits=4) if value is not None and math.isfinite(value) else "undefined",
                number=number(value, digits=2) if i in numbered else "",
                skipped=i - previous - 1,
            )
        )
        previous = i
    return TokenRow(
        name=column_name(name),
        hue=_hue(name),
        largest=number(largest),
        cells=tuple(cells),
        skipped_at_end=len(tokens) - previous - 1,
    )


def heatmap(
    check: CheckRecord,
    instance_id: str,
    value: float,
    instance: MeasuredInstance | None,
    measured: Iterable[str],
    *,
    classes: Sequence[str],
    file_absent: bool,
    pictures: PictureStore | None = None,
) -> Heatmap:
    """Return the heatmap of one instance. If a row cannot be drawn, its note gives the reason.

    Args:
        check: The check.
        instance_id: The id of the instance.
        value: The value of the check on the instance.
        instance: The measurements of the instance; None if the run folder does not contain them.
        measured: The names of the columns that the run measured.
        classes: The class names, in the order of the logits.
        file_absent: Whether the run folder has no measurements.parquet.
        pictures: The pictures that the report embeds; None to embed none.
    """
    names_of_units = names_of(check.unit_names)
    if instance is None or not instance.tokens:
        units = names_of_units.units
        return Heatmap(
            instance=instance_id,
            value=number(value),
            label=instance.label if instance else None,
            predicted=instance.predicted if instance else "",
            tokens=0,
            shown_tokens=0,
            rows=(),
            note=f"measurements.parquet is not in this folder, so the {units} cannot be shown."
            if file_absent
            else f"measurements.parquet holds no {units} of this instance.",
            names=names_of_units,
        )
    available = set(measured)
    count = len(instance.tokens)
    layout: Literal["text", "picture", "timeline"] = "text"
    picture = None
    if len(instance.boxes) == count:
        layout, picture = "picture", (pictures or PictureStore()).of(instance.file, instance.file_sha256)
    elif len(instance.times) == count:
        layout = "timeline"
    names = columns_to_show(check, available)
    notes = {name: _why_not_drawn(name, instance, available, names_of_units) for name in names}
    drawable = {name: values for name in names if not notes[name] and (values := instance.columns.get(name))}
    shown = positions(list(drawable.values()), count)
    rows = []
    for name in names:
        if name in drawable:
            row = token_row(name, drawable[name], instance.tokens, shown, names_of_units.unit)
            if layout != "text":
                aspect = picture.aspect if picture else 1.0
                row = replace(row, placed=_placed(row.name, drawable[name], instance, layout, aspect))
        else:
            row = TokenRow(name=KIND_NAMES.get(name, column_name(name)), hue=_hue(name), note=notes[name])
        rows.append(row)
    return Heatmap(
        layout=layout,
        picture=picture,
        instance=instance_id,
        value=number(value),
        label=instance.label,
        predicted=instance.predicted,
        outputs=_outputs(instance, classes),
        direction=direction_of(instance.tokens),
        tokens=count,
        shown_tokens=len(shown),
        rows=tuple(rows),
        names=names_of_units,
    )


def _why_not_drawn(name: str, instance: MeasuredInstance, available: Collection[str], names: UnitNames) -> str:
    """Return why a column of an instance cannot be drawn; "" if it can."""
    if name not in available:
        return NOT_MEASURED
    values, count = instance.columns.get(name), len(instance.tokens)
    if values is None or not any(v is not None and math.isfinite(v) for v in values):
        return "undefined for this instance"
    if len(values) != count:
        return f"has {plural(len(values), 'number')} for {names.count_of_units(count)}"
    return ""


def _placed(
    name: str, values: Sequence[float | None], instance: MeasuredInstance, layout: str, aspect: float
) -> PlacedRow:
    boxes = instance.boxes if layout == "picture" else ()
    times = instance.times if layout == "timeline" else ()
    return placed_row(name, values, instance.tokens, heats=heats(values), boxes=boxes, times=times, aspect=aspect)


def _outputs(instance: MeasuredInstance, classes: Sequence[str]) -> str:
    """Return the probability of the predicted class before and after the attention weights are rearranged, in words."""
    before = instance.columns.get(PROBABILITIES)
    # Without a prediction, the output is not a decision, and the second class is the target.
    shown = instance.predicted or (classes[1] if len(classes) == 2 else "")
    if shown not in classes or before is None or len(before) != len(classes):
        return ""
    index = classes.index(shown)
    now = before[index]
    if now is None:
        return ""
    text = f"probability {number(now, digits=3)}" if instance.predicted else f"{shown}: {number(now, digits=3)}"
    logits = [math.nan if x is None else x for x in instance.columns.get(REARRANGED) or ()]
    rows = [logits[start : start + len(classes)] for start in range(0, len(logits), len(classes))]
    after = sorted(_softmax(row)[index] for row in rows if len(row) == len(classes) and all(map(math.isfinite, row)))
    if not after:
        return text
    low, high = number(after[0], digits=3), number(after[-1], digits=3)
    return f"{text}; with rearranged weights {low}" + (f" to {high}" if high != low else "")


def direction_of(tokens: Sequence[str]) -> str:
    """Return "rtl" if most letters of the tokens are written from right to left, otherwise "ltr"."""
    classes = Counter(unicodedata.bidirectional(letter) for token in tokens for letter in token)
    return "rtl" if classes["R"] + classes["AL"] > classes["L"] else "ltr"


def _softmax(logits: Sequence[float]) -> list[float]:
    largest = max(logits)
    exponentials = [math.exp(one - largest) for one in logits]
    total = sum(exponentials)
    return [one / total for one in exponentials]


def _size(value: float | None) -> float:
    return abs(value) if value is not None and math.isfinite(value) else 0.0


def _largest_first(values: Sequence[float | None]) -> list[int]:
    """Return the positions of the values, sorted by absolute value, largest first. Undefined values count as 0."""
    return sorted(range(len(values)), key=lambda i: -_size(values[i]))


def _hue(name: str) -> str:
    kind = name.split(".")[0]
    hues = {"attention": "attention", "attended_tokens": "attention", "adversarial": "adversarial"}
    return hues.get(kind, "importance")


def _token_text(token: str) -> str:
    """Shorten a token to LONGEST_TOKEN or LONGEST_PASSAGE characters.

    White space and invisible characters are replaced with symbols.
    """
    text = visible(token.replace("\n", "⏎").replace("\t", "⇥"))
    if not text.strip():
        return "␣" * max(1, min(len(text), 3))
    return shorten(text, _limit(token))


def _limit(token: str) -> int:
    """Return how many characters of a token are shown."""
    return LONGEST_PASSAGE if " " in token.strip() else LONGEST_TOKEN


def _tooltip(token: str, value: float | None, *, position: int, unit: str) -> str:
    """Return the value and the position of a token in words, after the full token if the row shortens it."""
    text = number(value, digits=4) if value is not None and math.isfinite(value) else "undefined"
    full = f"{visible(token[:200])}: " if len(token) > _limit(token) else ""
    return f"{full}{text}, {unit} {position + 1}"
