"""The trained adversary: its loss against its definition, and that it moves attention while it keeps the answers."""

from __future__ import annotations

from unittest.mock import Mock, patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr

from attnaudit.data import sample
from attnaudit.data.planted_cue import split
from attnaudit.models.encoded_rows import Rows
from attnaudit.models.pooled_classifier import FORMS, Architecture, Pass, PooledClassifier, Query
from attnaudit.models.training import Settings, train
from attnaudit.models.twin_adversary import probabilities, twin_loss, twin_objective

SMALL = Architecture(encoder="average", embedding_size=16, hidden_size=16, attention_size=8)


def models() -> tuple[PooledClassifier, PooledClassifier]:
    torch.manual_seed(0)
    return tuple(PooledClassifier(SMALL, vocabulary_size=12, classes=2).eval() for _ in range(2))  # type: ignore[return-value]


@st.composite
def some_row(draw: st.DrawFn) -> tuple[list[int], list[int], list[bool]]:
    """Tokens, those of the query, and the classes that may be answered."""
    tokens, query = (draw(st.lists(st.integers(4, 11), min_size=1, max_size=size)) for size in (6, 3))
    return tokens, query, [True, draw(st.booleans()), draw(st.booleans())]


def batch(model: PooledClassifier, rows: list[tuple[list[int], list[int], list[bool]]], form: str, left: int) -> Pass:
    """The rows, padded by `left` before them and to the longest after them."""
    width = left + max(len(tokens) for tokens, _, _ in rows) + 1
    ids = torch.tensor([[0] * left + tokens + [0] * (width - left - len(tokens)) for tokens, _, _ in rows])
    queries = torch.tensor([query + [0] * (3 - len(query)) for _, query, _ in rows])
    flags = torch.tensor([one for _, _, one in rows]) if form == "question" else None
    asked = None if form == "text" else Query(ids=queries, mask=queries != 0, open=flags)
    with torch.no_grad():
        return model.trace(ids, ids != 0, torch.zeros_like(ids, dtype=torch.bool), asked)


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
    found = twin_objective(base, weight=0.3)(twin, ours, torch.zeros(2), torch.tensor(0.0))
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_a_model_is_at_no_distance_from_itself() -> None:
    base, _ = models()
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    traced = base.trace(ids, ids != 0, (ids == 2) | (ids == 3))
    assert twin_objective(base, weight=1.0)(base, traced, torch.zeros(1), torch.tensor(0.0)).item() == 0


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_a_base_runs_a_text_once_whatever_stands_beside_it(form: str, data: st.DataObject) -> None:
    torch.manual_seed(0)
    built = Architecture(encoder="average", embedding_size=8, hidden_size=8, attention_size=8, form=form)
    base, twin = (PooledClassifier(built, vocabulary_size=12, classes=3).eval() for _ in range(2))
    rows = data.draw(st.lists(some_row(), min_size=2, max_size=6))
    kept, runs = twin_loss(base, weight=0.3), Mock(side_effect=base.trace)
    kept(twin, batch(twin, rows, form, left=1))
    with patch.object(base, "trace", runs):
        order = data.draw(st.permutations(rows))
        for part in (order[:1], order[1:]):
            found = batch(twin, part, form, left=data.draw(st.integers(0, 2)))
            anew = twin_loss(base, weight=0.3)(twin, found)
            torch.testing.assert_close(kept(twin, found), anew, atol=1e-6, rtol=0)
    assert runs.call_count == 2  # for `anew`


def test_a_base_reads_what_word_dropout_left() -> None:
    base, twin = models()
    twin.word_dropout = 0.5
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    given_twin, loss = twin.trace(ids, ids != 0, ids < 4), twin_loss(base, weight=0.3)
    with patch.object(base, "trace", Mock(side_effect=base.trace)) as runs:
        loss(twin, given_twin)
        loss(twin, given_twin)
    assert runs.call_count == 2


def test_probabilities_of_one_logit_and_of_several() -> None:
    one = probabilities(torch.tensor([[0.0], [2.0]]))
    torch.testing.assert_close(one[0], torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(one, probabilities(torch.tensor([[0.0, 0.0], [0.0, 2.0]])))


def test_a_twin_answers_alike_and_attends_elsewhere() -> None:
    training, dev = sample(split("train"), 1200, 0), sample(split("dev"), 200, 0)
    settings = Settings(epochs=6, batch_size=64, learning_rate=1e-2, weight_decay=0.0)
    base = train(training, dev, architecture=SMALL, settings=settings)

    def divergence(weight: float) -> tuple[float, float]:
        twin = train(
            training, dev, architecture=SMALL, settings=settings, objective=twin_objective(base.model, weight=weight)
        )
        batch = Rows(dev, base.vocabulary, base.classes).batch(range(len(dev.instances)))
        with torch.no_grad():
            ours, theirs = twin.model.trace(*batch), base.model.trace(*batch)
        same = ((ours.logits > 0) == (theirs.logits > 0)).float().mean().item()
        moved = 0.5 * (ours.weights - theirs.weights).abs().sum(dim=1).mean().item()
        return same, moved

    same, moved = divergence(0.02)
    _, plain_moved = divergence(0.0)
    assert same >= 0.85
    assert moved > plain_moved + 0.05
