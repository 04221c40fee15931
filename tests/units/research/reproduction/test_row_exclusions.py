"""Which rows may decide a claim: rules on the scores of their models."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from attnaudit.research.reproduction.model_plans import jain_wallace
from attnaudit.research.reproduction.paper_report import Provenance
from attnaudit.research.reproduction.paper_tables import MODEL, Paper, Quantity, RowPlan, TablePlan, accuracy
from attnaudit.research.reproduction.results_file import MeasuredQuantity, MeasuredRow, RoleScores
from attnaudit.research.reproduction.row_exclusions import row_exclusions

BILSTM = jain_wallace("sst", encoder="bilstm", alignment="additive")
DOT = jain_wallace("sst", encoder="bilstm", alignment="dot")
CNN = jain_wallace("sst", encoder="cnn", alignment="additive")
TWIN = BILSTM.as_variant("twin", 0.001)


def row_plan(name: str, *, paper: float | None = None, must: Sequence[str] = (), **models: object) -> RowPlan:
    return RowPlan(
        name=name,
        title=name,
        corpus="sst",
        models=models,  # type: ignore[arg-type]
        paper={} if paper is None else {"accuracy": paper},
        must_be_trained=must,
    )


SCORED = [
    row_plan("sst/bilstm/additive", paper=0.8, model=BILSTM),
    row_plan("sst/bilstm/dot", model=DOT),
    row_plan("sst/cnn/additive", model=CNN),
]
ALONE = [row_plan("sst/bilstm/additive", model=BILSTM)]
TWINS = [
    row_plan("sst/free", model=BILSTM, twin=TWIN),
    row_plan("sst/must", model=BILSTM, twin=TWIN, must=("twin",)),
]


def table(name: str, rows: list[RowPlan]) -> TablePlan:
    scored = Quantity(name="accuracy", words="accuracy", read=accuracy, score_of=MODEL)
    return TablePlan(name=name, title="T", source="", rows=lambda _: rows, quantities=(scored,), audits=())


PAPER = Paper(
    name="made",
    title="T",
    citation="",
    corpora=("sst",),
    tables=(table("scores", SCORED), table("alone", ALONE), table("twins", TWINS)),
)


def measured(table_name: str, name: str, **scores: Sequence[float | None]) -> MeasuredRow:
    made = Provenance(
        command="", created="", attnaudit="0", seeds=[0, 1], instances=None, training_seconds=0.0, audit_seconds=0.0
    )
    return MeasuredRow(
        table=table_name,
        name=name,
        provenance=made,
        quantities={"accuracy": MeasuredQuantity(n=9, values=[0.5, 0.5])},
        scores={role: RoleScores(accuracy=tuple(values)) for role, values in scores.items()},
    )


def excluded(*rows: MeasuredRow) -> dict[tuple[str, str], str]:
    return {key: found.reason for key, found in row_exclusions(rows, PAPER, ("sst",)).items()}


@pytest.mark.parametrize(
    ("scores", "counts"),
    [
        ([0.8, 0.81], True),
        ([0.9, 0.9], True),
        ([0.771, 0.771], True),
        ([0.76, 0.79], True),
        ([0.745, 0.80], True),
        ([0.769, 0.769], False),
        ([0.73, 0.90], False),
        ([0.5, 0.9], False),
        ([0.8, None], False),
        ([], False),
    ],
)
def test_a_model_must_reach_the_papers_score_on_average_and_nearly_with_every_seed(
    scores: list[float | None], counts: bool
) -> None:
    assert bool(excluded(measured("scores", "sst/bilstm/additive", model=scores))) is not counts


def test_the_reason_names_the_scores() -> None:
    found = excluded(
        measured("scores", "sst/bilstm/additive", model=[0.7, 0.75]),
        measured("scores", "sst/bilstm/dot", model=[0.6, 0.6]),
        measured("alone", "sst/bilstm/additive"),
    )
    assert found == {
        ("scores", "sst/bilstm/additive"): "accuracy 0.700, 0.750; 0.800 in the paper",
        ("scores", "sst/bilstm/dot"): "accuracy 0.600, 0.600; 0.800 is the best for this encoder",
        ("alone", "sst/bilstm/additive"): "accuracy was not recorded",
    }


def test_a_row_without_a_number_in_the_paper_is_compared_with_the_same_model_or_the_best_of_its_encoder() -> None:
    same = excluded(measured("alone", "sst/bilstm/additive", model=[0.7, 0.7]))
    assert same == {("alone", "sst/bilstm/additive"): "accuracy 0.700, 0.700; 0.800 in the paper"}
    assert excluded(measured("scores", "sst/cnn/additive", model=[0.6, 0.6])) == {}  # no other CNN is known
    best = excluded(
        measured("scores", "sst/bilstm/additive", model=[0.86, 0.86]),
        measured("scores", "sst/bilstm/dot", model=[0.8, 0.8]),
    )
    assert best == {("scores", "sst/bilstm/dot"): "accuracy 0.800, 0.800; 0.860 is the best for this encoder"}


def test_a_row_without_a_number_in_the_paper_is_not_compared_with_better_models_of_the_paper_only() -> None:
    found = excluded(
        measured("scores", "sst/bilstm/additive", model=[0.775, 0.775]),  # as trained as in the paper, .8
        measured("scores", "sst/bilstm/dot", model=[0.75, 0.75]),
    )
    assert found == {}
    untrained = excluded(
        measured("scores", "sst/bilstm/additive", model=[0.7, 0.7]),
        measured("scores", "sst/bilstm/dot", model=[0.69, 0.69]),
    )
    assert untrained[("scores", "sst/bilstm/dot")] == "accuracy 0.690, 0.690; 0.800 is the best for this encoder"


def test_a_row_that_only_lacks_a_recorded_score_is_marked() -> None:
    rows = [measured("alone", "sst/bilstm/additive"), measured("scores", "sst/bilstm/additive", model=[0.5, 0.5])]
    found = row_exclusions(rows, PAPER, ("sst",))
    assert [found[row.table, row.name].unrecorded for row in rows] == [True, False]


def test_variants_need_not_be_trained_unless_the_row_says_so() -> None:
    scores = {"model": [0.8, 0.8], "twin": [0.5, 0.5]}
    found = excluded(measured("twins", "sst/free", **scores), measured("twins", "sst/must", **scores))
    assert found == {("twins", "sst/must"): "twin: accuracy 0.500, 0.500; 0.800 is the best for this encoder"}
    both = excluded(measured("twins", "sst/must", model=[0.5, 0.5], twin=[0.5, 0.5]))
    assert both[("twins", "sst/must")].endswith("0.800 in the paper (and 1 other model of the row)")


def test_rows_without_quantities_were_not_run() -> None:
    assert excluded(MeasuredRow(table="alone", name="sst/bilstm/additive", missing="not run here")) == {}
