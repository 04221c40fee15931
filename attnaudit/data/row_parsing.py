"""From rows, whichever file they came from, to instances: the meaning of the columns, and what is refused."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Final

from attnaudit.errors import DataError
from attnaudit.instances import Instance

Row = tuple[int, Mapping[str, object]]
"""The number that a user sees for the row in the file, and its cells."""


class Column(StrEnum):
    """The columns that are read; any other is ignored."""

    TEXT = "text"
    LABEL = "label"
    QUERY = "query"
    ID = "id"
    SOURCE = "source"


_USUAL_TEXT_COLUMNS: Final = ("sentence", "review", "content", "comment", "body", "document", "tweet", "premise")
_FRACTION: Final = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?", re.ASCII)
_INTEGER: Final = re.compile(r"-?\d+", re.ASCII)


def check_columns(columns: Iterable[str], where: str, *, hint: str = "") -> None:
    """Raise DataError when `text` is missing, or when another column is nearly called `label` or `query`."""
    names = list(columns)
    folded = {name.strip().casefold(): name for name in names}
    for column in (Column.LABEL, Column.QUERY):  # unread, these would silently change what is audited
        near = next((folded[name] for name in difflib.get_close_matches(column, list(folded), n=1, cutoff=0.8)), None)
        if near is not None and column not in names:
            raise DataError(f"{where}: column {near!r} is not read. Rename it to '{column}' (exactly, in lower case).")
    if Column.TEXT in names:
        return
    likely = difflib.get_close_matches("text", list(folded), n=1, cutoff=0.5)
    likely = likely or [usual for usual in _USUAL_TEXT_COLUMNS if usual in folded]
    mend = f"Rename {folded[likely[0]]!r} to 'text'" if likely else "Name the column that holds the text 'text'"
    shown = ", ".join(repr(shorten(name)) for name in names[:8]) + (", ..." if len(names) > 8 else "")
    raise DataError(
        f"{where}: column 'text' is missing. Expected columns text and, as wished, label, query, id, source; "
        f"found {shown or 'none'}. {mend}.{hint}"
    )


def shorten(text: str, limit: int = 40) -> str:
    """`text`, cut to `limit` characters for a message."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def to_instances(rows: Sequence[Row], name: str, *, text_rules: bool = False) -> tuple[Instance, ...]:
    """Instances of checked rows. name: how messages call the file or data set.

    text_rules: every cell is text (CSV), so that a label such as "0.5" is a number, and an empty cell is no value.
    Rows without an `id` get one derived from their content, which does not depend on the order of the rows.
    Raises DataError on the first row that cannot be meant, and when there is no row.
    """
    instances: list[Instance] = []
    has_id: tuple[str, bool] | None = None
    for number, row in rows:
        where = f"{name}:{number}"
        identifier = _identifier(row.get(Column.ID), where) if Column.ID in row else None
        if has_id is not None and has_id[1] != (identifier is not None):
            raise DataError(
                f"{where}: column 'id' is {'filled' if identifier is not None else 'missing'} here, unlike in "
                f"{has_id[0]}. Give every row an id, or drop the column: ids are then derived from the content."
            )
        has_id = (where, identifier is not None)
        instances.append(
            Instance(
                id=identifier or "",
                text=_text(row.get(Column.TEXT), where),
                label=_label(row.get(Column.LABEL), where, text_rules=text_rules),
                query=_optional_text(row.get(Column.QUERY), where, Column.QUERY),
                source=_optional_text(row.get(Column.SOURCE), where, Column.SOURCE, integers=True),
                where=where,
            )
        )
    if has_id is not None and not has_id[1]:
        instances = _with_derived_ids(instances)
    return checked_instances(instances, name)


def checked_instances(instances: Sequence[Instance], name: str) -> tuple[Instance, ...]:
    """The same instances, each knowing its place, integer labels as text.

    Raises DataError when there are none, and on a text, label or query that cannot be meant or an id given twice.
    """
    if not instances:
        raise DataError(f"{name}: there are no rows. Expected at least one row with a text.")
    first: dict[str, str] = {}
    placed: list[Instance] = []
    for number, one in enumerate(instances, start=1):
        where = one.where or f"{name}:{number}"
        one = dataclasses.replace(
            one,
            id=_identifier(one.id, where),
            text=_text(one.text, where),
            label=_label(one.label, where, text_rules=False),
            query=_optional_text(one.query, where, Column.QUERY),
            source=_optional_text(one.source, where, Column.SOURCE, integers=True),
            where=where,
        )
        if one.id in first:
            raise DataError(
                f"{where}: column 'id': {one.id!r} was given before, in {first[one.id]}. Make the ids unique, or drop "
                "them: ids are then derived from the content."
            )
        first[one.id] = where
        placed.append(one)
    return tuple(placed)


def ordered_classes(instances: Iterable[Instance]) -> tuple[str, ...]:
    """The labels that occur, sorted; as numbers when all are integers."""
    labels = {one.label for one in instances if one.label is not None}
    if all(_INTEGER.fullmatch(label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (Decimal(label), label)))
    return tuple(sorted(labels))


def derived_id(text: str, query: str | None, label: str | None, source: str | None = None) -> str:
    """A readable id that depends on the content alone: the first words, and 12 hexadecimal digits of a hash."""
    parts = ("" if part is None else f"={part}" for part in (text, query, label, source))
    digest = hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:12]
    words = "-".join(re.findall(r"\w+", text.lower())[:3])[:24].strip("-")
    return f"{words}-{digest}" if words else digest


def _with_derived_ids(instances: Sequence[Instance]) -> list[Instance]:
    # Equal rows are told apart by a count: they are interchangeable, so their order does not matter.
    occurrences: Counter[str] = Counter()
    named: list[Instance] = []
    for one in instances:
        identifier = derived_id(one.text, one.query, one.label, one.source)
        occurrences[identifier] += 1
        count = occurrences[identifier]
        named.append(dataclasses.replace(one, id=identifier if count == 1 else f"{identifier}#{count}"))
    return named


def _refuse(where: str, column: str, found: str, expected: str, mend: str) -> DataError:
    return DataError(f"{where}: column '{column}': found {found}, expected {expected}. {mend}")


def _no_class(text: str) -> bool:
    """Whether a cell is a number that cannot be a class: 1.0, or what is written where a number is missing."""
    return _FRACTION.fullmatch(text) is not None or text.casefold() in ("nan", "inf", "-inf")


def _kind(value: object) -> str:
    names = {"NoneType": "null", "str": "text", "list": "a list", "dict": "an object", "bool": "true or false"}
    name = names.get(type(value).__name__, type(value).__name__)
    return name if value is None or isinstance(value, str) else f"{name} ({shorten(repr(value))})"


def _encodable(value: str, where: str, column: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _refuse(
            where,
            column,
            f"half of a surrogate pair ({value[error.start]!r}) at character {error.start + 1}",
            "characters that UTF-8 can hold",
            "Write the character whole, or remove it.",
        ) from error
    return str(value)  # NumPy's text is no text to a writer of JSON


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _refuse(where, Column.TEXT, _kind(value), "text", "Give the text in quotes, or remove the row.")
    if not value.strip():
        raise _refuse(where, Column.TEXT, "a blank text", "at least one word", "Fill it in, or remove the row.")
    return _encodable(value, where, Column.TEXT)


def _optional_text(value: object, where: str, column: Column, *, integers: bool = False) -> str | None:
    if value is None:
        return None
    if integers and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        mend = "Write it as text, or leave it out."
        raise _refuse(where, column, _kind(value), "text" + (" or an integer" if integers else ""), mend)
    return _encodable(value, where, column) if value.strip() else None


def _identifier(value: object, where: str) -> str:
    found = _optional_text(value, where, Column.ID, integers=True)
    if found is None:
        mend = "Give every row an id, or drop the column: ids are then derived from the content."
        raise _refuse(where, Column.ID, "no value", "a unique id", mend)
    return found


def _label(value: object, where: str, *, text_rules: bool) -> str | None:
    one_class = "one class name or integer, or nothing"
    if value is None:
        return None
    if isinstance(value, bool):
        raise _refuse(where, Column.LABEL, _kind(value), one_class, "Write the class name, or 0 and 1.")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) or (text_rules and isinstance(value, str) and _no_class(value.strip())):
        raise _refuse(
            where,
            Column.LABEL,
            f"the number {value}",
            one_class,
            "Regression is not supported; write classes as integers (1, not 1.0) or names.",
        )
    if isinstance(value, list | tuple | dict | set):
        mend = "Several labels for one text are not supported: give each row one class."
        raise _refuse(where, Column.LABEL, _kind(value), one_class, mend)
    if not isinstance(value, str):
        raise _refuse(where, Column.LABEL, _kind(value), one_class, "Write the class name as text.")
    return _encodable(value, where, Column.LABEL) if value.strip() else None
