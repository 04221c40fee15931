"""Count which rows of the papers' tables have numbers. claims.md and the HTML index show the counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnaudit.formatting import plural
from attnaudit.research.reproduction.paper_report import ENCODERS, NOT_IN_PAPER, OUTDATED, Reproduction, Row, Table

COVERAGE = "What has been run"
#: How to read the cells of the table.
COUNTED = (
    "The table shows how many rows have numbers, and from how many seeds. A blank cell means that the paper's table "
    "does not use the corpus. Outdated rows were measured with settings that have changed since then, such as other "
    "test texts. Their numbers are not shown, and do not count, until the rows are run again."
)


def coverage(table: Table, corpus: str) -> str:
    """Return how many rows of a corpus were measured, such as "2 of 9, 3 seeds".

    The text is "none" if no row was measured, and "" if the table has no row of the corpus. If the paper leaves the
    corpus out of the table, the text says that it is not in the paper. Rows that were measured with other settings are
    counted as outdated.
    """
    rows = [row for row in rows_of_one_corpus(table) if row.corpus == corpus]
    if not rows:
        return ""
    seeds = sorted({len(row.provenance.seeds) for row in rows if row.provenance})
    again = sum(row.missing == OUTDATED for row in rows)
    parts = []
    if seeds:
        counts = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        parts.append(f"{len(_measured(rows))} of {len(rows)}, {counts}")
    if corpus in table.left_out:
        parts.append(NOT_IN_PAPER)
    if again:
        note = f"{again} outdated"
        parts += [note] if parts else ["none", note]
    return "; ".join(parts or ["none"])


def totals(reports: Iterable[Reproduction]) -> str:
    """Return sentences with the number of rows that the tables of reports declare, have measured, and count.

    Rows of corpora that the paper leaves out of a table are not counted. The encoders without any measured row are
    named.
    """
    rows = [
        row
        for report in reports
        for table in report.tables
        for row in rows_of_one_corpus(table)
        if row.corpus not in table.left_out
    ]
    measured = _measured(rows)
    count = sum(not row.excluded for row in measured)
    have, do = ("has" if len(measured) == 1 else "have"), ("counts" if count == 1 else "count")
    return " ".join(
        (
            f"The tables of all reports together have {plural(len(rows), 'row')}, without those of corpora that are "
            f"not in the paper. Of these, {len(measured):,} {have} numbers, and {count:,} {do} for claims.",
            *_without_numbers(rows),
        )
    )


def _without_numbers(rows: Sequence[Row]) -> list[str]:
    """Return a sentence that names the encoders of which no row was measured. The list is empty if there are none."""
    absent = [
        name
        for name in ENCODERS
        if any(_encoder(row) == name for row in rows) and not any(_encoder(row) == name for row in _measured(rows))
    ]
    if not absent:
        return []
    count = sum(_encoder(row) in absent for row in rows)
    which = " or ".join(ENCODERS[name] for name in absent)
    return [
        f"The only row with {which} has no numbers."
        if count == 1
        else f"None of the {count} rows with {which} has numbers."
    ]


def rows_of_one_corpus(report: Reproduction | Table) -> list[Row]:
    """Return the rows about a single corpus. Rows with means over several corpora are left out."""
    tables = (report,) if isinstance(report, Table) else report.tables
    return [row for table in tables for row in table.rows if row.name.startswith(f"{row.corpus}/")]


def corpora(reports: Iterable[Reproduction]) -> list[str]:
    """Return the corpora of all tables, without repetition."""
    return list(dict.fromkeys(row.corpus for report in reports for row in rows_of_one_corpus(report)))


def _measured(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.provenance is not None]


def _encoder(row: Row) -> str:
    return row.name.split("/")[1]
