"""The trained adversary: its loss equals its definition, and it changes attention while it keeps the outputs."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock, patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr

from attnaudit.data import sample
from attnaudit.data.planted_cue import split
from attnaudit.models.architecture import FORMS, Architecture
from attnaudit.models.encoded_rows import EncodedRows
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier, Query
from attnaudit.models.training import train
from attnaudit.models.training_job import Settings, TrainingData, TrainingJob
from attnaudit.models.twin_adversary import probabilities, twin_loss, twin_objective

SMALL = Architecture(encoder="average", embedding_size=16, hidden_size=16, attention_size=8)


def models() -> tuple[PooledClassifier, PooledClassifier]:
    torch.manual_seed(0)
    return tuple(PooledClassifier(SMALL, vocabulary_size=12, classes=2).eval() for _ in range(2))  # type: ignore[return-value]


@st.composite
def rows_strategy(draw: st.DrawFn) -> tuple[list[int], list[int], list[bool]]:
    """Token ids of a text, those of its query, and the classes that it may be answered with."""
    tokens, query = (draw(st.lists(st.integers(4, 11), min_size=1, max_size=size)) for size in (6, 3))
    return tokens, query, [True, draw(st.booleans()), draw(st.booleans())]


def batch(
    model: PooledClassifier, rows: list[tuple[list[int], list[int], list[bool]]], form: str, left: int
) -> ForwardPass:
    """A forward pass over the rows, padded by `left` tokens before them and to the longest row after them."""
    width = left + max(len(tokens) for tokens, _, _ in rows) + 1
    ids = torch.tensor([[0] * left + tokens + [0] * (width - left - len(tokens)) for tokens, _, _ in rows])
    queries = torch.tensor([query + [0] * (3 - len(query)) for _, query, _ in rows])
    flags = torch.tensor([one for _, _, one in rows]) if form == "question" else None
    query = None if form == "text" else Query(ids=queries, mask=queries != 0, open_classes=flags)
    with torch.no_grad():
        return model.trace(ids, ids != 0, torch.zeros_like(ids, dtype=torch.bool), query)


def test_the_loss_is_tvd_minus_the_weighted_divergence() -> None:
    base, twin = models()
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 9, 3, 0]])
    mask, special = ids != 0, (ids == 2) | (ids == 3)
    ours, theirs = twin.trace(ids, mask, special), base.trace(ids, mask, special)
    expected = 0.0
    for row in range(2):
        p, q = (torch.sigmoid(one.logits[row, 0]).item() for one in (ours, theirs))
        divergence = rel_entr(ours.weights[row].detach().numpy(), theirs.weights[row].detach().numpy())
        real = ours.real[row].numpy()
        expected += (abs(p - q) - 0.3 * divergence[real].sum()) / 2
    loss = twin_objective(base, weight=0.3)(twin, ours, torch.zeros(2), torch.tensor(0.0))
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_the_loss_of_a_model_against_itself_is_zero() -> None:
    base, _ = models()
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    traced = base.trace(ids, ids != 0, (ids == 2) | (ids == 3))
    assert twin_objective(base, weight=1.0)(base, traced, torch.zeros(1), torch.tensor(0.0)).item() == 0


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_a_base_model_runs_each_text_once_whatever_is_in_its_batch(form: str, data: st.DataObject) -> None:
    torch.manual_seed(0)
    built = Architecture(encoder="average", embedding_size=8, hidden_size=8, attention_size=8, form=form)
    base, twin = (PooledClassifier(built, vocabulary_size=12, classes=3).eval() for _ in range(2))
    rows = data.draw(st.lists(rows_strategy(), min_size=2, max_size=6))
    cached_loss, runs = twin_loss(base, weight=0.3), Mock(side_effect=base.trace)
    cached_loss(twin, batch(twin, rows, form, left=1))
    with patch.object(base, "trace", runs):
        order = data.draw(st.permutations(rows))
        for part in (order[:1], order[1:]):
            traced = batch(twin, part, form, left=data.draw(st.integers(0, 2)))
            expected = twin_loss(base, weight=0.3)(twin, traced)
            torch.testing.assert_close(cached_loss(twin, traced), expected, atol=1e-6, rtol=0)
    assert runs.call_count == 2  # both for `expected`


def test_a_base_model_runs_each_time_under_word_dropout() -> None:
    base, twin = models()
    twin.word_dropout = 0.5
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    traced, loss = twin.trace(ids, ids != 0, ids < 4), twin_loss(base, weight=0.3)
    with patch.object(base, "trace", Mock(side_effect=base.trace)) as runs:
        loss(twin, traced)
        loss(twin, traced)
    assert runs.call_count == 2


def test_probabilities_of_one_logit_and_of_several() -> None:
    one = probabilities(torch.tensor([[0.0], [2.0]]))
    torch.testing.assert_close(one[0], torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(one, probabilities(torch.tensor([[0.0, 0.0], [0.0, 2.0]])))


@pytest.mark.slow
def test_a_twin_gives_the_same_outputs_and_attends_elsewhere() -> None:
    training, dev = sample(split("train"), 1200, 0), sample(split("dev"), 200, 0)
    settings = Settings(epochs=6, batch_size=64, learning_rate=1e-2, weight_decay=0.0)
    job = TrainingJob(data=TrainingData(train=training, dev=dev), architecture=SMALL, settings=settings)
    base = train(job)

    def divergence(weight: float) -> tuple[float, float]:
        twin = train(replace(job, objective=twin_objective(base.model, weight=weight)))
        batch = EncodedRows(dev, base.vocabulary, base.classes).batch(range(len(dev.instances)))
        with torch.no_grad():
            ours, theirs = twin.model.trace(*batch), base.model.trace(*batch)
        same = ((ours.logits > 0) == (theirs.logits > 0)).float().mean().item()
        moved = 0.5 * (ours.weights - theirs.weights).abs().sum(dim=1).mean().item()
        return same, moved

    same, moved = divergence(0.02)
    _, plain_moved = divergence(0.0)
    assert same >= 0.85
    assert moved > plain_moved + 0.05
