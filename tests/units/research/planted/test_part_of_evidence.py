"""Models whose attention is right on a part of the evidence in each text: the measured share is the intended one."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnaudit.research.planted.planted_population import PlantedPlan, build_one, describe
from attnaudit.research.planted.verify_exchange import EXCHANGE, LOGIT_EXCHANGE


@pytest.mark.parametrize(("data", "seed"), [("made", 0), ("movie-reviews", 1), ("made", 2)])
def test_a_graded_model_meets_its_label(tmp_path: Path, data: str, seed: int) -> None:
    record = build_one(tmp_path, PlantedPlan(kind="part_of_40", data=data, alignment="dot", seed=seed))
    assert record["excluded_because"] == []
    assert (record["truth"], record["share"]) == ("graded", 0.4)
    verified = record["verified_by"]
    assert verified["name"] == LOGIT_EXCHANGE
    assert verified["attended"] == pytest.approx(0.4, abs=0.07)
    assert verified["rest"] == pytest.approx(0.6, abs=0.07)
    assert "of the change of the logits" in describe(record)


@pytest.mark.parametrize(("kind", "truth"), [("part_of_0", "unfaithful"), ("part_of_100", "faithful")])
def test_both_ends_are_verified_by_decisions(tmp_path: Path, kind: str, truth: str) -> None:
    record = build_one(tmp_path, PlantedPlan(kind=kind, data="made", alignment="dot", seed=0))
    assert (record["truth"], record["excluded_because"]) == (truth, [])
    assert record["verified_by"]["name"] == EXCHANGE
