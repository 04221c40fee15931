"""Adversaries on vertices and edges, compared with the exact optimum of linear decoders."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnaudit.metrics import exact_adversarial_attention, jensen_shannon, total_variation
from attnaudit.metrics.edge_adversary import vertices_and_edges
from tests.strategies import seeds


def problem(seed: int, rows: int = 6, width: int = 9, scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return attention, token logits, bias and mask; the second half of the rows is padded."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(rows, width, dtype=torch.bool)
    mask[rows // 2 :, width - 3 :] = False
    raw = torch.rand(rows, width, generator=generator, dtype=torch.float64) ** 3 * mask
    logits = scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return raw / raw.sum(1, keepdim=True), logits, torch.zeros(rows, dtype=torch.float64), mask


def linear(logits: Tensor) -> object:
    def decode(weights: Tensor) -> Tensor:
        p = torch.sigmoid((weights * logits[:, None]).sum(-1))
        return torch.stack([1 - p, p], -1)

    return decode


@given(seed=seeds, tvd=st.sampled_from([0.01, 0.05, 0.2]))
def test_no_candidate_beats_the_exact_optimum_and_its_distances_are_correct(seed: int, tvd: float) -> None:
    attention, logits, bias, mask = problem(seed)
    decode = linear(logits)
    output = decode(attention[:, None])[:, 0]  # type: ignore[operator]
    candidates = vertices_and_edges(attention, output, decode, mask)  # type: ignore[arg-type]
    point, feasible = candidates.best(tvd)
    _, best = exact_adversarial_attention(attention, logits, bias, tvd, mask)
    jsd = jensen_shannon(point, attention, mask)
    assert (jsd[feasible] <= best[feasible] + 1e-9).all()
    moved = total_variation(decode(point[:, None])[:, 0], output)  # type: ignore[operator]
    assert (moved[feasible] <= tvd + 1e-9).all()
    assert torch.allclose(point.sum(1), torch.ones(len(point), dtype=torch.float64))
    assert not point[~mask].any()


def test_the_best_candidate_is_close_to_the_exact_optimum() -> None:
    shares = []
    for seed in range(20):
        attention, logits, bias, mask = problem(seed)
        decode = linear(logits)
        output = decode(attention[:, None])[:, 0]  # type: ignore[operator]
        point, feasible = vertices_and_edges(attention, output, decode, mask).best(0.05)  # type: ignore[arg-type]
        _, best = exact_adversarial_attention(attention, logits, bias, 0.05, mask)
        shares.append((jensen_shannon(point, attention, mask) / best)[feasible])
    assert torch.cat(shares).mean() > 0.95
    assert len(torch.cat(shares)) > 0.9 * 20 * 6


def test_there_may_be_no_candidate_if_all_tokens_move_the_output_the_same_way() -> None:
    attention = torch.tensor([[0.5, 0.5]], dtype=torch.float64)

    def decode(weights: Tensor) -> Tensor:
        p = 0.5 + 0.4 * (weights[..., 0] - 0.5).abs()  # lowest at equal weights, higher if either token has more
        return torch.stack([1 - p, p], -1)

    candidates = vertices_and_edges(
        attention, decode(attention[:, None])[:, 0], decode, torch.ones(1, 2, dtype=torch.bool)
    )
    assert not candidates.best(0.01)[1].any()


def test_rows_are_independent() -> None:
    attention, logits, _, mask = problem(3)
    decode = linear(logits)
    output = decode(attention[:, None])[:, 0]  # type: ignore[operator]
    together = vertices_and_edges(attention, output, decode, mask).best(0.05)[0]  # type: ignore[arg-type]
    for row in range(len(attention)):
        one = linear(logits[row : row + 1])
        alone = vertices_and_edges(attention[row : row + 1], output[row : row + 1], one, mask[row : row + 1])  # type: ignore[arg-type]
        assert torch.allclose(alone.best(0.05)[0][0], together[row])


def test_more_than_two_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="expected two classes but got 3"):
        vertices_and_edges(torch.ones(1, 2) / 2, torch.ones(1, 3) / 3, lambda w: w, torch.ones(1, 2, dtype=torch.bool))
