"""Meister et al. 2021: rows, numbers, quantities of real audits, and claims."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from attnaudit.research.reproduction.audit_models import audit_all, audit_request
from attnaudit.research.reproduction.corpora import EMBEDDED
from attnaudit.research.reproduction.model_plans import PLAIN, Plan
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.paper_tables import Models, Result, RowPlan, TablePlan
from attnaudit.research.reproduction.papers.meister import PAPER
from attnaudit.research.reproduction.papers.meister_claims import CLAIMS
from attnaudit.research.reproduction.papers.meister_models import GRID, adversaries, plan
from attnaudit.research.reproduction.papers.meister_numbers import BILSTM, TRANSFORMER
from attnaudit.research.reproduction.prepare_corpora import Prepared
from attnaudit.research.reproduction.train_models import train_all
from tests.units.research.reproduction import synthetic_reports
from tests.units.research.reproduction.small_corpus import data

TABLES = {table.name: table for table in PAPER.tables}


def rows(table: str, *corpora: str) -> dict[str, RowPlan]:
    return {row.name: row for row in TABLES[table].rows(corpora)}


def test_the_numbers_of_the_paper_are_in_the_right_rows() -> None:
    influence = rows("influence", *PAPER.corpora)
    assert influence["sst/bilstm/additive/softmax"].paper == {"entropy": 0.93, "entropy std": 0.05}
    assert influence["20news/transformer/dot/sparsemax"].paper["entropy"] == 0.46
    assert rows("sparsity", *PAPER.corpora)["imdb/bilstm/additive"].paper == {"means": -0.935, "texts": -0.935}
    adversary = rows("adversary", *PAPER.corpora)["20news/transformer/dot/10λ"].paper
    assert (adversary["jsd frozen"], adversary["accuracy frozen"]) == (0.62, 0.87)
    assert (adversary["jsd unfrozen"], adversary["accuracy unfrozen"]) == (0.62, 0.92)
    agreement = rows("agreement", *PAPER.corpora)
    softmax, sparse = (agreement[f"sst/bilstm/additive/{name}"].paper for name in ("softmax", "sparsemax"))
    assert (softmax["leave-one-out hidden"], softmax["leave-one-out hidden std"]) == (0.49, 0.17)
    assert softmax["accuracy"] == 0.82
    assert sparse["gradient inputs"] == 0.45
    assert "accuracy" not in sparse


@pytest.mark.parametrize("table", TABLES)
def test_every_number_of_the_paper_has_a_quantity_and_a_corpus_of_the_paper(table: str) -> None:
    quantities = [one.name for one in TABLES[table].quantities]
    assert len(set(quantities)) == len(quantities)
    for row in rows(table, *PAPER.corpora).values():
        assert set(row.paper) <= set(quantities)
    for row in rows(table, EMBEDDED).values():
        assert not row.paper


def test_tables_share_models() -> None:
    plans = {one for table in TABLES for row in rows(table, "sst").values() for one in row.models.values()}
    plain = {one for one in plans if one.variant == PLAIN}
    assert len(plain) == 2 * (1 + len(GRID))  # per encoder: softmax and the grid, of which λ = 0 is sparsemax
    assert len(plans - plain) == 2 * 3 * 2  # per encoder and weight: frozen and unfrozen
    assert plan("sst", BILSTM, "sparsegen", 0.0) == plan("sst", BILSTM, "sparsemax")
    for one in plans:
        one.check()


def test_an_adversarys_weight_is_doubled_and_then_multiplied() -> None:
    values = [row.models["frozen"].value for row in adversaries(["imdb"])]
    assert values == [0.0016, 0.016, 0.16] * 2


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Prepared]:
    folder = tmp_path_factory.mktemp("meister")
    return folder, data(folder / "data")


def tiny(one: Plan) -> Plan:
    sizes = {"embedding_size": 6, "hidden_size": 6, "attention_size": 6}
    architecture = msgspec.structs.replace(one.architecture, **sizes)
    return msgspec.structs.replace(one, architecture=architecture).with_settings(epochs=2, min_count=1)


def made(table: TablePlan, row: RowPlan, small: tuple[Path, Prepared]) -> Models:
    folder, prepared = small
    plans = {role: tiny(one) for role, one in row.models.items()}
    models, failed = train_all(list(plans.values()), {EMBEDDED: prepared}, folder / "models")
    assert not failed
    (audit,) = table.audits
    wanted = [
        (one, audit_request(audit.checks, instances=None, token_columns=audit.tokens))
        for one in dict.fromkeys(plans.values())
    ]
    where = {EMBEDDED: prepared.path("test")}
    measured, failed = audit_all(models, wanted, where, checkpoints=folder / "models", results=folder / "measured")
    assert not failed
    return {role: Result(trained=models[one], audits=(measured[one, None],)) for role, one in plans.items()}


@pytest.mark.parametrize("table", TABLES)
def test_every_quantity_is_read_and_every_figure_drawn(table: str, small: tuple[Path, Prepared]) -> None:
    one = TABLES[table]
    row = one.rows([EMBEDDED])[-1]
    assert row.name.startswith("/".join((EMBEDDED, *TRANSFORMER)))
    models = made(one, row, small)
    found = {quantity.name: quantity.read(models) for quantity in one.quantities}
    for name, (value, n) in found.items():
        assert value is not None, name
        assert -1 <= value <= 1
        assert n >= 6
    if one.figures is not None:
        for figure in one.figures(row, models):
            assert figure.chart is not None
            assert all(series.y for series in figure.chart.series)


def reproduction(table: str, values: dict[str, dict[str, list[float]]]) -> Reproduction:
    """A report with one table: row -> quantity -> values by seed."""
    return synthetic_reports.reproduction({table: [synthetic_reports.row(*item) for item in values.items()]})


def holds(claim: str, one: Reproduction) -> str:
    return next(one_claim for one_claim in CLAIMS if one_claim.name == claim).read(one).verdict


def test_a_claim_about_a_sign_depends_on_the_sign() -> None:
    for values, expected in (
        ([-0.9, -0.8, -0.9], "holds"),
        ([0.6, 0.7, 0.6], "does not hold"),
        ([-0.5, 0.6, 0.1], "undecided"),
    ):
        one = reproduction("sparsity", {"sst/bilstm/additive": {"means": values}})
        assert holds("entropy falls with λ", one) == expected
        one = reproduction("agreement-by-sparsity", {"sst/bilstm/additive": {"gradient means": values}})
        assert holds("agreement falls with λ", one) == expected


def adversary(jsd: float, frozen: float, unfrozen: float) -> dict[str, list[float]]:
    quantities = {
        "accuracy base": 0.8,
        "jsd frozen": jsd,
        "accuracy frozen": frozen,
        "jsd unfrozen": jsd,
        "accuracy unfrozen": unfrozen,
    }
    return {name: [value - 0.001, value, value + 0.001] for name, value in quantities.items()}


def test_adversaries_are_compared_at_the_smallest_weight_that_changes_attention() -> None:
    name = "sst/bilstm/additive"
    near, far, spent = adversary(0.1, 0.8, 0.5), adversary(0.6, 0.7, 0.795), adversary(0.68, 0.5, 0.5)
    one = reproduction("adversary", {f"{name}/λ": near, f"{name}/10λ": far, f"{name}/100λ": spent})
    assert holds("frozen adversary costs accuracy", one) == "holds"
    assert holds("retrained adversary attends elsewhere", one) == "holds"
    one = reproduction("adversary", {f"{name}/λ": near, f"{name}/10λ": spent})
    assert holds("frozen adversary costs accuracy", one) != "holds"
    assert holds("retrained adversary attends elsewhere", one) == "does not hold"


def test_an_adversary_whose_attention_never_differs_contradicts_the_claim() -> None:
    name = "sst/bilstm/additive"
    one = reproduction("adversary", {f"{name}/{row}": adversary(0.1, 0.8, 0.8) for row in ("λ", "10λ")})
    assert holds("retrained adversary attends elsewhere", one) == "does not hold"
    assert holds("frozen adversary costs accuracy", one) == "undecided"


def test_the_jsd_that_chose_the_weight_is_not_tested_again() -> None:
    name = "sst/bilstm/additive"
    noisy = {**adversary(0.6, 0.7, 0.795), "jsd unfrozen": [0.1, 0.69, 0.69]}  # its interval contains ½ ln 2
    assert holds("retrained adversary attends elsewhere", reproduction("adversary", {f"{name}/λ": noisy})) == "holds"


def test_an_attention_that_does_not_differ_contradicts_only_if_all_weights_were_run() -> None:
    name = "sst/bilstm/additive"
    near: dict[str, list[float]] = adversary(0.1, 0.8, 0.8)
    one = reproduction("adversary", {f"{name}/λ": near, f"{name}/10λ": {"jsd unfrozen": []}})
    assert holds("retrained adversary attends elsewhere", one) == "not run"


def test_claims_about_rows_that_were_not_run_say_so() -> None:
    nothing = reproduction("other", {})
    assert {claim.read(nothing).verdict for claim in CLAIMS} == {"not run"}
    high = reproduction("influence", {"sst/bilstm/additive/softmax": {"entropy": [0.9, 0.91, 0.92]}})
    assert holds("influence is spread", high) == "holds"
    assert math.isclose(TABLES["influence"].rows(["sst"])[-1].paper["entropy"], 0.63)
