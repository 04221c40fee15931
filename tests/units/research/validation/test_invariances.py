"""The table of the invariances: changed models compute what they claim, and it finds values that are not invariant."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from attnaudit import checks
from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.adapters.protocol import TEXT
from attnaudit.errors import ModelError
from attnaudit.research.validation.changed_adapters import (
    IDLE,
    with_idle_tokens,
    with_logits,
    with_reordered_classes,
)
from attnaudit.research.validation.figure_text import broken_invariances, invariance_table
from attnaudit.research.validation.figures_schema import InvarianceResult
from attnaudit.research.validation.invariance_models import FILLERS, InvarianceModel, demo, hand_made
from attnaudit.research.validation.invariances import (
    INVARIANCE_NAMES,
    LABEL_SHARES,
    READING,
    WHOLE_DATA,
    Outcome,
    measure_invariances,
)
from tests.small_models import adapter

SMALL = [demo(6), hand_made(2, seed=0, texts=12), hand_made(3, seed=0, texts=12)]


def run(model: PooledAttentionAdapter, original: InvarianceModel) -> tuple[np.ndarray, np.ndarray, list[list[str]]]:
    """Return logits, attention and tokens of the model on the texts of the original."""
    inputs = model.collate(original.dataset.instances)
    with torch.no_grad():
        trace = model.run(inputs)
    return trace.logits.numpy(), trace.attention["attention"][:, 0, 0].numpy(), inputs.tokens[TEXT]


@pytest.mark.parametrize("model", SMALL, ids=lambda m: m.name)
def test_changed_logits(model: InvarianceModel) -> None:
    logits, attention, _ = run(model.adapter, model)
    classes = len(model.adapter.capabilities.classes)
    bias = np.arange(1.0, classes + 1)
    after, same, _ = run(with_logits(model.adapter, scale=10.0, bias=bias.tolist()), model)
    added = bias[1:] - bias[:1] if logits.shape[1] == 1 else bias
    np.testing.assert_allclose(after, 10 * logits + added, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(same, attention)


@pytest.mark.parametrize("model", SMALL, ids=lambda m: m.name)
def test_reordered_classes(model: InvarianceModel) -> None:
    logits, _, _ = run(model.adapter, model)
    order = list(range(len(model.adapter.capabilities.classes)))[::-1]
    names = [f"new {index}" for index in order]
    changed = with_reordered_classes(model.adapter, order, names)
    assert changed.capabilities.classes == tuple(names)
    expected = -logits if logits.shape[1] == 1 else logits[:, order]
    np.testing.assert_allclose(run(changed, model)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", SMALL, ids=lambda m: m.name)
def test_idle_tokens_do_nothing_and_get_no_weight(model: InvarianceModel) -> None:
    logits, attention, tokens = run(model.adapter, model)
    changed = with_idle_tokens(model.adapter, 3)
    after, weights, longer = run(changed, model)
    np.testing.assert_allclose(after, logits, rtol=1e-5, atol=1e-5)
    for row, words in enumerate(tokens):
        assert longer[row] == [*words, IDLE, IDLE, IDLE]
        np.testing.assert_allclose(weights[row, : len(words)], attention[row, : len(words)], atol=1e-6)
        assert not weights[row, len(words) :].any()
    inputs = changed.collate(model.dataset.instances)
    replaced = torch.stack([inputs.ids[TEXT][0] < 0])
    substituted = changed.substitute(inputs, TEXT, torch.tensor([0]), replaced)
    assert torch.equal(substituted.ids[TEXT][0], inputs.ids[TEXT][0])
    only_idle = changed.keep(inputs, TEXT, torch.tensor([0]), replaced)
    shares = changed.run(only_idle).attention["attention"][0, 0, 0].detach()
    np.testing.assert_allclose(shares[only_idle.mask[TEXT][0]].numpy(), 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_variants_of_hand_made_models(classes: int) -> None:
    model = hand_made(classes, seed=1, texts=20)
    assert model.shifted_scores is not None
    assert model.moved_weights is not None
    logits, attention, tokens = run(model.adapter, model)
    shifted_logits, shifted, _ = run(model.shifted_scores, model)
    np.testing.assert_allclose(shifted, attention, atol=1e-12)
    np.testing.assert_allclose(shifted_logits, logits, atol=1e-12)
    moved_logits, moved, _ = run(model.moved_weights, model)
    assert np.abs(moved_logits - logits).max() < 0.05
    fillers = [(r, i) for r, row in enumerate(tokens) for i, token in enumerate(row) if token.startswith("filler")]
    assert max(attention[place] for place in fillers) < 1e-3
    assert any(attention[place] != moved[place] for place in fillers)
    assert len({tokens[r][i] for r, i in fillers}) == FILLERS


def test_a_decoder_that_is_not_linear_is_refused() -> None:
    model = adapter(2, decoder=torch.nn.Sequential(torch.nn.Linear(10, 2)), description="nested")
    with pytest.raises(ModelError, match=r"nested: its decoder is not an nn\.Linear"):
        with_logits(model, scale=2.0)


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], InvarianceResult]:
    audited = [
        checks.TotalEffect(on="logits", severity="report"),
        checks.Pointing(on="logits", severity="report"),
        checks.PermutationFragility(severity="report"),
        checks.Comprehensiveness(against="signed_loo", severity="report"),
        checks.InformationRanking(severity="report"),
        checks.Pointing(severity="report", reading="cls"),
    ]
    records = measure_invariances(audited, seed=0, models=SMALL[1:])
    assert len(records) == len(INVARIANCE_NAMES) * len(audited)
    assert msgspec.json.decode(msgspec.json.encode(records), type=list[InvarianceResult]) == records
    return {(one.invariance, one.check): one for one in records}


def test_the_table_tells_which_values_are_invariant(table: dict[tuple[str, str], InvarianceResult]) -> None:
    held = {key: record.holds for key, record in table.items()}
    assert held["logits × 10", "total_effect.logits"] is True
    assert held["logits × 0.1", "pointing.logits"] is True
    assert held["bias per class", "total_effect.logits"] is True
    for name in ("classes renamed and reordered", "rows reordered", "negligible weights moved"):
        assert all(held[name, check] for check in ("total_effect.logits", "pointing.logits"))
    for name in ("logits × 10", "bias per class", LABEL_SHARES, "idle tokens added"):
        assert held[name, "comprehensiveness.deletion.signed_loo"] is False
    assert held["logits × 0.1", "permutation_fragility.tvd"] is False
    assert held[LABEL_SHARES, "permutation_fragility.tvd"] is False


def test_the_text_names_the_values_that_are_not_invariant(table: dict[tuple[str, str], InvarianceResult]) -> None:
    erasure = "comprehensiveness.deletion.signed_loo"
    head, rows = invariance_table(list(table.values()))
    assert head[0] == "invariance"
    assert {row[0]: row[head.index(erasure)] for row in rows}["idle tokens added"].endswith(" (not invariant)")
    phrases = broken_invariances(list(table.values()))
    assert any(one.startswith(f"{erasure} is not invariant (idle tokens added): its value") for one in phrases)


def test_invariances_that_do_not_apply_are_explained(table: dict[tuple[str, str], InvarianceResult]) -> None:
    for check in ("total_effect.logits", "pointing.logits", "permutation_fragility.tvd"):
        record = table["idle tokens added", check]
        assert record.holds is None
        assert record.change is not None
        assert "does not apply" in record.note
    ranking = next(key[1] for key in table if key[1].startswith("information_ranking"))
    assert table[LABEL_SHARES, ranking].note == WHOLE_DATA
    for name in INVARIANCE_NAMES:
        record = table[name, checks.Pointing(severity="report", reading="cls").id]
        assert (record.holds, record.change, record.note) == (None, None, READING)


def test_an_outcome_keeps_the_change_furthest_above_what_is_allowed() -> None:
    outcome = Outcome()
    outcome.add(None, 0.3, 0.01, "undefined before")
    assert outcome.record("change", "check", "").note == "not measured: the value is undefined on every model"
    outcome.add(0.5, 0.55, 0.1, "noisy")
    outcome.add(0.5, 0.53, 0.01, "exact")
    record = outcome.record("change", "check", "")
    assert (record.model, record.allowed, record.holds) == ("exact", 0.01, False)
    assert record.change == pytest.approx(0.03)
    outcome.add(0.5, None, 0.01, "broken")
    record = outcome.record("change", "check", "")
    assert (record.model, record.holds, record.note) == ("broken", False, "the value becomes undefined on broken")
