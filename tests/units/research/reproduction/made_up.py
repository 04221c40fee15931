"""Reproductions from made-up numbers, for the tests of what is read off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnaudit.research.reproduction.reproduction_records import SCHEMA_VERSION, Line, Made, Reproduction, Row, Table
from attnaudit.run.environment import describe_environment

Numbers = Mapping[str, Sequence[float | None]]


def row(name: str, numbers: Numbers, *, seeds: Sequence[int] | None = None) -> Row:
    """numbers: quantity -> values by seed. seeds: from 0 on, where not given."""
    seeds = range(len(next(iter(numbers.values())))) if seeds is None else seeds
    made = Made(
        command="", created="", attnaudit="0", seeds=list(seeds), instances=None, training_seconds=0.0,
        training_cpu_seconds=0.0, audit_cpu_seconds=0.0,
        audit_seconds=0.0, quick=False,
    )  # fmt: skip
    lines = [
        Line(quantity=quantity, words=quantity, paper=None, ours=None, std=None, values=list(values), n=9)
        for quantity, values in numbers.items()
    ]
    return Row(name=name, title=name, corpus="sst", lines=lines, made=made)


def reproduction(**tables: Sequence[Row]) -> Reproduction:
    """Table name -> rows."""
    made = [
        Table(name=name, title="T", source="table 1", deviations=[], rows=list(rows), figures=[])
        for name, rows in tables.items()
    ]
    return Reproduction(
        schema_version=SCHEMA_VERSION, paper="made-up", title="Made up", citation="A.", quick=False, command="",
        created="", attnaudit="0", seconds=0.0, jobs=1, environment=describe_environment(device="cpu", threads=1),
        data={}, tables=made,
    )  # fmt: skip
