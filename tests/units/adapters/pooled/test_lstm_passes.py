"""Passes through an LSTM with fast gradients, against PyTorch's LSTM on one row at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.adapters.pooled.lstm_layers import Layer
from attnaudit.adapters.pooled.lstm_passes import can_run, packed_states
from attnaudit.adapters.protocol import TEXT
from attnaudit.engine.measuring import measure
from attnaudit.errors import ChangedModelError
from tests.small_models import Encoder, dataset, parts


def layer(kind: str, seed: int) -> Layer:
    torch.manual_seed(seed)
    if kind == "pair":
        made: Layer = (nn.LSTM(4, 3, batch_first=True).double(), nn.LSTM(4, 3, batch_first=True).double())
    else:
        made = nn.LSTM(4, 3, bidirectional=kind == "bidirectional", bias=kind != "one direction").double()
    for module in made if isinstance(made, tuple) else (made,):
        module.eval().requires_grad_(False)
    return made


def one_by_one(made: Layer, embeddings: Tensor, mask: Tensor) -> Tensor:
    """Return the states of rows that run alone and without padding."""
    width = 6 if isinstance(made, tuple) or made.bidirectional else 3
    states = embeddings.new_zeros(*mask.shape, width)
    for row, tokens in enumerate(mask):
        inputs = embeddings[row, tokens][:, None]
        if not len(inputs):
            continue
        if isinstance(made, tuple):
            forwards, backwards = made
            found = torch.cat([forwards(inputs[:, 0])[0], backwards(inputs[:, 0].flip(0))[0].flip(0)], dim=1)
        else:
            found = made(inputs)[0][:, 0]
        states[row, tokens] = found
    return states


@pytest.mark.parametrize("kind", ["pair", "bidirectional", "one direction"])
@settings(max_examples=25)
@given(
    st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=5), st.integers(1, 9), st.booleans()
)
def test_states_and_gradients_are_those_of_rows_alone(
    kind: str, mask_rows: list[list[bool]], words: int, same: bool
) -> None:
    """The padding may be anywhere, and rows may be empty. Tokens with the same id may have different embeddings."""
    made, mask = layer(kind, seed=words), torch.tensor(mask_rows)
    ids = torch.randint(0, words, mask.shape)
    embeddings = torch.randn(words, 4, dtype=torch.float64)[ids] if same else torch.randn(*mask.shape, 4).double()
    embeddings.requires_grad_()
    assert can_run(made, embeddings, mask, ids)
    expected = one_by_one(made, embeddings, mask) + 0 * embeddings.sum()  # a graph even if all rows are empty
    found = packed_states(made, embeddings, mask, ids)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(packed_states(made, embeddings, mask, ids), found)
    upstream = torch.randn_like(expected)
    slopes = [
        torch.autograd.grad(states, embeddings, upstream, retain_graph=True)[0] for states in (found, found, expected)
    ]
    assert torch.equal(slopes[0], slopes[1])  # a second backward pass over the same graph gives the same gradients
    torch.testing.assert_close(slopes[0], slopes[2], rtol=0, atol=1e-12)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = Encoder(), 0

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        self.calls += 1
        states: Tensor = self.inner(embedded, mask)
        return states


def with_counting_encoder(lstm: Callable[[Counting], Any]) -> tuple[Counting, PooledAttentionAdapter]:
    encoder = Counting()
    adapter = PooledAttentionAdapter(**{**parts(), "encoder": encoder, "lstm": lstm(encoder)})  # type: ignore[arg-type]
    for module in adapter.modules:
        module.eval().requires_grad_(False)
    return encoder, adapter


def test_only_fast_passes_run_the_lstm_instead_of_the_encoder() -> None:
    encoder, adapter = with_counting_encoder(lambda encoder: encoder.inner.rnn)
    inputs = adapter.collate(dataset().instances)
    leaves = {TEXT: adapter.embed(inputs)[TEXT].requires_grad_()}
    plain = adapter.run(inputs, embeddings=leaves)
    assert encoder.calls == 1
    with adapter.fast_passes():
        fast = adapter.run(inputs, embeddings=leaves)
        assert encoder.calls == 1
        torch.testing.assert_close(fast.logits, plain.logits, rtol=0, atol=1e-6)
        slopes = [torch.autograd.grad(trace.logits.sum(), leaves[TEXT])[0] for trace in (fast, plain)]
        torch.testing.assert_close(*slopes, rtol=0, atol=1e-6)
        encoder.train()
        adapter.run(inputs, embeddings=leaves)
        assert encoder.calls == 2
        encoder.eval().requires_grad_(True)
        adapter.run(inputs, embeddings=leaves)
        assert encoder.calls == 3


def test_an_lstm_that_is_not_that_of_the_encoder_is_refused_when_rows_run_again() -> None:
    torch.manual_seed(1)
    other = nn.LSTM(6, 5, batch_first=True, bidirectional=True).eval().requires_grad_(False)
    _, adapter = with_counting_encoder(lambda _: other)
    with pytest.raises(ChangedModelError, match="measured a second time"):
        measure(adapter, dataset(), ("gradient.meister.inputs",), model="m", seed=0)


def test_without_gradients_only_many_rows_with_repeated_words_run_faster() -> None:
    lstm = nn.LSTM(300, 128, bidirectional=True).eval().requires_grad_(False)

    def runs(rows: int, words: int, width: int = 20) -> bool:
        ids = torch.arange(rows * width).view(rows, width) % words
        return can_run(lstm, torch.zeros(rows, width, 300), torch.ones_like(ids, dtype=torch.bool), ids)

    assert runs(rows=100, words=500)
    assert not runs(rows=100, words=2000)
    assert not runs(rows=4, words=10)
    assert not can_run(None, torch.zeros(1, 1, 300), torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1).long())
