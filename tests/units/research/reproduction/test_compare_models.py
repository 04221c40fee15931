"""Comparisons of two models, text by text, against scipy."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from attnaudit.errors import CheckError
from attnaudit.models.training import Score
from attnaudit.research.reproduction.audit_models import AuditedModel
from attnaudit.research.reproduction.compare_models import jsd_between, jsd_by_text, tvd_between, tvd_by_text
from attnaudit.research.reproduction.paper_tables import Result
from attnaudit.research.reproduction.train_models import TrainedPlan
from tests.units.research.reproduction.small_corpus import plan

LENGTHS = (2, 5, 1, 9)


def measured(seed: int, *, kept: bool = True, lengths: tuple[int, ...] = LENGTHS) -> AuditedModel:
    generator = np.random.default_rng(seed)
    return AuditedModel(
        fingerprints={}, checks=[], skipped={}, instances=len(lengths), seconds=0.0, cpu_seconds=0.0,
        classes=["a", "b", "c"],
        ids=[str(i) for i in range(len(lengths))],
        labels=[0] * len(lengths),
        predicted=[0] * len(lengths),
        probabilities=generator.dirichlet([1.0] * 3, len(lengths)).tolist(),
        scalars={},
        tokens=[["w"] * n for n in lengths],
        per_token={"attention": [generator.dirichlet([1.0] * n).tolist() for n in lengths]} if kept else {},
    )  # fmt: skip


def result(*audits: AuditedModel) -> Result:
    score = Score(accuracy=1.0, f1=1.0, n=4)
    trained = TrainedPlan(
        key="", folder="", plan=plan(), dev=score, test=score, chosen=1, seconds=0.0, cpu_seconds=0.0
    )  # fmt: skip
    return Result(trained=trained, audits=audits)


def test_jsd_and_tvd_match_scipy_and_numpy() -> None:
    one, other = measured(0), measured(1)
    models = {"model": result(other), "twin": result(one)}
    pairs = list(zip(one.per_token["attention"], other.per_token["attention"], strict=True))
    expected = [jensenshannon(a, b) ** 2 if len(a) > 1 else None for a, b in pairs]
    found = jsd_by_text(models, "twin")
    assert found[2] is None
    assert [x for x in found if x is not None] == pytest.approx([x for x in expected if x is not None])
    value, n = jsd_between("twin")(models)
    assert (value, n) == (pytest.approx(np.mean([x for x in expected if x is not None])), 3)
    apart = np.abs(np.array(one.probabilities) - np.array(other.probabilities)).sum(1) / 2
    assert tvd_by_text(models, "twin") == pytest.approx(apart.tolist())
    assert tvd_between("twin")(models) == (pytest.approx(apart.mean()), 4)


def test_the_order_of_roles_does_not_matter() -> None:
    models = {"model": result(measured(1)), "twin": result(measured(0))}
    assert jsd_by_text(models, "twin", "model") == pytest.approx(jsd_by_text(models, "model", "twin"))


def test_a_model_does_not_differ_from_itself() -> None:
    models = {"model": result(measured(1))}
    assert jsd_between("model")(models)[0] == pytest.approx(0, abs=1e-12)
    assert tvd_between("model")(models)[0] == 0


def test_undefined_attention_is_left_out() -> None:
    holed = measured(0)
    holed.per_token["attention"][1][0] = None
    models = {"model": result(measured(1)), "twin": result(holed)}
    assert jsd_between("twin")(models)[1] == 2


def test_the_audit_that_kept_attention_is_read() -> None:
    models = {"model": result(measured(3, kept=False), measured(1)), "twin": result(measured(0))}
    assert jsd_between("twin")(models)[1] == 3


def test_audits_that_cannot_be_compared_are_reported() -> None:
    models = {"model": result(measured(1, kept=False)), "twin": result(measured(0))}
    with pytest.raises(CheckError, match=r"'model' has no audit to compare.*tokens=\(\"attention\",\)"):
        jsd_between("twin")(models)
    other = msgspec.structs.replace(measured(0), ids=["x", "y", "z", "w"])
    with pytest.raises(CheckError, match="different texts"):
        tvd_between("twin")({"model": result(measured(1)), "twin": result(other)})
