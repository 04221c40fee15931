"""A synthetic report of a paper, with one figure of each kind."""

from __future__ import annotations

from attnaudit.records import Chart, Series
from attnaudit.research.reproduction.figures.figure_records import Counterfactual, Figure, Violin, Violins
from attnaudit.research.reproduction.paper_report import (
    ClaimVerdict,
    Finding,
    Line,
    Provenance,
    Reproduction,
    Row,
    Table,
)
from attnaudit.run.environment import describe_environment


def finding(verdict: ClaimVerdict) -> Finding:
    return Finding(claim="c", sentence="A claim.", paper="§1", verdict=verdict, reason="A reason.")


PROVENANCE = Provenance(
    command="attnaudit reproduce synthetic",
    created="2026-01-01T00:00:00Z",
    attnaudit="0",
    seeds=[0, 1],
    instances=500,
    training_seconds=61.0,
    audit_seconds=5.0,
)


def line(name: str, *, paper: float | None, values: list[float | None], n: int | None = 40) -> Line:
    known = [v for v in values if v is not None]
    mean = sum(known) / len(known) if known else None
    return Line(
        quantity=name, words=name, paper=paper, ours=mean, std=0.012 if len(known) > 1 else None, values=values, n=n
    )


def figures() -> list[Figure]:
    violin = Violin(bin=1, side=0, at=[0.0, 0.1, 0.2], density=[0.2, 1.0, 0.1], median=0.1, n=9)
    return [
        Figure(
            name="violins",
            row="a",
            title="Violins",
            caption="c",
            violins=Violins(bins=["low", "high"], sides=["no", "yes"], x_label="x", y_label="y", violins=[violin]),
        ),
        Figure(
            name="bars",
            row="a",
            title="Bars",
            caption="c",
            chart=Chart(title="t", x_label="x", y_label="y", kind="bar", series=[Series(name="s", x=[0, 1], y=[1, 2])]),
        ),
        Figure(
            name="rival",
            row="a",
            title="Rival",
            caption="c",
            counterfactual=Counterfactual(
                instance="i",
                tokens=["<b>waste", "was"],
                predicted="no",
                label="no",
                attention=[0.9, 0.1],
                adversarial=[0.0, 1.0],
                probability=0.99,
                tvd=0.004,
                jsd=0.61,
            ),
        ),
    ]


def reproduction(*, quick: bool = False) -> Reproduction:
    there = Row(
        name="a",
        title="SST, <i>BiLSTM</i>",
        corpus="sst",
        lines=[
            line("tau", paper=0.351, values=[0.3, 0.32]),
            line("flat", paper=0.2, values=[None, None], n=0),
            line("half", paper=None, values=[0.5, None]),
        ],
        notes=("a note",),
        provenance=PROVENANCE,
    )
    absent = Row(name="b", title="B", corpus="sst", lines=[], missing="not run here")
    return Reproduction(
        paper="synthetic",
        title="A paper",
        citation="Nobody 2026.",
        quick=quick,
        created="2026-01-01T00:00:00Z",
        attnaudit="0",
        seconds=1.0,
        jobs=2,
        environment=describe_environment(device="cpu", threads=1),
        data={"sst": {"train": 6355, "dev": 821, "test": 1725}},
        tables=[
            Table(
                name="t",
                title="Table",
                source="table 2",
                deviations=["Embeddings are random."],
                rows=[there, absent],
                figures=figures(),
            )
        ],
    )
