"""The columns that are read, and errors about their names."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Final

from attnaudit.data.cell_values import shorten
from attnaudit.errors import DataError


class Column(StrEnum):
    """The columns that are read. All other columns are ignored."""

    TEXT = "text"
    FILE = "file"
    LABEL = "label"
    QUERY = "query"
    ID = "id"
    SOURCE = "source"
    LABELS = "labels"
    ANSWER = "answer"
    POSITION = "position"
    PASSAGES = "passages"


_NAMES: Final = frozenset(Column)
#: Columns that are not required, but whose absence changes the audit.
_MISSED: Final = (Column.LABEL, Column.QUERY, Column.LABELS, Column.POSITION, Column.PASSAGES, Column.ANSWER)
_MISSING: Final = "column 'text' is missing."
_USUAL_TEXT_COLUMNS: Final = ("sentence", "review", "content", "comment", "body", "document", "tweet", "premise")
_USUAL_FILE_COLUMNS: Final = ("path", "filename", "file_name", "filepath", "file_path", "image", "image_path")


def described_columns(columns: Iterable[str], file: Path) -> str:
    """Return the description of the rows of a file. It names the columns that are ignored."""
    ignored = [column for column in columns if column not in _NAMES]
    return f"Rows of {file.name}." + (f" Ignored columns: {', '.join(map(repr, ignored))}." if ignored else "")


def check_columns(columns: Iterable[str], where: str, *, hint: str = "") -> None:
    """Require a column `text` or `file`, and refuse misspelt names of columns that affect the audit.

    Args:
        columns: Names of the columns.
        where: The file and row, for the message.
        hint: Appended to the message about a missing column.

    Raises:
        DataError: `text` and `file` are both missing, or the name of an unknown column is similar to that of a missing
            `label`, `query`, `labels`, `position`, `passages` or `answer`.
    """
    problem = _problem(tuple(columns))
    if problem is not None:
        raise DataError(f"{where}: {problem}{hint if problem.startswith(_MISSING) else ''}")


@lru_cache(maxsize=256)
def _problem(names: tuple[str, ...]) -> str | None:
    """Return what is wrong with the names of columns; None if nothing is. Every row of a JSON Lines file is checked."""
    folded = {name.strip().casefold(): name for name in names}
    unknown = [one for one, name in folded.items() if name not in set(Column)]
    for column in _MISSED:  # ignoring a misspelt column would silently change the audit
        cutoff = 0.85 if column == Column.ANSWER else 0.8  # "answer_id" is another column, "answers" is not
        near = next((folded[name] for name in difflib.get_close_matches(column, unknown, n=1, cutoff=cutoff)), None)
        if near is not None and column not in names:
            return f"column {near!r} would be ignored. Rename it to '{column}', in lower case."
    if Column.TEXT in names or Column.FILE in names:
        return None
    likely = difflib.get_close_matches("text", list(folded), n=1, cutoff=0.5)
    likely = likely or [usual for usual in _USUAL_TEXT_COLUMNS if usual in folded]
    files = [usual for usual in _USUAL_FILE_COLUMNS if usual in folded]
    if likely or not files:
        fix = f"Rename {repr(folded[likely[0]]) if likely else 'the column that contains the text'} to 'text'"
    else:
        fix = f"If {folded[files[0]]!r} contains paths of arrays, pictures or recordings, rename it to 'file'"
    name_list = ", ".join(repr(shorten(name)) for name in names[:8]) + (", ..." if len(names) > 8 else "")
    return (
        f"{_MISSING} Expected the column text (or file, for arrays, pictures and recordings) and, "
        f"optionally, label, query, id and source; found {name_list or 'none'}. {fix}."
    )


def reject_duplicates(columns: Sequence[str], where: str) -> None:
    """Raise DataError if two columns have the same name. Blank names are not checked."""
    duplicates = [name for name, count in Counter(columns).items() if count > 1 and name.strip()]
    if duplicates:
        names = ", ".join(repr(shorten(name)) for name in duplicates)
        raise DataError(f"{where}: more than one column has the name {names}. Rename or remove the duplicates.")
