"""Models whose attention is right on a known share: rank correlations, verdicts by share, and guarantees."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from scipy import stats

from attnaudit.checks import Sufficiency, UniformFragility
from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.errors_in_turn import errors, in_turn
from attnaudit.research.validation.graded_truth import (
    graded_mechanisms,
    guarantee,
    outcomes_by_share,
    rank_correlations,
    spearman,
)
from attnaudit.research.validation.scoring import Gate, JudgedModel
from tests.units.research.validation.synthetic_scores import judged

USE = Candidate(check=UniformFragility(severity="report"), question="used", direction="at_least", may_gate=True)
POINT = Candidate(check=Sufficiency(severity="report"), question="points", direction="at_least", may_gate=True)
GATE = Gate(check=POINT.check.id, question="points", direction="at_least", threshold=0.65)
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def truth_of(share: float) -> str:
    return {0.0: "unfaithful", 1.0: "faithful"}.get(share, "graded")


def graded(mechanism: str = "rows", *, slope: float = 1.0) -> list[JudgedModel]:
    """Three models per share whose value is the share times the slope, with a small spread."""
    return [
        judged(
            f"{mechanism}-{share}", truth_of(share), {POINT.check.id: slope * share + 0.01 * seed},
            seed=seed, mechanism=mechanism, share=share,
        )
        for share in SHARES
        for seed in range(3)
    ]  # fmt: skip


def test_a_mechanism_is_graded_if_it_has_three_shares() -> None:
    ends = [judged("bypass", truth_of(share), {}, share=share, mechanism="bypass") for share in (0.0, 1.0)]
    middle = [judged("depth", "graded", {}, share=share) for share in (0.41, 0.39, 0.6)]
    trend = [judged("plain", "trend", {}, mechanism="bypass", share=0.5)]
    assert list(graded_mechanisms([*graded(), *ends, *middle, *trend])) == ["rows"]


def test_the_rank_correlation_is_that_of_scipy_with_the_interval_of_bonett_and_wright() -> None:
    x, y = [0.0, 0.2, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0], [0.1, 0.0, 0.3, 0.2, 0.7, 0.6, 0.9, 1.0]
    found = spearman(x, y)
    assert found is not None
    value, low, high = found
    assert value == pytest.approx(stats.spearmanr(x, y).statistic)
    error = ((1 + value**2 / 2) / 5) ** 0.5
    assert np.arctanh([low, value, high]) == pytest.approx(
        np.arctanh(value) + error * stats.norm.ppf([0.025, 0.5, 0.975])
    )
    assert spearman([1.0] * 8, y) is None
    assert spearman(x[:3], y[:3]) is None
    assert spearman([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0]) == (1.0, 1.0, 1.0)


def test_each_check_is_correlated_with_the_share_per_mechanism_and_over_all() -> None:
    falling = graded("heads", slope=-1.0)
    rows = rank_correlations([*graded(), *falling], [USE, POINT], [GATE])
    by_mechanism = {row.mechanism: row for row in rows if row.check == POINT.check.id}
    assert set(by_mechanism) == {"rows", "heads", ""}
    assert by_mechanism["rows"].value == pytest.approx(1.0, abs=0.02)
    assert by_mechanism["heads"].value == pytest.approx(-1.0, abs=0.02)
    assert (by_mechanism[""].models, by_mechanism[""].shares) == (36, 6)
    assert abs(by_mechanism[""].value or 0.0) < 0.2
    unmeasured = [row for row in rows if row.check == USE.check.id]
    assert [(row.value, row.models, row.gated) for row in unmeasured] == [(None, 0, False)] * 3


def test_verdicts_are_counted_by_share() -> None:
    rows = outcomes_by_share(graded(), [GATE])
    assert [row.share for row in rows] == list(SHARES)
    assert [(row.passes, row.inconclusive, row.fails) for row in rows] == [
        (0, 0, 3), (0, 0, 3), (0, 0, 3), (0, 3, 0), (3, 0, 0), (3, 0, 0)
    ]  # fmt: skip
    assert rows[2].median_values == {POINT.check.id: pytest.approx(0.41)}


def test_a_pass_guarantees_the_lowest_share_that_passed() -> None:
    found = guarantee(graded(), [GATE])
    assert found is not None
    assert (found.share, found.source) == (0.8, "graded models")
    assert "right on less than 80% (0 of 12); 12 of these models are in the tuning half" in found.sentence
    held_out = [JudgedModel(msgspec.structs.replace(one.entry, half="held_out"), one.records) for one in graded()]
    tested = guarantee(held_out, [GATE])
    assert tested is not None
    assert "right on less than 80% (0 of 12); with 95% confidence, at most 24%" in tested.sentence
    loose = Gate(check=POINT.check.id, question="points", direction="at_least", threshold=-1.0)
    worthless = guarantee(graded(), [loose])
    assert worthless is not None
    assert worthless.share == 0.0
    assert guarantee([model for model in graded() if model.entry.truth != "graded"], [GATE]) is None


def test_a_gate_on_the_share_itself_guarantees_its_threshold() -> None:
    share = Gate(check="pointing.logits.share", question="points", direction="at_least", threshold=0.7)
    found = guarantee(graded(), [share])
    assert found is not None
    assert (found.share, found.source) == (0.7, "definition")
    assert "on at least 70% of the texts" in found.sentence


def test_errors_count_faithful_unfaithful_and_graded_models_apart() -> None:
    found = errors(graded(), [Gate(check=POINT.check.id, question="points", direction="at_least", threshold=0.5)])
    assert (found.false_alarms.hits, found.false_alarms.n) == (0, 3)
    assert (found.misses.hits, found.misses.n) == (0, 3)
    assert (found.graded_passes.hits, found.graded_passes.n) == (3, 9)


def test_every_mechanism_is_judged_by_a_policy_that_never_saw_it() -> None:
    """The faithful models of "shy" have low values. Without them, the threshold is too high for them."""
    models = [
        judged(f"{mechanism}-{truth}", truth, {USE.check.id: value + 0.01 * seed}, seed=seed, mechanism=mechanism,
               encoder=encoder)
        for mechanism, encoder, good in (("bold", "gru", 0.9), ("loud", "cnn", 0.8), ("shy", "cnn", 0.35))
        for truth, value in (("faithful", good), ("unfaithful", 0.1))
        for seed in range(4)
    ]  # fmt: skip
    turn = in_turn(models, [USE], "mechanism", seed=0)
    assert turn is not None
    assert [(row.name, row.errors.false_alarms.hits) for row in turn.rows] == [("bold", 0), ("loud", 0), ("shy", 4)]
    assert (turn.total.false_alarms.hits, turn.total.false_alarms.n) == (4, 12)
    assert (turn.total.misses.hits, turn.total.misses.n) == (0, 12)
    by_encoder = in_turn(models, [USE], "encoder", seed=0)
    assert by_encoder is not None
    assert [row.name for row in by_encoder.rows] == ["cnn", "gru"]
    assert in_turn([model for model in models if model.entry.encoder == "gru"], [USE], "encoder", seed=0) is None
