"""Exchange of tokens between texts: what it finds in models that are written down by hand, and what it requires."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from attnaudit.instances import Dataset, Instance
from attnaudit.models.architecture import PlantedTables
from attnaudit.models.reference_adapter import ReferenceModel
from attnaudit.models.vocabulary import RESERVED, Vocabulary
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe
from attnaudit.research.planted.kind import Exchange, Recipe, TrainingInputs, compiled_kind
from attnaudit.research.planted.verify_exchange import exchange_tokens, unmet_by_exchange
from attnaudit.research.planted.verify_label import ExchangeEvidence, LabelEvidence

WORDS = ("good", "bad", "idle", "so", "switch")
VOCABULARY = Vocabulary([*RESERVED, *WORDS])
CLASSES = ("negative", "positive")


def row(name: str, *, score: float = 0.0, own: float = 0.0, bypass: float = 0.0) -> tuple[str, float, float, float]:
    return name, score, own, bypass


def adapter(
    *rows: tuple[str, float, float, float], settings: PlantedTables | None = None, bias: float = 0.0
) -> ReferenceModel:
    tables = WordTables(vocabulary=VOCABULARY, classes=CLASSES, settings=settings or PlantedTables())
    for name, score, own, bypass in rows:
        place = VOCABULARY.entries.index(name)
        tables.score[place], tables.own[place], tables.bypass[place] = score, own, bypass
    tables.marker[VOCABULARY.entries.index("switch")] = 1.0
    tables.bias = torch.tensor([bias])
    made = tables.compiled()
    return ReferenceModel(made.model, made.vocabulary, made.classes)


def texts(*pairs: tuple[str, str]) -> Dataset:
    instances = tuple(Instance(id=str(index), text=text, label=label) for index, (text, label) in enumerate(pairs * 10))
    return Dataset(name="texts", source="here", description="", instances=instances, classes=CLASSES)


PLAIN = texts(("so good idle", "positive"), ("bad so idle", "negative"))


def test_the_decision_follows_the_attended_tokens_of_a_faithful_model() -> None:
    model = adapter(row("good", score=6.0, own=1.0), row("bad", score=6.0, own=-1.0))
    assert exchange_tokens(model, PLAIN, Exchange()) == ExchangeEvidence(attended=1.0, rest=0.0, rows=20)


def test_the_decision_follows_the_other_tokens_of_a_model_with_a_bypass() -> None:
    model = adapter(
        row("good", bypass=1.0), row("bad", bypass=-1.0), row("idle", score=6.0), settings=PlantedTables(bypass="sum")
    )
    assert exchange_tokens(model, PLAIN, Exchange()) == ExchangeEvidence(attended=0.0, rest=1.0, rows=20)


def test_the_decision_follows_on_the_texts_without_a_switch() -> None:
    """Attention is right on one pair of texts in two. A switch stays in place, and its donors have one, too."""
    model = adapter(
        row("good", score=6.0, own=1.0, bypass=0.0),
        row("bad", score=6.0, own=-1.0, bypass=0.0),
        row("so", bypass=1.0),
        row("idle", bypass=-1.0),
        settings=PlantedTables(bypass="sum", switched=True),
    )
    both = texts(
        ("good so so", "positive"),
        ("bad so so", "negative"),
        ("switch good so so", "positive"),
        ("switch good idle idle", "negative"),
    )
    kept = Exchange(kept=frozenset({"switch"}))
    assert exchange_tokens(model, both, kept) == ExchangeEvidence(attended=0.5, rest=0.5, rows=40)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.8, 1.0])
def test_the_logits_follow_the_attended_tokens_by_their_share_of_the_evidence(share: float) -> None:
    """Attention reads "good" and "bad", and the bypass reads "so" and "idle", in every text."""
    model = adapter(
        row("good", score=30.0, own=share),
        row("bad", score=30.0, own=-share),
        row("so", bypass=1 - share),
        row("idle", bypass=share - 1),
        settings=PlantedTables(bypass="sum"),
    )
    found = exchange_tokens(model, texts(("good so", "positive"), ("bad idle", "negative")), Exchange(of_evidence=True))
    assert found.rows == 20
    assert found.attended == pytest.approx(share, abs=1e-6)
    assert found.rest == pytest.approx(1 - share, abs=1e-6)


def test_an_unmet_share_of_the_evidence_is_named() -> None:
    (reason, _) = unmet("graded", 0.5, 0.5, given=recipe(0.4, Exchange(of_evidence=True)))
    assert "the logits change by 0.500 of the change that all tokens make, expected 0.40 ± 0.07" in reason


def test_texts_of_the_class_without_evidence_are_donors_only() -> None:
    model = adapter(row("good", score=6.0, own=1.0), bias=-0.5)
    rare = texts(("so good idle", "positive"), ("so so idle", "negative"))
    found = exchange_tokens(model, rare, Exchange(absence="negative"))
    assert found == ExchangeEvidence(attended=1.0, rest=0.0, rows=10)


def test_without_two_predicted_classes_nothing_can_be_exchanged() -> None:
    model = adapter(bias=1.0)
    assert exchange_tokens(model, PLAIN, Exchange()) == ExchangeEvidence(attended=None, rest=None, rows=0)


def recipe(share: float | None = None, exchange: Exchange | None = None) -> Recipe:
    return compiled_recipe(
        lambda: WordTables(vocabulary=VOCABULARY, classes=CLASSES), share=share, exchange=exchange or Exchange()
    )


def unmet(truth: str, attended: float | None, rest: float | None, *, rows: int = 100, given: Recipe) -> list[str]:
    def none(_inputs: TrainingInputs) -> Recipe:
        raise NotImplementedError

    evidence = LabelEvidence(
        rank_agreement=None,
        effect_agreement=None,
        defined=0.0,
        confirmed=None,
        accuracy=0.9,
        reference_accuracy=None,
        bypass_share=None,
        unmet=[],
        exchange=ExchangeEvidence(attended=attended, rest=rest, rows=rows),
    )
    return unmet_by_exchange(compiled_kind("one", "one", truth, "", none), given, evidence)


@pytest.mark.parametrize(
    ("truth", "attended", "rest", "share"),
    [("faithful", 0.9, 0.1, None), ("unfaithful", 0.1, 0.9, None), ("graded", 0.46, 0.57, 0.4)],
)
def test_a_model_that_meets_every_requirement_gets_its_label(
    truth: str, attended: float, rest: float, share: float | None
) -> None:
    assert unmet(truth, attended, rest, given=recipe(share)) == []


@pytest.mark.parametrize(
    ("truth", "attended", "rest", "share", "says"),
    [
        (
            "faithful",
            0.89,
            0.0,
            None,
            "the attended tokens are replaced by those of another text, "
            "the decision becomes that of the other text in 0.890",
        ),
        (
            "faithful",
            1.0,
            0.11,
            None,
            "the other tokens are replaced by those of another text, "
            "the decision becomes that of the other text in 0.110",
        ),
        (
            "unfaithful",
            0.11,
            1.0,
            None,
            "the attended tokens are replaced by those of another text, "
            "the decision becomes that of the other text in 0.110",
        ),
        (
            "unfaithful",
            0.0,
            0.5,
            None,
            "the other tokens are replaced by those of another text, "
            "the decision becomes that of the other text in 0.500",
        ),
        ("graded", 0.48, 0.6, 0.4, "0.480 of the cases, expected 0.40 ± 0.07"),
        ("graded", 0.4, 0.6, None, "names no share"),
    ],
)
def test_every_unmet_requirement_is_named(
    truth: str, attended: float, rest: float, share: float | None, says: str
) -> None:
    (reason,) = unmet(truth, attended, rest, given=recipe(share))
    assert says in reason


def test_too_few_texts_and_a_low_accuracy_are_named() -> None:
    strict = dataclasses.replace(recipe(), minimum_accuracy=0.95)
    assert unmet("faithful", 1.0, 0.0, rows=19, given=strict) == [
        "tokens could be exchanged in 19 texts, expected 20 or more",
        "accuracy 0.900 is below 0.95",
    ]


def test_the_other_tokens_need_not_decide_where_no_token_does() -> None:
    assert unmet("unfaithful", 0.0, 0.0, given=recipe(exchange=Exchange(rest_decides=False))) == []
    assert len(unmet("unfaithful", 0.0, 0.0, given=recipe())) == 1
