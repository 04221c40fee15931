"""Reports with synthetic numbers, for the tests of claims, remedies and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnaudit.research.reproduction.paper_report import Line, Provenance, Reproduction, Row, Table
from attnaudit.run.environment import describe_environment

#: name of a quantity -> one value per seed
Numbers = Mapping[str, Sequence[float | None]]


def row(
    name: str,
    numbers: Numbers,
    *,
    seeds: Sequence[int] | None = None,
    corpus: str = "sst",
    seconds: float = 0.0,
    excluded: str = "",
) -> Row:
    """A row with these numbers.

    Args:
        name: name of the row.
        numbers: its quantities.
        seeds: seeds of the models; 0, 1, ... by default.
        corpus: name of the corpus.
        seconds: seconds of training and of the audits.
        excluded: why the row cannot decide a claim.
    """
    seeds = range(len(next(iter(numbers.values())))) if seeds is None else seeds
    provenance = Provenance(
        command="", created="", attnaudit="0", seeds=list(seeds), instances=None, training_seconds=seconds,
        audit_seconds=seconds,
    )  # fmt: skip
    lines = [
        Line(quantity=quantity, words=quantity, paper=None, ours=None, std=None, values=list(values), n=9)
        for quantity, values in numbers.items()
    ]
    return Row(name=name, title=name, corpus=corpus, lines=lines, provenance=provenance, excluded=excluded)


def reproduction(tables: Mapping[str, Sequence[Row]] | None = None, **more: Sequence[Row]) -> Reproduction:
    """A report with these tables, each given as name -> rows."""
    made = [
        Table(name=name, title="T", source="table 1", deviations=[], rows=list(rows), figures=[])
        for name, rows in {**(tables or {}), **more}.items()
    ]
    return Reproduction(
        paper="synthetic", title="Synthetic", citation="A.", quick=False, created="", attnaudit="0", seconds=0.0,
        jobs=1, environment=describe_environment(device="cpu", threads=1), data={}, tables=made,
    )  # fmt: skip
