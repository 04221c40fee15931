"""Directions of features: orthonormal, without a mean, and embeddings that layer normalisation leaves as they are."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from attnaudit.research.planted_transformers.feature_space import POSITIONS, FeatureSpace


@pytest.mark.parametrize("classes", [2, 5])
def test_the_basis_is_orthonormal_and_orthogonal_to_ones(classes: int) -> None:
    basis = FeatureSpace(64, classes, 3).basis
    assert torch.allclose(basis.T @ basis, torch.eye(63), atol=1e-5)
    assert basis.sum(0).abs().max() < 1e-5


def test_layer_normalisation_keeps_an_embedding_with_its_position() -> None:
    space = FeatureSpace(64, 2, 0)
    words = space.embed([{}, {"cue": 1.0, "evidence.1": 1.0}], with_positions=True, seed=0)
    embedded = words[:, None] + space.embed_positions()[None, 2:]
    assert torch.allclose(functional.layer_norm(embedded, (64,)), embedded, atol=1e-3)


def test_features_are_read_back() -> None:
    space = FeatureSpace(64, 3, 1)
    embedding = space.embed([{"cue": 1.0, "evidence.2": 0.5}], with_positions=False, seed=0)
    rows = torch.stack([space.row({name: 1.0}) for name in ("cue", "evidence.2", "evidence.0")])
    assert torch.allclose(embedding @ space.read(rows).T, torch.tensor([[1.0, 0.5, 0.0]]), atol=1e-4)


def test_the_previous_token_scores_highest() -> None:
    space = FeatureSpace(64, 2, 0)
    queries, keys = space.previous_token()
    positions = space.embed_positions()
    scores = positions @ space.read(queries).T @ (positions @ space.read(keys).T).T
    # Of the tokens of a text, which are at most 40, the previous one has the score 4, and no other comes near.
    for query in range(1, 40):
        assert scores[query, query - 1] == pytest.approx(4.0, abs=1e-3)
        others = scores[query, :40].clone()
        others[query - 1] = -torch.inf
        assert others.max() < 3.5
    assert POSITIONS >= 40


def test_a_stream_that_is_too_narrow_is_refused() -> None:
    with pytest.raises(ValueError, match="need a width of at least"):
        FeatureSpace(32, 5, 0)
