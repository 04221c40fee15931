"""Which rows may decide a claim: rules on the scores of their models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from attnaudit.research.reproduction.model_plans import jain_wallace
from attnaudit.research.reproduction.paper_report import Provenance
from attnaudit.research.reproduction.paper_tables import MODEL, Paper, Quantity, RowPlan, TablePlan, accuracy
from attnaudit.research.reproduction.results.results_file import MeasuredQuantity, MeasuredRow, RoleScores
from attnaudit.research.reproduction.results.row_exclusions import row_exclusions

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
    row_plan("sst/cnn/dot", model=jain_wallace("sst", encoder="cnn", alignment="dot")),
]
SEEDS = [
    row_plan("sst/bilstm/additive", model=BILSTM, **{f"seed {i}": BILSTM.with_seed(i) for i in (1, 2)}),
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
    tables=(table("scores", SCORED), table("alone", ALONE), table("twins", TWINS), table("seeds", SEEDS)),
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
        ([0.82, 0.83], True),
        ([0.83, 0.84], False),
        ([0.9, 0.9], False),
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
    other_cnn = measured("scores", "sst/cnn/dot", model=[0.7, 0.7])
    found = excluded(measured("scores", "sst/cnn/additive", model=[0.6, 0.6]), other_cnn)
    assert found == {("scores", "sst/cnn/additive"): "accuracy 0.600, 0.600; 0.700 is the best for this encoder"}
    best = excluded(
        measured("scores", "sst/bilstm/additive", model=[0.82, 0.82]),
        measured("scores", "sst/bilstm/dot", model=[0.78, 0.78]),
    )
    assert best == {("scores", "sst/bilstm/dot"): "accuracy 0.780, 0.780; 0.820 is the best for this encoder"}
    better = excluded(measured("scores", "sst/bilstm/dot", model=[0.9, 0.9]))
    assert better == {
        (
            "scores",
            "sst/bilstm/dot",
        ): "accuracy 0.900, 0.900; only 0.800 is the highest published score for this encoder"
    }


def test_a_score_far_above_the_papers_does_not_count() -> None:
    found = excluded(measured("alone", "sst/bilstm/additive", model=[0.84, 0.84]))
    assert found == {("alone", "sst/bilstm/additive"): "accuracy 0.840, 0.840; only 0.800 in the paper"}
    others = excluded(
        measured("scores", "sst/bilstm/additive", model=[0.9, 0.9]),  # too good, so it sets no standard
        measured("scores", "sst/bilstm/dot", model=[0.78, 0.78]),
    )
    assert list(others) == [("scores", "sst/bilstm/additive")]
    elsewhere = replace(PAPER, comparable_scores={("sst", "cnn"): 0.75})
    rows = [measured("scores", "sst/cnn/additive", model=[0.79, 0.79])]
    assert list(row_exclusions(rows, elsewhere, ("sst",))) == [("scores", "sst/cnn/additive")]


def test_a_model_with_several_published_scores_is_compared_with_the_highest_one() -> None:
    tables = (table("scores", SCORED), table("again", [row_plan("sst/bilstm/additive", paper=0.82, model=BILSTM)]))
    for order in (tables, tables[::-1]):
        rows = [measured(name, "sst/bilstm/additive", model=[0.785, 0.785]) for name in ("scores", "again")]
        found = row_exclusions(rows, replace(PAPER, tables=order), ("sst",))
        assert {one.reason for one in found.values()} == {"accuracy 0.785, 0.785; 0.820 in the paper"}
        assert len(found) == 2


@pytest.mark.parametrize("score", [0.77, 0.83])
def test_a_score_that_is_exactly_as_far_away_as_allowed_counts(score: float) -> None:
    for paper in (0.8, 0.82, 0.87, 0.75):
        tables = (table("scores", [row_plan("sst/bilstm/additive", paper=paper, model=BILSTM)]),)
        rows = [measured("scores", "sst/bilstm/additive", model=[paper + score - 0.8] * 2)]
        assert row_exclusions(rows, replace(PAPER, tables=tables), ("sst",)) == {}


def test_a_number_of_another_paper_is_named_as_such() -> None:
    tables = (replace(table("scores", SCORED), compared_with="other paper"),)
    rows = [measured("scores", "sst/bilstm/additive", model=[0.7, 0.7])]
    (found,) = row_exclusions(rows, replace(PAPER, tables=tables), ("sst",)).values()
    assert found.reason == "accuracy 0.700, 0.700; 0.800 in another paper"


def test_a_reason_tells_a_missed_score_from_one_that_was_not_recorded() -> None:
    found = excluded(measured("twins", "sst/must", model=[0.7, 0.7]))
    assert found == {
        ("twins", "sst/must"): "accuracy 0.700, 0.700; 0.800 in the paper; the score of 1 other model was not recorded"
    }


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


def test_a_score_of_another_paper_counts_if_this_paper_has_none_for_the_encoder() -> None:
    paper = replace(PAPER, comparable_scores={("sst", "cnn"): 0.75, ("sst", "bilstm"): 0.99})
    rows = [
        measured("scores", "sst/cnn/additive", model=[0.6, 0.6]),
        measured("scores", "sst/cnn/dot", model=[0.73, 0.73]),
        measured("scores", "sst/bilstm/dot", model=[0.79, 0.79]),
    ]
    found = {key: one.reason for key, one in row_exclusions(rows, paper, ("sst",)).items()}
    assert found == {
        ("scores", "sst/cnn/additive"): "accuracy 0.600, 0.600; 0.750 for a comparable encoder in another paper"
    }


@pytest.mark.parametrize(("last", "counts"), [(0.75, True), (0.72, False)])
def test_models_that_differ_only_in_their_seed_are_judged_together(last: float, counts: bool) -> None:
    """Their mean score must come within .03 of the paper's, and each score within .06."""
    row = measured("seeds", "sst/bilstm/additive", model=[0.81], **{"seed 1": [0.8], "seed 2": [last]})
    reason = excluded(row).get(("seeds", "sst/bilstm/additive"), "")
    assert bool(reason) is not counts
    assert counts or reason == "accuracy 0.810, 0.800, 0.720; 0.800 in the paper"


def test_a_row_that_only_lacks_a_recorded_score_is_marked() -> None:
    rows = [measured("alone", "sst/bilstm/additive"), measured("scores", "sst/bilstm/additive", model=[0.5, 0.5])]
    found = row_exclusions(rows, PAPER, ("sst",))
    assert [found[row.table, row.name].unrecorded for row in rows] == [True, False]


def test_variants_need_not_be_trained_unless_the_row_says_so() -> None:
    scores = {"model": [0.8, 0.8], "twin": [0.5, 0.5]}
    found = excluded(measured("twins", "sst/free", **scores), measured("twins", "sst/must", **scores))
    assert found == {("twins", "sst/must"): "adversary: accuracy 0.500, 0.500; 0.800 is the best for this encoder"}
    both = excluded(measured("twins", "sst/must", model=[0.5, 0.5], twin=[0.5, 0.5]))
    assert both[("twins", "sst/must")].endswith("0.800 in the paper (and 1 other model of the row)")


def test_rows_without_quantities_were_not_run() -> None:
    assert excluded(MeasuredRow(table="alone", name="sst/bilstm/additive", missing="not run here")) == {}
