"""Convert rows to instances, and reject invalid columns and values."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from attnaudit.data.cell_values import describe_value, encodable, invalid, shorten
from attnaudit.data.column_names import Column
from attnaudit.errors import DataError
from attnaudit.input_files.named_file import NamedFile, find_file
from attnaudit.instances import Dataset, Instance

Row = tuple[int, Mapping[str, object]]
"""The number of a row, for messages, and its cells by column."""


_FRACTION: Final = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?", re.ASCII)
_GIVE_IDS: Final = "Give every row an id, or remove the column: ids are then derived from the content."
_INTEGER: Final = re.compile(r"-?\d+", re.ASCII)
_LONGEST_POSITION: Final = 100
"""Number of characters of the longest position. Python refuses to convert thousands of digits."""


class InstanceReader:
    """Converts rows to instances one by one, and validates them.

    The ids of rows without an `id` are derived from their content. If the content of a row is repeated, the ids of the
    repetitions end in "#2", "#3" and so on. Apart from these endings, ids do not depend on the order of the rows.

    Args:
        name: Name of the file or data set, for messages.
        all_text: Whether every cell is text or None, as in CSV. The label "0.5" is then rejected like the number 0.5.
        folder: The folder of the data file. The paths in the column `file` are relative to it. None for a data set in
            Python.
    """

    def __init__(self, name: str, *, all_text: bool = False, folder: Path | None = None) -> None:
        self.name = name
        self.all_text = all_text
        self.folder = folder
        self._found: dict[str, NamedFile] = {}
        self._previous: tuple[str, bool] | None = None  # place of the previous row, and whether it has an id
        self._place_of_id: dict[str, str] = {}
        self._occurrences: Counter[str] = Counter()

    def from_row(self, row: Row) -> Instance:
        """Convert a row. Check its columns with `check_columns` first.

        Raises:
            DataError: The row is invalid, its id is already in use, or only some rows have an id. The message names the
                row.
        """
        number, cells = row
        where = f"{self.name}:{number}"
        identifier = _identifier(cells.get(Column.ID), where) if Column.ID in cells else None
        if self._previous is not None and self._previous[1] != (identifier is not None):
            raise DataError(
                f"{where}: column 'id' is {'filled' if identifier is not None else 'missing'} here, unlike in "
                f"{self._previous[0]}. {_GIVE_IDS}"
            )
        file = self._file(cells.get(Column.FILE), where)
        if file is None:
            text = _text(cells.get(Column.TEXT), where, columns=cells)
        else:
            _refuse_text_and_file(cells.get(Column.TEXT), where)
            text = Path(file.path).name
        label = _label(cells.get(Column.LABEL), where, all_text=self.all_text)
        query = _optional_text(cells.get(Column.QUERY), where, Column.QUERY)
        source = _optional_text(cells.get(Column.SOURCE), where, Column.SOURCE, integers=True)
        fields: dict[str, Any] = {
            "text": text,
            "label": label,
            "labels": _labels(cells.get(Column.LABELS), where),
            "query": query,
            "answer": _optional_text(cells.get(Column.ANSWER), where, Column.ANSWER),
            "position": _position(cells.get(Column.POSITION), where),
            "passages": _passages(cells.get(Column.PASSAGES), where),
            "source": source,
            "where": where,
        }
        self._previous = (where, identifier is not None)
        if identifier is None:
            content = None if file is None else file.sha256
            further = Instance(id="", **fields).further_fields()
            identifier = self._numbered(derived_id(text, query, label, source, content=content, further=further))
        self._require_new(identifier, where)
        if file is not None:
            fields |= {"file": file.path, "file_sha256": file.sha256}
        return Instance(id=identifier, **fields)

    def from_instance(self, instance: Instance, number: int) -> Instance:
        """Validate an instance and bring its fields into a common form.

        In the result, `where` is always filled in. Blank labels, queries and sources are None. Integer ids, labels and
        sources are text.

        Args:
            instance: The instance.
            number: The number of the instance, for messages. It is counted from 1.

        Raises:
            DataError: A field of the instance is invalid, or its id is already in use.
        """
        where = instance.where or f"{self.name}:{number}"
        file = self._file(instance.file, where)
        sha256 = "" if file is None else file.sha256
        if instance.file_sha256 and instance.file_sha256 != sha256:
            raise invalid(
                where,
                "file_sha256",
                f"{shorten(instance.file_sha256)!r}",
                f"the hash of the file, {sha256}" if file else "no hash, because the row has no file",
                "Leave file_sha256 out; the hash is then computed.",
            )
        checked = dataclasses.replace(
            instance,
            id=_identifier(instance.id, where),
            text=_text(instance.text, where),
            label=_label(instance.label, where, all_text=False),
            labels=_labels(instance.labels, where),
            query=_optional_text(instance.query, where, Column.QUERY),
            file=None if file is None else file.path,
            file_sha256=sha256,
            answer=_optional_text(instance.answer, where, Column.ANSWER),
            position=_position(instance.position, where),
            passages=_passages(instance.passages, where),
            source=_optional_text(instance.source, where, Column.SOURCE, integers=True),
            where=where,
        )
        self._require_new(checked.id, where)
        return checked

    def _file(self, value: object, where: str) -> NamedFile | None:
        """Return the file that a row names; None if it names none. Each file is read only once."""
        name = _optional_text(value, where, Column.FILE)
        if name is None:
            return None
        if name not in self._found:
            self._found[name] = find_file(name, self.folder, f"{where}: column '{Column.FILE}'")
        return self._found[name]

    def _numbered(self, identifier: str) -> str:
        self._occurrences[identifier] += 1
        count = self._occurrences[identifier]
        return identifier if count == 1 else f"{identifier}#{count}"

    def _require_new(self, identifier: str, where: str) -> None:
        if identifier in self._place_of_id:
            raise DataError(
                f"{where}: column 'id': {identifier!r} was given before, in {self._place_of_id[identifier]}. Make the "
                "ids unique, or remove the column: ids are then derived from the content."
            )
        self._place_of_id[identifier] = where


def to_instances(
    rows: Sequence[Row], name: str, *, all_text: bool = False, folder: Path | None = None
) -> tuple[Instance, ...]:
    """Convert rows to instances (see `InstanceReader`).

    Raises:
        DataError: There are no rows, or a row is invalid. The message names the first such row.
    """
    reader = InstanceReader(name, all_text=all_text, folder=folder)
    return require_rows([reader.from_row(row) for row in rows], name)


def checked_instances(instances: Sequence[Instance], name: str) -> tuple[Instance, ...]:
    """Validate instances and bring their fields into a common form (see `InstanceReader`).

    Raises:
        DataError: There are no instances, a field of an instance is invalid, or two instances have the same id.
    """
    reader = InstanceReader(name)
    return require_rows([reader.from_instance(one, number) for number, one in enumerate(instances, start=1)], name)


def require_rows(instances: Sequence[Instance], name: str) -> tuple[Instance, ...]:
    """Return instances. Raise DataError if there are none."""
    if not instances:
        raise DataError(f"{name}: there are no rows. Expected at least one row with a text.")
    return tuple(instances)


def ordered_classes(instances: Iterable[Instance]) -> tuple[str, ...]:
    """Return the labels that occur, in sorted order. Labels are sorted as numbers if all of them are integers."""
    return ordered_labels({instance.label for instance in instances if instance.label is not None})


def ordered_labels(labels: Collection[str]) -> tuple[str, ...]:
    """Return different labels in sorted order. They are sorted as numbers if all of them are integers."""
    if all(_INTEGER.fullmatch(label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (Decimal(label), label)))
    return tuple(sorted(labels))


def dataset_of(instances: Sequence[Instance], *, name: str, source: str, description: str) -> Dataset:
    """Return instances as a data set. Instances that are not in memory are not read if their classes are known."""
    known: tuple[str, ...] | None = getattr(instances, "classes", None)
    return Dataset(
        name=name,
        source=source,
        description=description,
        instances=instances,
        classes=ordered_classes(instances) if known is None else known,
        rows=len(instances),
    )


def derived_id(
    text: str,
    query: str | None,
    label: str | None,
    source: str | None = None,
    *,
    content: str | None = None,
    further: Mapping[str, object] | None = None,
) -> str:
    """Return an id that depends only on the content of an instance.

    It consists of up to three words of the text and 12 hexadecimal digits of a hash of all arguments. If the instance
    is a file, `content` is the hash of its contents. The hash in the id then leaves out the text, because this is only
    the name of the file. `further` contains the other fields of the instance, such as its labels.
    """
    first = text if content is None else f"file {content}"
    parts = ["" if part is None else f"={part}" for part in (first, query, label, source)]
    parts += [json.dumps(dict(further), sort_keys=True)] if further else []
    digest = hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:12]
    words = "-".join(re.findall(r"\w+", text.lower())[:3])[:24].strip("-")
    return f"{words}-{digest}" if words else digest


def _is_fraction(text: str) -> bool:
    """Return whether a cell is a number that cannot be a class, such as 1.0, 1e3, NaN or infinity."""
    return _FRACTION.fullmatch(text) is not None or text.casefold() in ("nan", "inf", "-inf")


def _refuse_text_and_file(value: object, where: str) -> None:
    if value is not None and value != "":
        raise invalid(
            where,
            Column.TEXT,
            "a text next to a file",
            "either a text or a file",
            "Empty one of the two columns. If 'file' only says where the text comes from, rename this column.",
        )


def _text(value: object, where: str, columns: Collection[str] = ()) -> str:
    if Column.FILE in columns and (value is None or value == ""):
        raise invalid(
            where, Column.FILE, "no value", "the path of a file, or a text", "Add the path, or remove the row."
        )
    if not isinstance(value, str):
        raise invalid(where, Column.TEXT, describe_value(value), "text", "Give the text in quotes, or remove the row.")
    if not value.strip():
        raise invalid(where, Column.TEXT, "a blank text", "at least one word", "Add the text, or remove the row.")
    return encodable(value, where, Column.TEXT)


def _optional_text(value: object, where: str, column: Column, *, integers: bool = False) -> str | None:
    if value is None:
        return None
    if integers and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        fix = "Write it as text, or leave it out."
        raise invalid(where, column, describe_value(value), "text" + (" or an integer" if integers else ""), fix)
    return encodable(value, where, column) if value.strip() else None


def _identifier(value: object, where: str) -> str:
    identifier = _optional_text(value, where, Column.ID, integers=True)
    if identifier is None:
        raise invalid(where, Column.ID, "no value", "a unique id", _GIVE_IDS)
    return identifier


def _label(value: object, where: str, *, all_text: bool) -> str | None:
    one_class = "one class name or integer, or nothing"
    if value is None:
        return None
    if isinstance(value, bool):
        raise invalid(where, Column.LABEL, describe_value(value), one_class, "Write the class name, or 0 and 1.")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) or (all_text and isinstance(value, str) and _is_fraction(value.strip())):
        fix = "Write classes as integers (1, not 1.0) or names."
        if not float(value).is_integer():
            fix += (
                " The classes of a score are 0 (below its threshold) and 1 (at or above it). If the score has no "
                "threshold, leave the label out."
            )
        raise invalid(where, Column.LABEL, f"the number {value}", one_class, fix)
    if isinstance(value, list | tuple | dict | set):
        fix = "Several labels for one text belong in the column 'labels', for a model that assigns several."
        raise invalid(where, Column.LABEL, describe_value(value), one_class, fix)
    if not isinstance(value, str):
        raise invalid(where, Column.LABEL, describe_value(value), one_class, "Write the class name as text.")
    return encodable(value, where, Column.LABEL) if value.strip() else None


def _labels(value: object, where: str) -> tuple[str, ...] | None:
    """Return the labels of a cell: a list, a JSON list as text, or names separated by semicolons; None if it is blank.

    An empty list means that no label applies.
    """
    expected = "a list of label names, or names separated by semicolons"
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            fix = 'Write it as ["a", "b"] or a; b.'
            raise invalid(where, Column.LABELS, f"text that is no JSON list ({error})", expected, fix) from error
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        value = value.split(";")
    if not isinstance(value, list | tuple):
        fix = "Write it as a list, such as [] if no label applies."
        raise invalid(where, Column.LABELS, describe_value(value), expected, fix)
    names: list[str] = []
    for one in value:
        name = str(one) if isinstance(one, int) and not isinstance(one, bool) else one
        if not isinstance(name, str) or not name.strip():
            fix = "Remove the entry, or write the name of a label."
            found = f"the entry {shorten(repr(one))}"
            raise invalid(where, Column.LABELS, found, expected, fix)
        names.append(encodable(name.strip(), where, Column.LABELS))
    return tuple(dict.fromkeys(names))


def _position(value: object, where: str) -> int | None:
    """Return the index of a word; None for a blank cell.

    A whole floating-point number is accepted, and NaN is a blank cell, because pandas writes both.
    """
    if value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, str) and len(value) <= _LONGEST_POSITION and _INTEGER.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid(
            where,
            Column.POSITION,
            describe_value(value) if not isinstance(value, int | float | str) else shorten(repr(value)),
            "the index of a word, counted from 0",
            "Write a whole number, or leave it out.",
        )
    return value


def _passages(value: object, where: str) -> tuple[str, ...]:
    """Return the passages of a cell: a list of texts, or a JSON list as text; empty if the cell is blank."""
    expected = 'a list of passages, such as ["...", "..."]'
    if value is None or (isinstance(value, str) and not value.strip()):
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            fix = "Write the passages as a JSON list of texts."
            raise invalid(where, Column.PASSAGES, f"text that is no JSON list ({error})", expected, fix) from error
    if not isinstance(value, list | tuple):
        raise invalid(where, Column.PASSAGES, describe_value(value), expected, "Write the passages as a list of texts.")
    for number, passage in enumerate(value, start=1):
        if not isinstance(passage, str) or not passage.strip():
            found = "a blank passage" if isinstance(passage, str) else describe_value(passage)
            fix = "Remove the passage from the list, or give it text."
            raise invalid(where, Column.PASSAGES, f"{found} at place {number}", "only passages with text", fix)
        encodable(passage, where, Column.PASSAGES)
    return tuple(value)
