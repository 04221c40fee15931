"""Encoders of a known reach, whose variants share states, against reading every shorter input on its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.adapters.pooled import local_encoders
from attnaudit.conformance import check_adapter
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from attnaudit.models.encoders import CNN, MLP, Average, Encoder, Joined
from tests import strategies
from tests.small_models import WORDS, Attention, adapter, dataset, tokenize_with_ends
from tests.strategies import ragged_batches
from tests.units.conformance.variants import batch, deletion_agrees, states_are_of_the_kept_alone

torch.manual_seed(0)


class Narrow(CNN):
    """Reaches one token."""

    FILTERS = (1, 3)
    reach = 1


ENCODERS: dict[str, Encoder] = {
    "token alone": MLP(3, 4),
    "average": Average(3, 4),
    "near": Narrow(3, 4),
    "far": CNN(3, 6),
    "near, joined": Joined(Narrow(3, 4), 3, "concat"),
}
TEXT = strategies.texts(WORDS, max_words=40)


@pytest.mark.parametrize("name", list(ENCODERS))
@given(case=ragged_batches(max_tokens=24))
def test_states_are_those_of_the_tokens_that_stay_read_alone(
    name: str, case: tuple[Tensor, Tensor, Tensor, Tensor]
) -> None:
    embeddings, mask, rows, keep = case
    encoder = ENCODERS[name]
    assert encoder.reach is not None
    shared = local_encoders.share(encoder, embeddings, mask, encoder.reach)
    found = shared.states_without(rows, keep)

    def plain(alone: Tensor) -> Tensor:
        states: Tensor = encoder(alone[None], torch.ones(1, len(alone), dtype=torch.bool))[0]
        return states

    states_are_of_the_kept_alone(found, shared, case, plain)


@pytest.mark.parametrize(("name", "each"), [("near", 4), ("far", 28), ("token alone", 0)])
def test_only_what_is_near_a_gap_is_encoded_again(name: str, each: int) -> None:
    encoder, embeddings = ENCODERS[name], torch.randn(1, 80, 3)
    assert encoder.reach is not None
    shared = local_encoders.share(encoder, embeddings, torch.ones(1, 80, dtype=torch.bool), encoder.reach)
    assert shared.states.shape == (1, 81, encoder.width)
    sizes: list[int] = []
    encoder.register_forward_pre_hook(lambda _, given: sizes.append(given[0].shape[1]))
    found = shared.states_without(torch.zeros(80, dtype=torch.long), ~torch.eye(80, dtype=torch.bool))
    encoder._forward_pre_hooks.clear()
    assert sum(sizes) == each
    for gone in range(80):
        shorter = torch.cat([embeddings[:, :gone], embeddings[:, gone + 1 :]], dim=1)
        alone = encoder(shorter, torch.ones(1, 79, dtype=torch.bool))[0]
        torch.testing.assert_close(found[gone], alone, rtol=1e-5, atol=1e-6)


def pair(name: str, **changes: object) -> tuple[PooledAttentionAdapter, PooledAttentionAdapter]:
    """The same model, with and without the argument `reach`."""
    torch.manual_seed(1)
    encoder = {"near": Narrow, "far": CNN, "token alone": MLP}[name](6, 10)
    parts: dict[str, object] = {"encoder": encoder, "attention": Attention(), **changes}
    return adapter(2, **parts, reach=encoder.reach), adapter(2, **parts)


@pytest.mark.parametrize("name", ["near", "far", "token alone"])
@pytest.mark.parametrize("tokenizer", ["plain", "ends", "attended ends"])
@settings(max_examples=10)
@given(texts=st.lists(TEXT, min_size=1, max_size=5), budget=st.sampled_from([1, 30, 4096]))
def test_deletion_gives_the_numbers_of_encoding_again(tokenizer: str, name: str, texts: list[str], budget: int) -> None:
    ends = {} if tokenizer == "plain" else {"tokenize": tokenize_with_ends, "attend_special": tokenizer != "ends"}
    fast, slow = pair(name, **ends)
    deletion_agrees(fast, slow, texts, budget)


@pytest.mark.parametrize("name", ["near", "far", "token alone"])
def test_no_pass_holds_more_tokens_than_the_budget_allows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = local_encoders.SharedStates.states_without

    def watched(shared: local_encoders.SharedStates, rows: Tensor, keep: Tensor) -> Tensor:
        states = real(shared, rows, keep)
        sizes.append(states.shape[0] * states.shape[1])
        return states

    monkeypatch.setattr(local_encoders.SharedStates, "states_without", watched)
    found = batch(pair(name)[0], ["good " * 50, "bad " * 49, "a " * 20], 40)
    assert not found.leave_one_out("deletion")[found.real].isnan().any()
    assert len(sizes) > 10
    assert max(sizes) <= local_encoders.LOOKUPS_PER_TOKEN * 40


@pytest.mark.parametrize("name", ["near", "far", "token alone"])
def test_the_suite_tries_the_reach(name: str) -> None:
    found = {one.check: one for one in check_adapter(pair(name)[0], dataset().instances)}
    assert found["logits_without"].outcome == "pass"
    assert found["influence"].outcome == "skip"


def test_the_suite_finds_a_reach_that_is_too_short() -> None:
    far = pair("far")[1]
    too_short = adapter(2, encoder=far.encoder, attention=far.attention, reach=1)
    with pytest.raises(AdapterError, match=r"logits_without: .* it must be the largest distance"):
        check_adapter(too_short, dataset().instances)


def test_the_suite_names_reach_if_a_packed_recurrent_encoder_raises_an_error() -> None:
    texts = [" ".join(["good"] * length) for length in (30, 25, 4)]
    instances = [Instance(id=str(number), text=text) for number, text in enumerate(texts)]
    with pytest.raises(AdapterError, match=r"logits_without: .* greater than 0.* a recurrent encoder has no reach\."):
        check_adapter(adapter(2, reach=1), instances)


@pytest.mark.parametrize(("reach", "message"), [(-1, "reach is -1"), (2, "both reach and lstm are given")])
def test_a_reach_that_cannot_be_meant_is_refused(reach: int, message: str) -> None:
    lstm = torch.nn.LSTM(6, 5, batch_first=True, bidirectional=True) if reach > 0 else None
    with pytest.raises(AdapterError, match=message):
        adapter(reach=reach, lstm=lstm)
