"""The requirements of a label: what is measured, and which reason a model gets that does not meet one."""

from __future__ import annotations

import msgspec
import pytest
import torch

from attnaudit.data.movie_reviews import split
from attnaudit.research.planted.kind import Kind, Recipe, TrainingInputs, class_words, kinds
from attnaudit.research.planted.verify_label import (
    LabelEvidence,
    _BatchEvidence,
    _same_order_share,
    unmet_requirements,
)


def kind(truth: str, *, needs_bypass: bool = False) -> Kind:
    def none(_inputs: TrainingInputs) -> Recipe:
        raise NotImplementedError

    return Kind(
        name="synthetic", mechanism="synthetic", truth=truth, description="", recipe=none, needs_bypass=needs_bypass
    )


GOOD = LabelEvidence(
    rank_agreement=0.95,
    effect_agreement=0.94,
    defined=1.0,
    confirmed=0.99,
    accuracy=0.8,
    reference_accuracy=None,
    bypass_share=None,
    unmet=[],
)
BAD = msgspec.structs.replace(GOOD, rank_agreement=0.02, effect_agreement=0.01, bypass_share=0.99)


def test_a_model_that_meets_every_requirement_gets_its_label() -> None:
    assert unmet_requirements(kind("faithful"), GOOD) == []
    assert unmet_requirements(kind("unfaithful", needs_bypass=True), BAD) == []


@pytest.mark.parametrize(
    ("truth", "changed", "says"),
    [
        ("faithful", {"rank_agreement": 0.89}, "rank agreement 0.890 is below 0.9"),
        ("faithful", {"effect_agreement": 0.5}, "agreement with the effect 0.500 is below"),
        ("faithful", {"rank_agreement": None}, "undefined"),
        ("faithful", {"defined": 0.5}, "defined on 50%"),
        ("faithful", {"confirmed": 0.7}, "the order of 0.700 of the pairs"),
        ("faithful", {"accuracy": 0.52}, "accuracy 0.520"),
        ("unfaithful", {"rank_agreement": 0.3}, "above 0.1"),
        ("unfaithful", {"bypass_share": 0.9}, "accounts for 0.900"),
        ("unfaithful", {"reference_accuracy": 0.9}, "0.900 without deceptive training"),
    ],
)
def test_every_unmet_requirement_is_named(truth: str, changed: dict[str, float | None], says: str) -> None:
    evidence = msgspec.structs.replace(GOOD if truth == "faithful" else BAD, **changed)
    (reason,) = unmet_requirements(kind(truth, needs_bypass=truth == "unfaithful"), evidence)
    assert says in reason


def test_a_trend_has_no_requirement() -> None:
    assert unmet_requirements(kind("trend"), msgspec.structs.replace(GOOD, rank_agreement=None, accuracy=0.1)) == []


def test_pairs_in_the_same_order_are_counted_by_hand() -> None:
    evidence = _BatchEvidence(
        real=torch.tensor([[True, True, True, False], [True, True, False, False]]),
        weights=torch.zeros(2, 4),
        contribution=torch.tensor([[3.0, 2.0, 1.0, 9.0], [1.0, 1.0, 0.0, 0.0]]),
        effect=torch.tensor([[3.0, 1.0, 1.0, 0.0], [1.0, 2.0, 0.0, 0.0]]),
        own=torch.zeros(2),
        text=torch.zeros(2),
    )
    found = _same_order_share(evidence)
    assert found[0].item() == pytest.approx((1 + 1 + 0.5) / 3)
    assert found[1].isnan()


def test_every_kind_has_a_truth_a_half_and_a_description() -> None:
    found = kinds()
    truths = {truth: [one.name for one in found.values() if one.truth == truth] for truth in ("faithful", "unfaithful")}
    assert len(truths["faithful"]) >= 4
    assert {"bypass", "decoys", "cue_avoidance", "label_everywhere", "label_at_one_place"} <= set(truths["unfaithful"])
    assert {"plain", "tying", "residual", "uniform", "frozen_random", "twin"} <= {
        one.name for one in found.values() if one.truth == "trend"
    }
    assert all(one.description and one.mechanism and one.half in ("tuning", "held_out") for one in found.values())


def test_words_that_go_with_a_class_become_cues_and_decoys() -> None:
    cues, decoys = class_words(split("train"))
    assert not cues & decoys
    assert abs(len(cues) - len(decoys)) <= 1
    assert "bad" in cues | decoys
    assert "the" not in cues | decoys
