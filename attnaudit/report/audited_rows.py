"""How much of a data set was audited, in words."""

from __future__ import annotations

from attnaudit.formatting import number, plural
from attnaudit.records import DataRecord, RunRecord

#: What the hash of a data set covers -> its name.
HASH_NAMES = {"rows": "all rows", "file": "the file", "audited rows": "the audited rows"}


def audited_rows(data: DataRecord, noun: str = "row") -> str:
    """Return the number of audited rows and of all rows, such as "250 of 1,200 rows"."""
    if data.rows is None:
        return f"{plural(data.audited, noun)} of a stream of unknown length"
    return f"{number(data.audited)} of {plural(data.rows, noun)}"


def drawn(data: DataRecord) -> str:
    """Return how the audited rows of a sample were chosen."""
    if data.rows is None:
        return "the first of a stream"
    return (
        "chosen by the code that reads the data" if data.sample_seed is None else f"drawn with seed {data.sample_seed}"
    )


def row_count(data: DataRecord) -> str:
    """Return the number of rows of a data set."""
    return "unknown" if data.rows is None else number(data.rows)


def sampled(run: RunRecord) -> list[str]:
    """Return, for each data set of which a sample was audited, its name and the number of rows.

    An example is "300 of 2,026 rows of movie-reviews". Data sets whose gates were all judged by confidence sequences
    are left out, because their verdicts are valid for any number of rows.
    """
    return [
        f"{audited_rows(data)} of {data.name}"
        for data in run.data
        if data.is_sample
        and not all(
            check.interval is not None and check.interval.is_sequence
            for check in run.checks
            if check.data == data.name and check.severity == "gate"
        )
    ]
