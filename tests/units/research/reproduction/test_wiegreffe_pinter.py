"""The tables and claims of Wiegreffe & Pinter 2019."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from attnaudit.research.reproduction import reproduce
from attnaudit.research.reproduction.compare_models import (
    difference_of,
    jsd_between,
    jsd_by_text,
    over_roles,
    over_roles_by_text,
    statistic_by_text,
)
from attnaudit.research.reproduction.figures.paper_figures import draw
from attnaudit.research.reproduction.model_plans import Plan, jain_wallace
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.paper_tables import Result, f1
from attnaudit.research.reproduction.papers import paper
from attnaudit.research.reproduction.papers.wiegreffe_pinter import LAMBDA, OTHERS, PAPER, SEEDS, base, twin
from attnaudit.research.reproduction.reproduce_options import ReproductionOptions
from tests.units.research.reproduction.synthetic_reports import reproduction, row
from tests.units.research.reproduction.test_compare_models import measured, result

TABLES = {table.name: table for table in PAPER.tables}


def plans(of: str, seeds: int) -> set[Plan]:
    """Every model of a corpus that a run with this number of seeds trains."""
    found = set()
    for table in PAPER.tables:
        for one in table.rows([of]):
            for seed in range(1 if one.once else seeds):
                found |= {plan.with_seed(seed + plan.seed) for plan in one.models.values()}
    return found | {base for plan in found for base in [plan.base] if base is not None}


def models(roles: tuple[str, ...] = ("model", *OTHERS)) -> dict[str, Result]:
    return {role: result(measured(seed)) for seed, role in enumerate(roles)}


def test_the_paper_is_found_by_its_name() -> None:
    assert paper("wiegreffe-pinter") is PAPER
    assert {one.name for one in PAPER.claims if not one.sentence} == set()


def test_the_adversary_is_compared_with_the_numbers_of_wen_et_al() -> None:
    row = next(one for one in TABLES["adversary"].rows(PAPER.corpora) if one.corpus == "20news")
    assert row.paper == {"accuracy": 0.92, "accuracy adversary": 0.9, "tvd": 0.037, "jsd": 0.391}


def test_the_curve_shows_the_numbers_of_wen_et_al() -> None:
    (plan,) = TABLES["curve"].curves
    compared = {row.corpus: (row.paper["tvd"], row.paper["jsd"]) for row in TABLES["adversary"].rows(PAPER.corpora)}
    shown = {corpus: curve.seeds[0][0] for corpus, curve in plan.published.items()}
    assert {corpus: (point.x, point.y) for corpus, point in shown.items()} == compared
    assert {point.label for point in shown.values()} == {"Wen et al. 2022"}


@pytest.mark.parametrize("of", sorted(LAMBDA))
def test_models_are_valid_and_shared_between_tables(of: str) -> None:
    found = plans(of, 3)
    for plan in found:
        plan.check()
    plain = {plan for plan in found if plan.variant == "plain"}
    assert plain == {base(of).with_seed(seed) for seed in range(SEEDS + 1)}
    assert base(of) == jain_wallace(of, encoder="bilstm", alignment="additive")
    assert len(found) == SEEDS + 1 + 3 * 11


def test_the_published_weight_is_doubled() -> None:
    assert twin("sst").value == 0.00105
    assert twin("imdb").value == 0.0016
    curve = next(iter(TABLES["curve"].rows(["sst"]))).models
    assert curve["λ × 1"] == twin("sst", name="twin")
    assert sorted(plan.value for plan in curve.values() if plan.value is not None) == pytest.approx(
        [0.000105, 0.000315, 0.00105, 0.00315, 0.0105]
    )


def test_statistics_over_seeds_match_numpy() -> None:
    some = models()
    each = np.array([jsd_by_text(some, role) for role in OTHERS], dtype=float)
    assert over_roles_by_text(jsd_by_text, OTHERS, max)(some)[0] == pytest.approx(np.nanmean(each.max(0)))
    assert over_roles(jsd_between, OTHERS, min)(some)[0] == pytest.approx(np.nanmean(each, axis=1).min())
    assert statistic_by_text(jsd_by_text, OTHERS, max)(some)[2] is None
    assert over_roles_by_text(jsd_by_text, OTHERS, max)(some)[1] == 3
    assert difference_of(f1, f1)(some) == (0.0, 4)


def test_a_difference_with_something_undefined_is_undefined() -> None:
    assert difference_of(f1, lambda models: (None, 0))(models()) == (None, 4)


@contextmanager
def silent(_what: str):  # type: ignore[no-untyped-def]
    yield lambda done, total, note: None


@pytest.mark.slow
def test_a_quick_run_fills_every_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "QUICK_TRAINING", {"epochs": 1, "learning_rate": 0.01, "batch_size": 200})
    monkeypatch.setattr(reproduce, "QUICK_SIZES", {"embedding_size": 4, "hidden_size": 2, "attention_size": 4})
    options = ReproductionOptions(paper=PAPER, out=tmp_path, command="", quick=True, instances=12)
    found, _, _ = reproduce.reproduce(options, progress_bar=silent)
    for table in found.tables:
        (only,) = table.rows
        assert only.missing == "", table.name
        assert [line.quantity for line in only.lines if line.ours is None] == []
    made = {table.name: table.rows[0].provenance for table in found.tables}
    assert {name: one.seeds for name, one in made.items() if one is not None} == {
        "uniform": [0], "seeds": list(range(SEEDS + 1)), "guided-mlp": [0], "adversary": [0], "curve": [0]
    }  # fmt: skip
    figures = {figure.name: draw(figure) for table in found.tables for figure in table.figures}
    assert set(figures) >= {"seeds", "per-text-adversary", "curve", "strips f1 uniform", "strips f1 base"}
    assert None not in figures.values()
    assert figures["curve"] is not None
    assert len(figures["curve"].legend) == 4


def report(table: str, name: str, values: dict[str, list[float | None]]) -> Reproduction:
    """A report of one row, its quantities given by seed."""
    return reproduction({table: [row(name, values or {"none": [None]})]})


CLAIMS = {claim.name: claim for claim in PAPER.claims}


@pytest.mark.parametrize(
    ("jsd", "lost", "holds"),
    [
        ([0.6, 0.61, 0.6], [0.8, 0.81, 0.8], "holds"),
        ([0.2, 0.21, 0.2], [0.8, 0.81, 0.8], "does not hold"),
        ([0.6, 0.61, 0.6], [0.7, 0.71, 0.7], "does not hold"),
        ([0.1, 0.6, 0.4], [0.8, 0.81, 0.8], "undecided"),
    ],
)
def test_an_adversary_must_reach_a_high_jsd_at_equal_f1(jsd: list[float], lost: list[float], holds: str) -> None:
    values = {"jsd": jsd, "f1 adversary": lost, "f1": [0.8, 0.81, 0.8]}
    found = CLAIMS["an adversary can be trained"].read(report("adversary", "sst/bilstm/additive", values))  # type: ignore[arg-type]
    assert found.verdict == holds
    assert "sst" in found.evidence


@pytest.mark.parametrize(("name", "holds"), [("agnews/bilstm/additive", "holds"), ("sst/bilstm/additive", "not run")])
def test_uniform_is_enough_is_about_two_corpora(name: str, holds: str) -> None:
    values: dict[str, list[float | None]] = {"f1": [0.9, 0.91, 0.9], "f1 uniform": [0.9, 0.905, 0.9]}
    found = CLAIMS["uniform is enough for two corpora"].read(report("uniform", name, values))
    assert found.verdict == holds


def test_claims_about_rows_that_were_not_run_say_so() -> None:
    nothing = report("none", "none", {})
    assert {claim.read(nothing).verdict for claim in PAPER.claims} == {"not run"}


def test_every_claim_reads_quantities_that_exist() -> None:
    """Each claim finds what it needs in a report that has every quantity of the tables."""
    for claim in PAPER.claims:
        answers = {
            claim.read(report(name, f"{corpus}/bilstm/additive", values)).evidence
            for name, table in TABLES.items()
            for corpus in ("sst", "agnews")
            for values in [{quantity.name: [0.5, 0.5, 0.5] for quantity in table.quantities}]
        }
        of_test_1 = claim.paper == "test 1"
        assert any("agnews" in answer for answer in answers) is of_test_1, claim.name
        assert any("sst" in answer for answer in answers) is not of_test_1, claim.name
