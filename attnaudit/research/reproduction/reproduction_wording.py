"""How a reproduction says things, on the page, in Markdown and on the terminal alike."""

from __future__ import annotations

from collections.abc import Sequence

from attnaudit.formatting import duration, number, plural
from attnaudit.research.reproduction.reproduction_records import Line, Reproduction, Row, Table
from attnaudit.retraining import LONGER, PATIENCE

#: Deviations of several papers' adversaries.
HALVED = "If the paper's TVD is halved as well, as in the published code, ours is twice that for the same outputs."
LONG = (
    f"An adversary is drawn from its base's seed, as in the published code, and trained for up to {LONGER} times the "
    f"base's epochs, but no further than {PATIENCE} without a smaller loss on dev (the published code: on training)."
)
SHORT = (
    f"Adversaries are trained for as many epochs as their base; Wiegreffe & Pinter's code has {LONGER} times as many, "
    "and its adversaries here reach more."
)

HEAD = ("quantity", "paper", "ours", "difference", "n")
CLAIMS = "What the paper says, and whether it holds here"
REMEDIES = "What may help where attention is not used"
HOLDS = {"yes": "yes", "no": "NO", "undecided": "undecided"}
CLAIMS_HEAD = ("claim", "holds here?", "evidence")


def heading(one: Reproduction) -> str:
    quick = "QUICK: not a reproduction. " if one.quick else ""
    vectors = f" with {one.vectors.name} word vectors" if one.vectors else ""
    return f"{quick}{one.title}, done again{vectors}"


def cells(line: Line) -> tuple[str, str, str, str, str]:
    """As HEAD: the paper's number, ours with its deviation over seeds, the difference, instances."""
    return (line.words, paper(line), ours(line), difference(line), "—" if line.n is None else f"{line.n:,}")


def paper(line: Line) -> str:
    return "—" if line.paper is None else number(line.paper, digits=line.digits)


def ours(line: Line) -> str:
    """'.351 ± .012', or 'undefined'; without '±' where there is one seed."""
    if line.ours is None:
        return "undefined"
    undefined = sum(value is None for value in line.values)
    some = f" ({undefined} of {len(line.values)} seeds undefined)" if undefined else ""
    spread = "" if line.std is None else f" ± {number(line.std, digits=line.digits)}"
    return f"{number(line.ours, digits=line.digits)}{spread}{some}"


def difference(line: Line) -> str:
    found = line.difference
    if found is None:
        return "—"
    return f"{found:+.{line.digits}f}".replace("-", "−")


def how(row: Row) -> str:
    """'3 seeds; 500 test texts; training 3 min, audit 1 min'."""
    if row.made is None:
        return row.missing
    texts = f"; at most {row.made.instances:,} test texts" if row.made.instances else ""
    times = f"training {duration(row.made.training_seconds)}, audit {duration(row.made.audit_seconds)}"
    return f"{plural(len(row.made.seeds), 'seed')}{texts}; {times}"


def missing(table: Table) -> list[tuple[str, list[str]]]:
    """(why, rows) of what has no numbers, in sentences."""
    grouped: dict[str, list[str]] = {}
    for row in table.rows:
        if not row.lines:
            grouped.setdefault(row.missing.rstrip(".") + ".", []).append(row.name)
    return list(grouped.items())


def there(table: Table) -> list[Row]:
    return [row for row in table.rows if row.lines]


def made_with(one: Reproduction) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in one.environment.packages.items())
    return f"Python {one.environment.python}, {packages}; {one.environment.platform}, {one.environment.processor}"


def sizes(rows: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {part}" for part, count in rows.items())


def commands(one: Reproduction) -> list[str]:
    """Every command that a row stems from, in the order of the rows."""
    found: Sequence[str] = [row.made.command for table in one.tables for row in table.rows if row.made]
    return list(dict.fromkeys(found))


def rows_of_corpora(one: Reproduction | Table) -> list[Row]:
    """The rows of one corpus each, without those that are of several rows together."""
    tables = (one,) if isinstance(one, Table) else one.tables
    return [row for table in tables for row in table.rows if row.name.startswith(f"{row.corpus}/")]


def run(table: Table, corpus: str) -> str:
    """'2 of 9, 3 seeds': how many rows of a corpus have numbers; empty where the table has none of it."""
    rows = [row for row in rows_of_corpora(table) if row.corpus == corpus]
    seeds = sorted({len(row.made.seeds) for row in rows if row.made})
    if not seeds:
        return "none" if rows else ""
    span = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    return f"{sum(row.made is not None for row in rows)} of {len(rows)}, {span}"
