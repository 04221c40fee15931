"""How much of a data set was audited, in words."""

from __future__ import annotations

from attnaudit.formatting import number, plural
from attnaudit.records import DataRecord

#: What the hash of a data set covers -> its name.
HASH_NAMES = {"rows": "all rows", "file": "the file", "audited rows": "the audited rows"}


def audited_rows(data: DataRecord, noun: str = "row") -> str:
    """Return the number of audited rows and of all rows, such as "250 of 1,200 rows"."""
    if data.rows is None:
        return f"{plural(data.audited, noun)} of a stream of unknown length"
    return f"{number(data.audited)} of {plural(data.rows, noun)}"


def drawn(data: DataRecord) -> str:
    """Return how the audited rows of a sample were chosen."""
    return "the first of a stream" if data.rows is None else f"drawn with seed {data.sample_seed}"


def row_count(data: DataRecord) -> str:
    """Return the number of rows of a data set."""
    return "unknown" if data.rows is None else number(data.rows)
