"""One LSTM layer whose variants share states, against reading every shorter input on its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.adapters.pooled import lstm_layers, masked_recurrence, recurrent_encoders
from attnaudit.conformance import check_adapter
from attnaudit.engine.batches.attention_view import AttentionView
from attnaudit.errors import AdapterError
from tests import strategies
from tests.small_models import WORDS, Encoder, adapter, dataset, tokenize_with_ends
from tests.strategies import ragged_batches
from tests.units.conformance.variants import batch, deletion_agrees, masking_agrees, states_are_of_the_kept_alone

torch.manual_seed(0)
LAYERS: dict[str, lstm_layers.Layer] = {
    "both ways": nn.LSTM(3, 2, batch_first=True, bidirectional=True),
    "forwards": nn.LSTM(3, 2, batch_first=True),
    "a pair": (nn.LSTM(3, 2, batch_first=True), nn.LSTM(3, 2, batch_first=True)),
    "without bias": nn.LSTM(3, 2, batch_first=True, bidirectional=True, bias=False),
}


def plain(layer: lstm_layers.Layer, embeddings: Tensor) -> Tensor:
    """(n, d) -> (n, m) states of one input."""
    if isinstance(layer, tuple):
        return torch.cat([layer[0](embeddings)[0], layer[1](embeddings.flip(0))[0].flip(0)], dim=-1)
    states: Tensor = layer(embeddings)[0]
    return states


@pytest.mark.parametrize("name", list(LAYERS))
@given(case=ragged_batches())
def test_states_are_those_of_the_tokens_that_stay_read_alone(
    name: str, case: tuple[Tensor, Tensor, Tensor, Tensor]
) -> None:
    embeddings, mask, rows, keep = case
    shared = recurrent_encoders.share(LAYERS[name], embeddings, mask)
    found = recurrent_encoders.states_without(shared, rows, keep)
    states_are_of_the_kept_alone(found, shared, case, partial(plain, LAYERS[name]))


@settings(max_examples=25)
@given(gone=st.lists(st.integers(0, 79), min_size=1, max_size=3), seed=st.integers(0, 2**31), padding=st.integers(0, 3))
def test_a_variant_whose_state_is_that_of_the_whole_input_again_is_not_read_on(
    gone: list[int], seed: int, padding: int
) -> None:
    forgetful = nn.LSTM(3, 2, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for name, parameter in forgetful.named_parameters():
            if "bias" in name:
                parameter[2:4] -= 1.0  # the forget gates
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(1, 80 + padding, 3, generator=generator)
    keep = torch.ones(2, 80 + padding, dtype=torch.bool)
    keep[0, gone[0]] = False
    keep[1, gone] = False
    mask = torch.arange(80 + padding)[None] < 80
    shared = recurrent_encoders.share(forgetful, embeddings, mask)
    steps = 0
    real = recurrent_encoders._step

    def counted(gates: Tensor, *rest: Tensor) -> None:
        nonlocal steps
        steps += len(gates)
        real(gates, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent_encoders, "_step", counted)
        found = recurrent_encoders.states_without(shared, torch.tensor([0, 0]), keep)
    for variant, stays in zip(found, keep & mask, strict=True):
        alone = plain(forgetful, embeddings[0, stays])
        torch.testing.assert_close(variant[: len(alone)], alone, atol=1e-6, rtol=0)
        assert not variant[len(alone) :].any()
    furthest = max(gone) - min(gone)
    assert steps <= 2 * (40 + 40 + furthest)


@pytest.mark.parametrize("name", list(LAYERS))
@given(case=ragged_batches(), data=st.data())
def test_influences_are_gradients_of_the_norms_of_states(
    name: str, case: tuple[Tensor, Tensor, Tensor, Tensor], data: st.DataObject
) -> None:
    embeddings, mask, _, _ = case
    start = data.draw(st.integers(0, mask.shape[1] - 1))
    positions = slice(start, data.draw(st.integers(start + 1, mask.shape[1])))
    found = recurrent_encoders.influence(recurrent_encoders.share(LAYERS[name], embeddings, mask), positions)
    expected = torch.zeros(*mask.shape, mask.shape[1])
    for row in range(len(mask)):
        places = mask[row].nonzero()[:, 0]
        leaf = embeddings[row, places].clone().requires_grad_(True)
        if len(places):
            norms = plain(LAYERS[name], leaf).norm(dim=-1)
            for p, norm in zip(places, norms, strict=True):
                expected[row, p, places] = torch.autograd.grad(norm, leaf, retain_graph=True)[0].norm(dim=-1)
    torch.testing.assert_close(found, expected[:, positions], rtol=1e-5, atol=1e-6)


def pair(**changes: Any) -> tuple[PooledAttentionAdapter, PooledAttentionAdapter]:
    """The same model, with and without the argument `lstm`."""
    torch.manual_seed(1)
    encoder = Encoder()
    return adapter(2, encoder=encoder, lstm=encoder.rnn, **changes), adapter(2, encoder=encoder, **changes)


TEXT = strategies.texts(WORDS, max_words=24)


@pytest.mark.parametrize("tokenizer", ["plain", "ends", "attended ends"])
@settings(max_examples=15)
@given(texts=st.lists(TEXT, min_size=1, max_size=5), budget=st.sampled_from([1, 30, 4096]))
def test_deletion_gives_the_numbers_of_encoding_again(tokenizer: str, texts: list[str], budget: int) -> None:
    ends = {} if tokenizer == "plain" else {"tokenize": tokenize_with_ends, "attend_special": tokenizer != "ends"}
    fast, slow = pair(**ends)
    found, _ = deletion_agrees(fast, slow, texts, budget)
    if any(len(text.split()) > 1 for text in texts):
        assert found.pass_counts["forward"] == 2


@pytest.mark.parametrize("tokenizer", ["plain", "ends", "attended ends"])
@settings(max_examples=15)
@given(texts=st.lists(TEXT, min_size=1, max_size=5), budget=st.sampled_from([1, 30, 4096]))
def test_masking_gives_the_numbers_of_reading_again(tokenizer: str, texts: list[str], budget: int) -> None:
    ends = {} if tokenizer == "plain" else {"tokenize": tokenize_with_ends, "attend_special": tokenizer != "ends"}
    found, _ = masking_agrees(*pair(mask_id=1, **ends), texts, budget)
    assert found.pass_counts["forward"] == 2


@pytest.mark.parametrize("name", list(LAYERS))
@given(case=ragged_batches(), seed=st.integers(0, 2**31))
def test_states_with_masks_are_those_of_the_masked_text(
    name: str, case: tuple[Tensor, Tensor, Tensor, Tensor], seed: int
) -> None:
    embeddings, mask, rows, keep = case
    generator = torch.Generator().manual_seed(seed)
    maskable = mask & (torch.rand(mask.shape, generator=generator) < 0.8)
    masked = torch.where(maskable[..., None], torch.randn(3, generator=generator), embeddings)
    keep = keep | ~maskable[rows]
    shared = masked_recurrence.share_masked(
        *(recurrent_encoders.share(LAYERS[name], one, mask) for one in (embeddings, masked)), maskable
    )
    found = shared.states_with_masks(rows, keep)
    for v, row in enumerate(rows.tolist()):
        tokens = mask[row].nonzero()[:, 0]
        assert not found[v, len(tokens) :].any()
        if len(tokens):
            text = torch.where(keep[v, :, None], embeddings[row], masked[row])[tokens]
            torch.testing.assert_close(found[v, : len(tokens)], plain(LAYERS[name], text), rtol=1e-5, atol=1e-6)


def test_a_masked_variant_whose_state_is_that_of_the_whole_text_again_is_not_read_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forgetful = nn.LSTM(3, 2, batch_first=True)
    with torch.no_grad():
        for name, parameter in forgetful.named_parameters():
            if "bias" in name:
                parameter[2:4] -= 1.0  # the forget gates
    steps = 0
    real = recurrent_encoders._step

    def counted(gates: Tensor, *rest: Tensor) -> None:
        nonlocal steps
        steps += len(gates)
        real(gates, *rest)

    embeddings, mask = torch.randn(1, 400, 3), torch.ones(1, 400, dtype=torch.bool)
    whole, masked = (recurrent_encoders.share(forgetful, one, mask) for one in (embeddings, torch.zeros(1, 400, 3)))
    shared = masked_recurrence.share_masked(whole, masked, mask)
    keep = torch.ones(2, 400, dtype=torch.bool)
    keep[0, 10] = False
    keep[1] = ~keep[0]
    monkeypatch.setattr(recurrent_encoders, "_step", counted)
    found = shared.states_with_masks(torch.tensor([0, 0]), keep)
    assert steps < 200, "two texts of 400 tokens, of which the first 10 are shared"
    expected = [plain(forgetful, torch.where(one[:, None], embeddings[0], 0.0)) for one in keep]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_no_pass_holds_more_tokens_than_the_budget_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = recurrent_encoders.states_without

    def watched(shared: recurrent_encoders.SharedStates, rows: Tensor, keep: Tensor) -> Tensor:
        states = real(shared, rows, keep)
        sizes.append(states.shape[0] * states.shape[1])
        return states

    monkeypatch.setattr(recurrent_encoders, "states_without", watched)
    found = batch(pair()[0], ["good " * 50, "bad " * 49, "a " * 20], 20)
    assert not found.leave_one_out("deletion")[found.real].isnan().any()
    assert len(sizes) > 10
    assert max(sizes) <= 8 * 20


@pytest.mark.parametrize("tokenizer", ["plain", "ends"])
@settings(max_examples=12)
@given(texts=st.lists(TEXT, min_size=1, max_size=4), budget=st.sampled_from([1, 4, 4096]))
def test_influence_gives_the_numbers_of_backward_passes(tokenizer: str, texts: list[str], budget: int) -> None:
    fast, slow = pair(**({} if tokenizer == "plain" else {"tokenize": tokenize_with_ends}))
    found, expected = (AttentionView(batch(model, texts, budget, keep_graph=True)) for model in (fast, slow))
    for p in range(found.real.shape[1]):
        here = found.real[:, p]
        torch.testing.assert_close(found.influence(p)[here], expected.influence(p)[here], rtol=1e-5, atol=1e-8)
    assert found.pass_counts["backward"] == 0
    assert 0 < found.pass_counts["influence"] <= expected.pass_counts["backward"]


def test_the_suite_tries_what_is_shared() -> None:
    found = {one.check: one for one in check_adapter(pair(mask_id=1)[0], dataset().instances)}
    assert {found[name].outcome for name in ("logits_without", "logits_masked", "influence")} == {"pass"}


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (nn.GRU(3, 2), "lstm is GRU; expected an nn.LSTM"),
        (nn.LSTM(3, 2, num_layers=2), "lstm has 2 layers"),
        (nn.LSTM(3, 2, proj_size=1), "proj_size=1; expected one layer without projection"),
        ((nn.LSTM(3, 2), nn.LSTM(3, 2, bidirectional=True)), "In a pair, each LSTM must have one direction"),
        ((nn.LSTM(3, 2),), "lstm is tuple"),
    ],
)
def test_another_layer_is_refused_when_it_is_named(layer: Any, what: str) -> None:
    with pytest.raises(AdapterError, match=what):
        adapter(lstm=layer)


def test_an_adapter_without_a_layer_says_so() -> None:
    model = adapter()
    with pytest.raises(AdapterError, match="Pass `lstm="):
        model.share(model.collate(dataset().instances[:1]))


@pytest.mark.parametrize("heads", [1, 3])
def test_the_suite_ignores_states_on_padding(heads: int) -> None:
    """An LSTM that is called without packed sequences also has states on padding, which no audit reads."""
    torch.manual_seed(0)
    rnn, score = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, heads)

    def attention(states: Tensor, allowed: Tensor) -> Tensor:
        weights = score(states).transpose(1, 2).masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
        return weights if heads > 1 else weights[:, 0]

    embedding, decoder = nn.Embedding(len(WORDS), 6), nn.Linear(5 * heads, 2)
    model = adapter(
        embedding=embedding,
        encoder=lambda embedded, _: rnn(embedded)[0],
        attention=attention,
        decoder=decoder,
        modules=(embedding, rnn, score, decoder),
        lstm=rnn,
        heads=heads,
        reading="own@heads=mean" if heads > 1 else "",
    )
    found = {one.check: one.outcome for one in check_adapter(model, dataset().instances)}
    assert (found["influence"], found["logits_without"]) == ("pass", "pass")
