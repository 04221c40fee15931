"""Checks of a model whose target is not a decision: what is undefined says so, and the rest works."""

from __future__ import annotations

import numpy as np
import pytest

from attnaudit import checks
from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.engine.planning import refusals
from attnaudit.targets import Target
from tests.small_models import dataset, parts

CHECKS = (
    checks.TotalEffect(severity="report"),
    checks.Pointing(severity="report"),
    checks.UniformFragility(severity="report"),
    checks.UniformFragility(measure="f1_drop", severity="report"),
    checks.Comprehensiveness(measure="decision", against="random", severity="report"),
    checks.TokenProbability(severity="report"),
)
OTHERS = (checks.Comprehensiveness(against="random", severity="report"), checks.Polarity(severity="report"))
REASON = "the target, the score 'neutral' (no threshold, scale 2), is not a decision; declare a threshold"


def adapter() -> PooledAttentionAdapter:
    target = Target(kind="score", name="neutral", scale=2.0)
    return PooledAttentionAdapter(**parts(3), mask_id=1, target=target)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def measurements() -> Measurements:
    needs = sorted({need for check in (*CHECKS, *OTHERS) for need in check.needs()})
    return measure(adapter(), dataset(), needs, model="m", seed=0)[0]


def test_effects_need_no_decisions(measurements: Measurements) -> None:
    assert set(measurements.predicted.tolist()) == {1}  # the target, even where its probability is below one half
    assert min(vector[1] for vector in measurements.vector("probabilities")) < 0.5
    for check in CHECKS[:3]:
        record = check.judge(measurements)
        assert record.value is not None
        assert not any("κ" in name or "is predicted" in name for name in record.details)
        assert record.details.get("share of decisions changed") is None
    assert REASON in CHECKS[0].judge(measurements).note


def test_what_needs_decisions_is_undefined_with_the_reason(measurements: Measurements) -> None:
    for check in CHECKS[3:]:
        record = check.judge(measurements)
        assert record.value is None
        assert REASON in record.note or REASON in record.undefined


def test_a_change_of_the_output_is_not_called_a_change_of_class(measurements: Measurements) -> None:
    record = CHECKS[2].judge(measurements)
    assert record.in_words == (
        f"Giving all tokens of a text the same weight changes the probability of the target by "
        f"{record.value:.3f} on average."
    )


def test_no_text_mentions_another_class_or_a_prediction_of_one(measurements: Measurements) -> None:
    for check in (CHECKS[0], CHECKS[2], *OTHERS):
        record = check.judge(measurements)
        texts = (
            record.question,
            record.why,
            record.how_to_read,
            record.in_words,
            record.when_failed,
            record.value_name,
        )
        for text in (*texts, *(chart.y_label for chart in record.charts)):
            assert "class" not in text
            assert "predicted" not in text
    assert "lowers the probability of the target by" in OTHERS[0].judge(measurements).in_words


def test_balanced_classes_are_equal_weights(measurements: Measurements) -> None:
    balanced, sampled = (
        checks.TotalEffect(classes=one, severity="report").judge(measurements)  # type: ignore[arg-type]
        for one in ("balanced", "as_sampled")
    )
    assert balanced.value is not None
    assert np.isclose(balanced.value, sampled.value)


def test_decision_flips_are_refused() -> None:
    (error,) = refusals(adapter(), checks.DecisionFlip(severity="report").needs()).values()
    assert "needs decisions" in str(error)
    assert "declare the threshold" in str(error)
