"""The tables and claims of Wiegreffe & Pinter 2019."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from attnaudit.research.reproduction import reproduce
from attnaudit.research.reproduction.compare_models import (
    folded_by_text,
    jsd_between,
    jsd_by_text,
    less,
    of_roles,
    over_roles,
)
from attnaudit.research.reproduction.model_plans import Plan, jain_wallace
from attnaudit.research.reproduction.paper_figures import draw
from attnaudit.research.reproduction.paper_tables import Result, f1
from attnaudit.research.reproduction.papers import paper
from attnaudit.research.reproduction.papers.wiegreffe_pinter import LAMBDA, OTHERS, PAPER, SEEDS, base, twin
from attnaudit.research.reproduction.reproduction_options import Options
from attnaudit.research.reproduction.reproduction_records import SCHEMA_VERSION, Line, Made, Reproduction, Row, Table
from attnaudit.run.environment import describe_environment
from tests.units.research.reproduction.test_compare_models import measured, result

TABLES = {table.name: table for table in PAPER.tables}


def plans(of: str, seeds: int) -> set[Plan]:
    """Every model of a corpus, as a run of so many seeds asks for them."""
    found = set()
    for table in PAPER.tables:
        for row in table.rows([of]):
            for seed in range(1 if row.once else seeds):
                found |= {plan.with_seed(seed + plan.seed) for plan in row.models.values()}
    return found | {base for plan in found for base in [plan.base] if base is not None}


def models(roles: tuple[str, ...] = ("model", *OTHERS)) -> dict[str, Result]:
    return {role: result(measured(seed)) for seed, role in enumerate(roles)}


def test_the_paper_is_found_by_its_name() -> None:
    assert paper("wiegreffe-pinter") is PAPER
    assert {one.name for one in PAPER.claims if not one.sentence} == set()


@pytest.mark.parametrize("of", sorted(LAMBDA))
def test_models_are_few_shared_and_can_be_meant(of: str) -> None:
    found = plans(of, 3)
    for plan in found:
        plan.check()
    plain = {plan for plan in found if plan.variant == "plain"}
    assert plain == {base(of).with_seed(seed) for seed in range(SEEDS)}
    assert base(of) == jain_wallace(of, encoder="bilstm", alignment="additive")
    assert len(found) == SEEDS + 3 * 11


def test_the_published_weight_is_doubled() -> None:
    assert twin("sst").value == 0.00105
    assert twin("imdb").value == 0.0016
    curve = next(iter(TABLES["curve"].rows(["sst"]))).models
    assert curve["λ × 1"] == twin("sst", name="twin")
    assert sorted(plan.value for plan in curve.values() if plan.value is not None) == pytest.approx(
        [0.000105, 0.000315, 0.00105, 0.00315, 0.0105]
    )


def test_numbers_over_seeds_are_those_of_numpy() -> None:
    some = models()
    each = np.array([jsd_by_text(some, role) for role in OTHERS], dtype=float)
    assert over_roles(jsd_by_text, OTHERS, max)(some)[0] == pytest.approx(np.nanmean(each.max(0)))
    assert of_roles(jsd_between, OTHERS, min)(some)[0] == pytest.approx(np.nanmean(each, axis=1).min())
    assert folded_by_text(jsd_by_text, OTHERS, max)(some)[2] is None
    assert over_roles(jsd_by_text, OTHERS, max)(some)[1] == 3
    assert less(f1, f1)(some) == (0.0, 4)


def test_a_difference_with_something_undefined_is_undefined() -> None:
    assert less(f1, lambda models: (None, 0))(models()) == (None, 4)


@contextmanager
def silent(_what: str):  # type: ignore[no-untyped-def]
    yield lambda done, total, note: None


def test_a_quick_run_fills_every_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "QUICK_TRAINING", {"epochs": 1, "learning_rate": 0.01, "batch_size": 200})
    monkeypatch.setattr(reproduce, "QUICK_SIZES", {"embedding_size": 4, "hidden_size": 2, "attention_size": 4})
    options = Options(paper=PAPER, out=tmp_path, command="", quick=True, instances=12)
    found = reproduce.reproduce(options, progress_bar=silent)
    for table in found.tables:
        (row,) = table.rows
        assert row.missing == "", table.name
        assert all(one.ours is not None for one in row.lines), [one.quantity for one in row.lines if one.ours is None]
    made = {table.name: table.rows[0].made for table in found.tables}
    assert {name: one.seeds for name, one in made.items() if one is not None} == {
        "uniform": [0], "seeds": list(range(SEEDS)), "guided-mlp": [0], "adversary": [0], "curve": [0]
    }  # fmt: skip
    figures = {figure.name: draw(figure) for table in found.tables for figure in table.figures}
    assert set(figures) == {"seeds", "per-text-adversary", "curve"}
    assert figures["curve"] is not None
    assert len(figures["curve"].legend) == 4


def report(table: str, row: str, values: dict[str, list[float | None]]) -> Reproduction:
    """A reproduction of one row, its quantities given by seed."""
    lines = [
        Line(quantity=name, words=name, paper=None, ours=0.0, std=None, values=some, n=9)
        for name, some in values.items()
    ]
    made = Made.__struct_fields__
    known = {"command": "", "created": "", "attnaudit": "", "seeds": [0, 1, 2], "instances": None, "quick": False}
    one = Row(
        name=row, title="", corpus="", lines=lines, made=Made(**{name: known.get(name, 0.0) for name in made})
    )  # fmt: skip
    tables = [Table(name=table, title="", source="", deviations=[], rows=[one], figures=[])]
    return Reproduction(
        schema_version=SCHEMA_VERSION, paper="", title="", citation="", quick=False, command="", created="",
        attnaudit="", seconds=0.0, jobs=1, environment=describe_environment(device="cpu", threads=1), data={},
        tables=tables,
    )  # fmt: skip


CLAIMS = {claim.name: claim for claim in PAPER.claims}


@pytest.mark.parametrize(
    ("jsd", "lost", "holds"),
    [
        ([0.6, 0.61, 0.6], [0.8, 0.81, 0.8], "yes"),
        ([0.2, 0.21, 0.2], [0.8, 0.81, 0.8], "no"),
        ([0.6, 0.61, 0.6], [0.7, 0.71, 0.7], "no"),
        ([0.1, 0.6, 0.4], [0.8, 0.81, 0.8], "undecided"),
    ],
)
def test_an_adversary_must_go_far_and_answer_as_well(jsd: list[float], lost: list[float], holds: str) -> None:
    values = {"jsd": jsd, "f1 adversary": lost, "f1": [0.8, 0.81, 0.8]}
    found, evidence = CLAIMS["an adversary can be trained"].read(report("adversary", "sst/bilstm/additive", values))  # type: ignore[arg-type]
    assert found == holds
    assert "sst" in evidence


@pytest.mark.parametrize(("row", "holds"), [("agnews/bilstm/additive", "yes"), ("sst/bilstm/additive", "undecided")])
def test_uniform_is_enough_is_about_two_corpora(row: str, holds: str) -> None:
    values: dict[str, list[float | None]] = {"f1": [0.9, 0.91, 0.9], "f1 uniform": [0.9, 0.905, 0.9]}
    found, _ = CLAIMS["uniform is enough for two corpora"].read(report("uniform", row, values))
    assert found == holds


def test_what_was_not_run_is_undecided() -> None:
    nothing = report("none", "none", {})
    assert {claim.read(nothing)[0] for claim in PAPER.claims} == {"undecided"}


def test_every_claim_reads_quantities_that_there_are() -> None:
    """With every quantity of the tables there, each claim finds what it needs."""
    for claim in PAPER.claims:
        answers = {
            claim.read(report(name, "agnews/bilstm/additive", {q.name: [0.5, 0.5, 0.5] for q in table.quantities}))[1]
            for name, table in TABLES.items()
        }
        assert any("agnews" in answer for answer in answers), claim.name
