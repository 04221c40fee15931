"""Wen et al. 2022: models, Δτ, means over rows, and claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import pytest

from attnaudit.research.reproduction.paper_report import Reproduction, Row
from attnaudit.research.reproduction.paper_tables import Models, Quantity
from attnaudit.research.reproduction.papers.wen import PAPER
from attnaudit.research.reproduction.papers.wen_claims import CLAIMS
from attnaudit.research.reproduction.verdicts_on_claims.claims import Answer, Claim
from tests.units.research.reproduction.synthetic_reports import reproduction, row

TABLES = {table.name: table for table in PAPER.tables}


def quantity(table: str, name: str) -> Quantity:
    return next(one for one in TABLES[table].quantities if one.name == name)


def checked(value: float | None, *, first: float = 0.5, ranks: int = 4, **details: float) -> SimpleNamespace:
    """A model whose check has this record."""
    found = {"ranks (k)": ranks, "weight of the first rank": first, **details}
    record = SimpleNamespace(value=value, n_defined=90, details=found, references=())
    return SimpleNamespace(check=lambda name: record, trained=SimpleNamespace(plan=SimpleNamespace(corpus="20news")))


def models(**roles: SimpleNamespace) -> Models:
    return roles  # type: ignore[return-value]


def test_one_corpus_and_seed_need_24_models_with_the_settings_of_the_paper() -> None:
    plans = {plan for table in PAPER.tables for row in table.rows(("sst",)) for plan in row.models.values()}
    assert len(plans) == 24
    for plan in plans:
        plan.check()
    assert {plan.architecture.projection_parameter for plan in plans} == {None, 0.8}
    assert [plan.value for plan in plans if plan.variant == "adversary"] == [2 * 5.25e-4]
    assert {plan.architecture.hidden_size for plan in plans} == {128}


def test_the_numbers_of_the_paper_are_in_the_right_rows() -> None:
    def paper(table: str, name: str) -> Mapping[str, float]:
        return next(row.paper for row in TABLES[table].rows(PAPER.corpora) if row.name == name)

    assert paper("ranking", "babi-3/bilstm/additive") == {"accuracy": 0.57}
    assert paper("random-attention", "20news/bilstm/additive")["change tau random_attention"] == 1.32
    assert paper("fixed", "snli/bilstm/additive")["change tau fixed_representation"] == -0.05
    assert paper("fixed", "babi-2/bilstm/additive")["accuracy"] == 0.74
    assert paper("random-attention", "20news/bilstm/additive") == {
        "accuracy": 0.92,
        "change tau random_attention": 1.32,
    }
    assert paper("adversarial", "agnews/bilstm/additive") == {
        "accuracy": 0.96,
        "accuracy twin": 0.96,
        "tvd": 0.009,
        "jsd": 0.664,
        "change tau twin": 0.05,
    }
    assert paper("gumbel", "snli/mlp/dot") == {}  # table 5 has one number for all data sets and encoders of a task
    assert paper("gumbel", "snli/bilstm/additive") == {"accuracy": 0.78}
    assert [row.corpus for row in TABLES["adversarial"].rows(PAPER.corpora)] == ["sst", "imdb", "agnews", "20news"]


def test_a_change_is_the_tau_of_the_normal_model_minus_the_other_one() -> None:
    change = quantity("adversarial", "change tau twin").read
    assert change(models(model=checked(0.9), twin=checked(0.7))) == (pytest.approx(0.2), 90)
    assert change(models(model=checked(0.9), twin=checked(None))) == (None, 0)
    rise = quantity("gumbel", "change tau-b gumbel").read
    both = models(
        model=checked(0.9, **{"unweighted τ-b": 0.1}),
        gumbel=checked(0.7, **{"unweighted τ-b": 0.4}),
    )
    assert rise(both)[0] == pytest.approx(0.3)


def test_sst_has_fifty_clusters() -> None:
    asked: set[str] = set()

    def check(name: str) -> SimpleNamespace:
        asked.add(name)
        return SimpleNamespace(value=0.5, n_defined=9, details={"clusters (N)": 50}, references=())

    read = [quantity("ranking", name).read for name in ("tau", "clusters", "floor")]
    for corpus, name in (("sst", "information_ranking.wen_50"), ("20news", "information_ranking")):
        asked.clear()
        model = SimpleNamespace(check=check, trained=SimpleNamespace(plan=SimpleNamespace(corpus=corpus)))
        for one in read:
            one(models(model=model))
        assert asked == {name}
    builds = {row.name: row.build for row in TABLES["ranking"].rows(("sst", "20news"))}
    assert builds["sst/mlp/dot"] != builds["20news/mlp/dot"]
    assert {row.build for row in TABLES["published-rule"].rows(("sst", "20news"))} == {0}


def test_uniform_attention_ranks_nothing_and_its_tau_counts_as_zero() -> None:
    change = quantity("fixed", "change tau uniform").read
    assert change(models(model=checked(0.9), uniform=checked(None, first=0.25))) == (0.9, 90)
    # Undefined for another reason, such as states that all hold the same information.
    assert change(models(model=checked(0.9), uniform=checked(None, first=0.6))) == (None, 0)


@pytest.mark.parametrize(("after", "kept"), [(0.95, 1.0), (0.897, 1.0), (0.89, 0.0), (None, None)])
def test_a_tau_counts_as_kept_to_two_decimals(after: float | None, kept: float | None) -> None:
    read = quantity("gumbel", "kept").read
    assert read(models(model=checked(0.9), gumbel=checked(after)))[0] == kept


def ranked(name: str, tau: list[float | None], seeds: list[int] | None = None) -> Row:
    quantities = {"tau": tau, "tau uncorrected": tau, "tau-b": tau}
    return row(name, quantities, seeds=seeds, corpus=name.partition("/")[0], seconds=2.0)


def test_means_are_over_the_corpora_that_have_every_setting_and_common_seeds() -> None:
    across = TABLES["ranking"].across
    assert across is not None
    rows = [
        ranked("sst/bilstm/additive", [0.1, None]),
        ranked("sst/cnn/additive", [0.2, 0.1]),
        ranked("20news/bilstm/additive", [0.6, 0.5, 0.4]),
        ranked("20news/cnn/additive", [0.2, 0.0, 0.1]),
        ranked("agnews/bilstm/additive", [0.9]),  # its CNN was not run
    ]
    further, figures = across(rows)
    found = {one.name: one for one in further}
    assert list(found) == ["mean/additive", "mean/bilstm/additive", "mean/cnn/additive"]
    every, one = found["mean/additive"], found["mean/bilstm/additive"]
    assert every.title == "Mean over SST, 20News: BiLSTM and CNN, additive"
    assert every.lines[0].values == [pytest.approx(1.1 / 4), pytest.approx(0.6 / 3)]
    assert every.lines[0].paper is None  # the paper's mean is over three encoders
    with_mlp = [*rows, *(ranked(f"{name}/mlp/additive", [0.3, 0.3]) for name in ("sst", "20news"))]
    assert next(one for one in across(with_mlp)[0] if one.name == "mean/additive").lines[0].paper == 0.80
    assert one.title == "Mean over SST, 20News: BiLSTM, additive"
    assert one.lines[0].values == [pytest.approx(0.35), pytest.approx(0.5)]  # seed 1: defined on 20News alone
    assert one.lines[0].paper == 0.92
    assert one.lines[2].paper is None
    assert one.provenance is not None
    assert (one.provenance.seeds, one.provenance.training_seconds) == ([0, 1], 4.0)
    rows[0] = ranked("sst/bilstm/additive", [None, None])
    undefined, _ = across(rows)
    assert [one.title for one in undefined if one.name == "mean/additive"] == [every.title]
    assert "mean/bilstm/additive" not in [one.name for one in undefined]  # defined on 20News alone
    assert [one.label for one in further[:2]] == ["mean, BiLSTM and CNN, additive", "mean, BiLSTM, additive"]
    assert across([ranked("babi-1/bilstm/additive", [None])])[1] == []  # τ is undefined: no empty picture
    assert [figure.row for figure in figures] == ["sst", "20news", "agnews"]
    boxes = figures[1].boxes
    assert boxes is not None
    assert [(box.label, box.side, box.values) for box in boxes.boxes] == [
        ("additive", 0, [0.6, 0.5, 0.4]),
        ("additive", 1, [0.2, 0.0, 0.1]),
    ]


def test_a_further_row_does_not_take_the_means_away() -> None:
    """The means are over the corpora that have the most rows in common, and over at least two."""
    across = TABLES["ranking"].across
    assert across is not None
    rows = [ranked(f"{name}/mlp/{one}", [0.3]) for name in ("sst", "20news") for one in ("additive", "deep", "dot")]
    titles = [f"Mean over SST, 20News: MLP, {one}" for one in ("additive", "deep", "dot")]
    further = ["sst/cnn/additive", "imdb/cnn/additive", "agnews/mlp/additive"]
    for n in range(len(further) + 1):
        assert [one.title for one in across([*rows, *(ranked(name, [0.9]) for name in further[:n])])[0]] == titles
    assert across(rows[:3])[0] == []  # a single corpus


def claim(name: str) -> Callable[[Reproduction], Answer]:
    one: Claim = next(one for one in CLAIMS if one.name == name)
    return one.read


def test_claims_of_the_ranking() -> None:
    rows = [
        ranked("sst/bilstm/additive", [0.90, 0.91, 0.92]),
        ranked("sst/bilstm/dot", [0.30, 0.33, 0.32]),
        ranked("sst/cnn/additive", [0.80, 0.81, 0.99]),
        ranked("mean/bilstm/additive", [0.0, 0.0, 0.0]),
        ranked("mean/bilstm/dot", [0.9, 0.9, 0.9]),
    ]
    found = claim("additive-over-dot")(reproduction(ranking=rows))
    assert found.verdict == "holds"
    assert "mean/" not in found.evidence
    assert claim("deep-over-dot")(reproduction(ranking=rows)).verdict == "not run"
    assert claim("additive-over-dot")(reproduction(ranking=rows[3:])).verdict == "not run"


CORPORA = ("sst", "imdb", "agnews", "20news")


def best(first: list[float | None], second: list[float | None], corpora: Sequence[str] = CORPORA) -> Answer:
    """Answer the claim about the best setting, with these τ of a BiLSTM with additive attention and of an MLP."""
    rows = [
        one
        for name in corpora
        for one in (
            ranked(f"{name}/bilstm/additive", first),
            ranked(f"{name}/bilstm/dot", [0.1] * len(first)),
            ranked(f"{name}/mlp/deep", second),
        )
    ]
    return claim("bilstm-additive-best")(reproduction(ranking=rows))


def test_the_best_setting_is_judged_by_the_share_of_corpora() -> None:
    tied = best([0.90, 0.91, 0.92], [0.904, 0.914, 0.924])  # equal to two decimals
    assert tied.verdict == "holds"
    assert tied.evidence.startswith("no other setting has a τ that is higher by more than 0.005 in 4 of 4 corpora (")
    assert best([0.90, 0.91, 0.92], [0.5, 0.5, 0.5], CORPORA[:3]).verdict == "undecided"  # 3 corpora are too few
    beaten = best([0.90, 0.91, 0.92], [0.96, 0.97, 0.98])
    assert beaten.verdict == "does not hold"
    assert "sst: τ minus that of mlp/deep −0.060" in beaten.evidence
    assert "sst: τ minus that of bilstm/dot 0.810" in beaten.evidence


def test_settings_with_one_seed_do_not_decide_which_is_best() -> None:
    found = best([0.9], [0.5])
    assert (found.verdict, found.cause) == ("undecided", "unpaired")
    rows = [ranked("sst/bilstm/additive", [0.9, 0.9]), ranked("agnews/mlp/deep", [0.5, 0.5])]
    found = claim("bilstm-additive-best")(reproduction(ranking=rows))
    assert (found.verdict, found.cause) == ("undecided", "unpaired")


def test_a_tau_of_one_on_both_sides_says_nothing() -> None:
    rows = [ranked(f"sst/{setting}", [1.0, 1.0, 1.0]) for setting in ("bilstm/additive", "bilstm/dot", "cnn/deep")]
    assert claim("additive-over-dot")(reproduction(ranking=rows)).verdict == "saturated"
    assert claim("bilstm-additive-best")(reproduction(ranking=rows)).verdict == "saturated"
    fixed = row("sst/bilstm/additive", {"tau": [1.0, 1.0], "change tau random_attention": [0.0, 0.0]})
    assert claim("attention-learns")(reproduction({"random-attention": [fixed]})).verdict == "saturated"
    gumbel = row("sst/bilstm/additive", {"tau": [1.0, 1.0], "tau gumbel": [1.0, 1.0]})
    assert claim("gumbel-keeps")(reproduction(gumbel=[gumbel])).verdict == "saturated"


def test_fixed_attention_is_random_and_the_evidence_has_the_other_ways() -> None:
    random = row("sst/bilstm/additive", {"tau": [0.9, 0.9, 0.9], "change tau random_attention": [0.7, 0.8, 0.9]})
    others = {"change tau imposed_attention": [-0.01, 0.01], "change tau uniform": [0.9, 0.8]}
    tables = {"random-attention": [random], "fixed": [row("sst/bilstm/additive", {"tau": [0.9, 0.9], **others})]}
    found = claim("attention-learns")(reproduction(tables))
    assert found.verdict == "holds"
    assert "fixed at the normal model's weights: sst/bilstm/additive 0.000; at uniform weights: " in found.evidence
    assert claim("attention-learns")(reproduction(fixed=tables["fixed"])).verdict == "not run"


def test_gumbel_is_not_saturated_if_tau_falls_with_a_single_seed() -> None:
    at_end = row("sst/bilstm/additive", {"tau": [1.0, 1.0], "tau gumbel": [1.0, 1.0]})
    kept = row("agnews/mlp/dot", {"tau": [0.9], "tau gumbel": [0.9]})
    fallen = row("babi-2/mlp/dot", {"tau": [0.9], "tau gumbel": [-0.1]})
    assert claim("gumbel-keeps")(reproduction(gumbel=[at_end, kept])).verdict == "saturated"
    found = claim("gumbel-keeps")(reproduction(gumbel=[at_end, kept, fallen]))
    assert (found.verdict, found.cause) == ("undecided", "one seed")
    assert found.reason.endswith("With a single seed, τ falls: babi-2/mlp/dot.")


def test_models_that_were_not_trained_are_no_rivals() -> None:
    rows = [
        ranked("sst/bilstm/additive", [0.5, 0.6]),
        *(
            row(f"sst/{setting}", {"tau": [0.9, 0.8]}, excluded="accuracy 0.5; 0.8 in the paper")
            for setting in ("cnn/additive", "cnn/deep", "mlp/additive")
        ),
    ]
    found = claim("bilstm-additive-best")(reproduction(ranking=rows))
    assert (found.verdict, len(found.left_out)) == ("undecided", 3)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [([0.02, 0.03, 0.01], "holds"), ([0.3, 0.32, 0.31], "does not hold"), ([0.0, 0.3, 0.1], "undecided")],
)
def test_an_adversary_keeps_its_ranking_if_tau_falls_little(changes: list[float | None], verdict: str) -> None:
    one = row("sst/bilstm/additive", {"tau": [0.8, 0.8, 0.8], "change tau twin": changes})
    assert claim("adversary-keeps-ranking")(reproduction(adversarial=[one])).verdict == verdict


def test_gumbel_is_judged_over_settings() -> None:
    rows = [
        row(f"sst/{place}/additive", {"tau": [0.5] * 2, "tau gumbel": [0.6 if place else 0.3] * 2})
        for place in range(12)
    ]
    found = claim("gumbel-keeps")(reproduction(gumbel=rows))
    assert found.verdict == "holds"
    assert "11 of 12 settings" in found.evidence
    assert claim("gumbel-keeps")(reproduction(gumbel=rows[:3])).verdict == "undecided"
    # As in the paper, a τ of 1 that stays at 1 is kept. Settings with one seed do not count.
    at_end = [row(f"imdb/{place}/dot", {"tau": [1.0] * 2, "tau gumbel": [1.0] * 2}) for place in range(3)]
    single = [row("agnews/mlp/dot", {"tau": [0.9], "tau gumbel": [0.1]})]
    found = claim("gumbel-keeps")(reproduction(gumbel=[*rows, *at_end, *single]))
    assert "14 of 15 settings" in found.evidence
    assert "3 of them at the end of the scale before and after" in found.evidence
    assert "not counted: 1 setting in which τ is defined with a single seed" in found.evidence
    alone = claim("gumbel-keeps")(reproduction(gumbel=single))
    assert (alone.verdict, alone.cause, alone.reason) == (
        "undecided",
        "one seed",
        "In the only setting, τ is defined with a single seed.",
    )
    assert claim("gumbel-keeps")(reproduction(gumbel=[])).verdict == "not run"
