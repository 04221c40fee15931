"""Leaving out states by hand agrees with the audit, and with what a projection with zeros implies."""

from __future__ import annotations

import pytest
import torch

from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from benchmarks.leave_one_out_by_layer import ATTENDED, EMBEDDINGS, FIRST_LAYER, outputs_without_each

IDS = torch.tensor([[2, 3, 4, 5, 6, 7]])
SPECIAL = torch.zeros_like(IDS, dtype=torch.bool)


def transformer(projection: str) -> PooledClassifier:
    torch.manual_seed(0)
    architecture = Architecture(
        encoder="transformer",
        alignment="dot",
        projection=projection,
        embedding_size=8,
        hidden_size=8,
        attention_size=8,
    )
    model = PooledClassifier(architecture, vocabulary_size=9, classes=2).eval()
    for parameter in model.attention.parameters():
        parameter.data.mul_(20)  # sparse weights under sparsemax
    return model


@torch.no_grad()
def test_a_state_without_attention_changes_nothing_under_sparsemax_but_its_lower_layers_do() -> None:
    attention, whole, found = outputs_without_each(transformer("sparsemax"), IDS, SPECIAL)
    unread = attention == 0
    assert unread.any()
    assert (~unread).any()
    torch.testing.assert_close(found[ATTENDED][unread], whole.expand(int(unread.sum())), atol=1e-6, rtol=0)
    for place in (FIRST_LAYER, EMBEDDINGS):
        assert (found[place][unread] - whole).abs().max() > 1e-4


@torch.no_grad()
@pytest.mark.parametrize("projection", ["softmax", "sparsemax"])
def test_a_left_out_embedding_is_as_if_it_were_padding(projection: str) -> None:
    model = transformer(projection)
    _, _, found = outputs_without_each(model, IDS, SPECIAL)
    mask = torch.ones_like(IDS, dtype=torch.bool)
    mask[0, -1] = False  # without the last token, no position shifts
    alone = model.trace(IDS, mask, SPECIAL).logits.sigmoid().squeeze()
    torch.testing.assert_close(found[EMBEDDINGS][-1], alone, atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("projection", ["softmax", "sparsemax"])
def test_attended_states_are_left_out_as_in_an_audit(projection: str) -> None:
    """With fixed states, the other weights are renormalised. Without any, the context is zero."""
    model = transformer(projection)
    attention, _, found = outputs_without_each(model, IDS, SPECIAL)
    hidden = model.trace(IDS, torch.ones_like(IDS, dtype=torch.bool), SPECIAL).hidden[0]
    for place in range(IDS.shape[1]):
        weights = attention.clone()
        weights[place] = 0
        total = float(weights.sum())
        context = (weights / total if total > 0 else weights) @ hidden
        torch.testing.assert_close(found[ATTENDED][place], model.decode(context).sigmoid()[0], atol=1e-6, rtol=0)
