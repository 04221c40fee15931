"""The wording that the terminal, the Markdown page and the HTML page of a reproduction share."""

from __future__ import annotations

from collections.abc import Sequence

from attnaudit.formatting import duration, number, plural
from attnaudit.research.reproduction.paper_report import Line, Reproduction, Row, Table

HEAD = ("quantity", "paper", "ours", "difference", "n")
CLAIMS = "The paper's claims, and whether they hold here"
REMEDIES = "What may help when a model hardly uses its attention"
HOLDS = {"yes": "yes", "no": "NO", "undecided": "undecided"}
CLAIMS_HEAD = ("claim", "does it hold here?", "evidence")


def heading(report: Reproduction) -> str:
    """Return the title of a report, with its word vectors and a mark if the run was quick."""
    quick = "QUICK: not a reproduction. " if report.quick else ""
    vectors = f" with {report.vectors.name} word vectors" if report.vectors else ""
    return f"{quick}Reproduction of “{report.title}”{vectors}"


def cells(line: Line) -> tuple[str, str, str, str, str]:
    """Return the cells of one line of a table, in the columns of HEAD."""
    return (
        line.words,
        paper_number(line),
        our_number(line),
        difference(line),
        "—" if line.n is None else f"{line.n:,}",
    )


def paper_number(line: Line) -> str:
    """Return the paper's number; "—" if there is none."""
    return "—" if line.paper is None else number(line.paper, digits=line.digits)


def our_number(line: Line) -> str:
    """Return our mean and its standard deviation over seeds, as in "0.351 ± 0.012".

    The deviation is left out if only one seed is defined. The text is "undefined" if no seed is; if some are not, it
    also states how many.
    """
    if line.ours is None:
        return "undefined"
    undefined = sum(value is None for value in line.values)
    note = f" ({undefined} of {len(line.values)} seeds undefined)" if undefined else ""
    deviation = "" if line.std is None else f" ± {number(line.std, digits=line.digits)}"
    return f"{number(line.ours, digits=line.digits)}{deviation}{note}"


def difference(line: Line) -> str:
    """Return our number minus the paper's, with its sign; "—" if either is missing."""
    if line.difference is None:
        return "—"
    return f"{line.difference:+.{line.digits}f}".replace("-", "−")


def how_measured(row: Row) -> str:
    """Return how a row was measured, as in "3 seeds; at most 500 test texts; training 3 min, audit 1 min".

    For a row that was not measured, return the reason.
    """
    made = row.provenance
    if made is None:
        return row.missing
    texts = f"; at most {made.instances:,} test texts" if made.instances else ""
    times = f"training {duration(made.training_seconds)}, audit {duration(made.audit_seconds)}"
    return f"{plural(len(made.seeds), 'seed')}{texts}; {times}"


def missing_rows(table: Table) -> list[tuple[str, list[str]]]:
    """Return the rows without quantities, grouped by reason: (the reason as a sentence, names of the rows)."""
    grouped: dict[str, list[str]] = {}
    for row in table.rows:
        if not row.lines:
            grouped.setdefault(row.missing.rstrip(".") + ".", []).append(row.name)
    return list(grouped.items())


def measured_rows(table: Table) -> list[Row]:
    """Return the rows that have quantities."""
    return [row for row in table.rows if row.lines]


def made_with(report: Reproduction) -> str:
    """Return the versions of Python and packages, and the machine, of the last run."""
    packages = ", ".join(f"{name} {version}" for name, version in report.environment.packages.items())
    machine = f"{report.environment.platform}, {report.environment.processor}"
    return f"Python {report.environment.python}, {packages}; {machine}"


def sizes(parts: dict[str, int]) -> str:
    """Return the number of texts by part, as in "6,355 train, 821 dev, 1,725 test"."""
    return ", ".join(f"{count:,} {part}" for part, count in parts.items())


def commands(report: Reproduction) -> list[str]:
    """Return the commands that measured the rows, in the order of the rows and without duplicates."""
    typed: Sequence[str] = [row.provenance.command for table in report.tables for row in table.rows if row.provenance]
    return list(dict.fromkeys(typed))


def rows_of_one_corpus(report: Reproduction | Table) -> list[Row]:
    """Return the rows about a single corpus; rows with means over several corpora are left out."""
    tables = (report,) if isinstance(report, Table) else report.tables
    return [row for table in tables for row in table.rows if row.name.startswith(f"{row.corpus}/")]


def coverage(table: Table, corpus: str) -> str:
    """Return how many rows of a corpus were measured, as in "2 of 9, 3 seeds".

    Return "none" if no row was, and "" if the table has no row of the corpus.
    """
    rows = [row for row in rows_of_one_corpus(table) if row.corpus == corpus]
    seeds = sorted({len(row.provenance.seeds) for row in rows if row.provenance})
    if not seeds:
        return "none" if rows else ""
    counts = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    return f"{sum(row.provenance is not None for row in rows)} of {len(rows)}, {counts}"
