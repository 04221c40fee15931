"""The trained adversary: its loss against its definition, and that it moves attention while it keeps the answers."""

from __future__ import annotations

import pytest
import torch
from scipy.special import rel_entr

from attnaudit.data import sample
from attnaudit.data.planted_cue import split
from attnaudit.zoo.model import Architecture, PooledClassifier
from attnaudit.zoo.planted.twin import probabilities, twin_objective
from attnaudit.zoo.training import Settings, _Rows, train

SMALL = Architecture(encoder="average", embedding_size=16, hidden_size=16, attention_size=8)


def models() -> tuple[PooledClassifier, PooledClassifier]:
    torch.manual_seed(0)
    return tuple(PooledClassifier(SMALL, vocabulary_size=12, classes=2).eval() for _ in range(2))  # type: ignore[return-value]


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
        batch = _Rows(dev, base.vocabulary, base.classes).batch(range(len(dev.instances)))
        with torch.no_grad():
            ours, theirs = twin.model.trace(*batch), base.model.trace(*batch)
        same = ((ours.logits > 0) == (theirs.logits > 0)).float().mean().item()
        moved = 0.5 * (ours.weights - theirs.weights).abs().sum(dim=1).mean().item()
        return same, moved

    same, moved = divergence(0.02)
    _, plain_moved = divergence(0.0)
    assert same >= 0.85
    assert moved > plain_moved + 0.05
