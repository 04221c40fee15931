"""Tutek & Šnajder 2020: numbers, models, quantities, and claims and remedies on synthetic tables."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from attnaudit.checks import UniformFragility, load_policy
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.training import Score
from attnaudit.research.reproduction.audit_models import AuditedModel
from attnaudit.research.reproduction.corpora import EMBEDDED
from attnaudit.research.reproduction.paper_report import Reproduction, Row, WordVectors
from attnaudit.research.reproduction.paper_tables import Result, RowPlan
from attnaudit.research.reproduction.papers import paper
from attnaudit.research.reproduction.papers.tutek_snajder_models import FORMS, OPTIONS, WEIGHTS
from attnaudit.research.reproduction.remedies_file import Remedy
from attnaudit.research.reproduction.reproduce import quick
from attnaudit.research.reproduction.train_models import TrainedPlan
from attnaudit.research.reproduction.verdicts_on_claims.claims import answer_claims
from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.policy_writer import policy_text
from attnaudit.research.validation.scoring import Gate
from tests.units.research.reproduction.synthetic_reports import reproduction, row

PAPER = paper("tutek-snajder")
TABLES = {table.name: table for table in PAPER.tables}


def rows(table: str, *corpora: str) -> dict[str, RowPlan]:
    return {one.name: one for one in TABLES[table].rows(corpora or ("sst",))}


def test_the_numbers_match_the_paper() -> None:
    """Compare some numbers with tables 1, 6, 2 and 3 of the paper, at least one per layout."""
    assert rows("fragility")["sst/tying/additive"].paper == {"f1": 0.835, "uniform": 0.07, "permuted": 0.18}
    assert rows("fragility", "imdb")["imdb/mlm/dot"].paper == {"f1": 0.878, "uniform": 0.153, "permuted": 0.185}
    assert rows("layers", "20news")["20news/concat/3-layers"].paper == {
        "f1": 0.915,
        "uniform": 0.302,
        "permuted": 0.357,
    }
    assert rows("layers")["sst/mlm/1-layers"].paper == rows("fragility")["sst/mlm/additive"].paper
    assert rows("information", "agnews")["agnews/residual/additive"].paper == {"mf mi": 5.467, "rs mi": 4.518}
    assert rows("probability", "20news")["20news/mlm/dot"].paper == {"probability": 0.482}
    assert rows("tokens", "agnews")["agnews/dot"].paper == {
        "probability base": 0.862,
        "probability tying": 0.646,
        "probability mlm": 0.698,
    }
    assert rows("mlm-grid")["sst/mlm/dot"].paper == {"f1 0": 0.843, "uniform 0": 0.026, "permuted 0": 0.065}
    for table in ("fragility", "information", "probability", "layers"):
        known = {quantity.name for quantity in TABLES[table].quantities}
        assert all(set(one.paper) <= known for one in rows(table, *PAPER.corpora).values())
    assert not rows("fragility")["sst/residual/additive"].paper


def test_the_central_tables_share_their_models() -> None:
    plans = {name: {plan for one in rows(name).values() for plan in one.models.values()} for name in TABLES}
    assert plans["fragility"] == plans["information"] == plans["probability"] > plans["tokens"]
    assert len(plans["fragility"]) == 10
    assert len(plans["adversary"] - plans["fragility"]) == 4 * len(WEIGHTS)
    assert len(plans["layers"] - plans["fragility"]) == 8
    assert len(plans["tying-grid"] - plans["fragility"]) == 2 * 3
    assert len(plans["mlm-grid"] - plans["fragility"]) == 2 * 4


@pytest.mark.parametrize("table", TABLES)
def test_every_model_can_be_built_in_a_full_and_in_a_quick_run(table: str) -> None:
    for one in rows(table, EMBEDDED).values():
        for plan in one.models.values():
            small = quick(plan)
            plan.check()
            model = PooledClassifier(small.architecture, vocabulary_size=9, classes=2)
            if plan.settings.tying or plan.settings.mlm:
                assert model.encoder.width == small.architecture.embedding_size
                assert 2 * plan.architecture.hidden_size == plan.architecture.embedding_size


def test_an_adversary_is_trained_against_its_own_form() -> None:
    models = rows("adversary")["sst/dot"].models
    twin = models[f"mlm {WEIGHTS[0]:g}"]
    assert (twin.variant, twin.value, twin.divergence) == ("twin", WEIGHTS[0], "jsd")
    assert twin.base == models["mlm"]


def measured(labels: list[int], predicted: list[int], alone: list[list[float | None]]) -> AuditedModel:
    n = len(labels)
    return AuditedModel(
        fingerprints={}, checks=[], skipped={}, instances=n, seconds=0.0, cpu_seconds=0.0, classes=["no", "yes"],
        ids=[str(i) for i in range(n)], labels=labels, predicted=predicted, probabilities=[[0.2, 0.8]] * n,
        scalars={"token_probability": [x[0] for x in alone]},
        tokens=[["word"] * len(x) for x in alone], per_token={"token_probability.alone": alone},
    )  # fmt: skip


def result(one: RowPlan, role: str, audit: AuditedModel) -> Result:
    score = Score(accuracy=1.0, f1=1.0, n=audit.instances)
    trained = TrainedPlan(
        key="", folder="", plan=one.models[role], dev=score, test=score, chosen=1, seconds=0.0, cpu_seconds=0.0
    )  # fmt: skip
    return Result(trained=trained, audits=(audit,))


def test_figure_2_shows_the_median_text_that_all_models_classify_correctly() -> None:
    one = rows("tokens")["sst/additive"]
    labels, right = [1] * 5, [1] * 5

    def alone(*levels: float) -> list[list[float | None]]:
        return [[level] * 6 for level in levels[:4]] + [[levels[4]] * 3]  # the last is too short

    audits = {
        "base": measured(labels, right, alone(0.9, 0.9, 0.9, 0.9, 0.9)),
        "tying": measured(labels, right, alone(0.8, 0.5, 0.6, 0.1, 0.1)),
        "mlm": measured(labels, [1, 1, 1, 0, 1], alone(0.7, 0.7, 0.7, 0.7, 0.7)),
    }
    draw = TABLES["tokens"].figures
    assert draw is not None
    (figure,) = draw(one, {role: result(one, role, audit) for role, audit in audits.items()})
    assert figure.chart is not None
    assert {s.name: s.y for s in figure.chart.series} == {"base": [0.9] * 6, "tying": [0.6] * 6, "MLM": [0.7] * 6}
    assert "1 word · 2 word" in figure.caption
    wrong = {**audits, "mlm": measured(labels, [0] * 5, alone(0.7, 0.7, 0.7, 0.7, 0.7))}
    assert draw(one, {role: result(one, role, audit) for role, audit in wrong.items()}) == []


def table_1(drops: dict[str, float], *, f1: float = 0.82, tvd: float = 0.3) -> list[Row]:
    return [
        row(
            f"{of}/{form}/additive",
            {
                "permuted": [drop, drop + 0.01, drop - 0.01],
                "f1": [f1 if form != "base" else 0.83] * 3,
                "tvd": [tvd if form != "base" else 0.05] * 3,
            },
        )
        for of in ("sst", "imdb")
        for form, drop in drops.items()
    ]


def findings(one: Reproduction) -> dict[str, str]:
    return {found.claim: found.verdict for found in answer_claims(PAPER.claims, one)}


def test_claims_are_answered_from_the_tables() -> None:
    one = reproduction(
        fragility=table_1({"base": 0.05, "tying": 0.2, "mlm": 0.01}),
        information=[
            row(f"sst/{form}/dot", {"mf retained": [x, x + 0.01]})
            for form, x in {"base": 0.1, "residual": 0.5, "tying": 0.4, "mlm": 0.3}.items()
        ],
        probability=[
            row(f"sst/{form}/dot", {"probability": [x, x + 0.01]})
            for form, x in {"base": 0.7, "tying": 0.6, "mlm": 0.8}.items()
        ],
        layers=[
            row(f"sst/{form}/{layers}-layers", {"permuted": [drop, drop]})
            for form, layers, drop in (("base", 1, 0.05), ("base", 3, 0.01), ("mlm", 1, 0.1), ("mlm", 3, 0.6))
        ],
        adversary=[row("sst/dot", {"cost base": [0.1, 0.2], "cost mlm": [0.3, 0.1]})],
    )
    assert findings(one) == {
        "tying is fragile": "holds",
        "mlm is fragile": "does not hold",
        "tying keeps F1": "holds",
        "mlm keeps F1": "holds",
        "states retain more": "holds",
        "one state says less": "does not hold",
        "layers make robust": "holds",
        "adversaries pay more": "undecided",
    }
    assert set(findings(reproduction()).values()) == {"not run"}


def advice(one: Reproduction) -> tuple[Remedy, ...]:
    assert PAPER.remedies is not None
    return tuple(PAPER.remedies(one, None))


def test_a_remedy_is_named_with_its_figures() -> None:
    (found,) = advice(reproduction(fragility=table_1({"base": 0.05, "tying": 0.2})))
    assert (found.question, found.option) == ("used", "tying")
    assert found.words == (
        f"{OPTIONS['tying']}: permutation_fragility.tvd 0.05 → 0.30, drop in F1 under permuted attention 0.05 → 0.20, "
        "F1 0.83 → 0.82 (medians of 2 pairs of models, without → with the option, 3 seeds each; "
        "reproduction of Tutek & Šnajder 2020)"
    )


def test_a_remedy_measured_with_word_vectors_names_them() -> None:
    one = reproduction(fragility=table_1({"base": 0.05, "residual": 0.2}))
    (found,) = advice(msgspec.structs.replace(one, vectors=WordVectors(name="made.2d", width=2, sha256="")))
    assert found.words.startswith(
        "add the embedding to each state, `attnaudit train --hidden-size 1 --residual --vectors FILE`: "
    )
    assert found.words.endswith("reproduction of Tutek & Šnajder 2020 from made.2d)")


def test_an_option_with_a_small_effect_is_no_remedy() -> None:
    assert advice(reproduction(fragility=table_1({"base": 0.05, "tying": 0.2}, tvd=0.06))) == ()
    assert advice(reproduction(fragility=table_1({"tying": 0.2}))) == ()
    assert advice(reproduction()) == ()
    assert set(OPTIONS) == set(FORMS) - {"base"}


def test_a_chosen_policy_names_the_remedies_of_its_question(tmp_path: Path) -> None:
    check = UniformFragility(severity="report")
    gate = Gate(check=check.id, direction="at_least", threshold=0.1, question="used")
    helps = [
        Remedy(question="used", option="tying", words='tie "them" \\ well'),
        Remedy(question="points", option="mlm", words="of another question"),
    ]
    candidate = Candidate(check=check, question="used", direction="at_least")
    text = policy_text([gate], [candidate], [], None, validated_on=[], reproduced=helps)
    (tmp_path / "policy.toml").write_text(text, encoding="utf-8")
    (question,) = load_policy(tmp_path / "policy.toml").record.questions
    assert question.remedies == ['tie "them" \\ well']
