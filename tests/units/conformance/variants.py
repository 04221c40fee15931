"""Test cases shared by both ways of running the variants of a batch, each of which lacks some of its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.adapters.pooled.ordered_tokens import OrderedTokens
from attnaudit.engine.batches.attention_view import AttentionView
from attnaudit.engine.batches.batch import Batch
from attnaudit.instances import Instance


def states_are_of_the_kept_alone(
    found: Tensor, shared: OrderedTokens, case: tuple[Tensor, Tensor, Tensor, Tensor], plain: Callable[[Tensor], Tensor]
) -> None:
    """Compare the states (V, W, m) of the variants with `plain`, which maps one input (n, d) to states (n, m)."""
    embeddings, mask, rows, keep = case
    positions, inside = shared.positions(rows, keep)
    assert found.shape[:2] == positions.shape == inside.shape
    for v, row in enumerate(rows.tolist()):
        stays = (keep[v] & mask[row]).nonzero()[:, 0]
        assert positions[v][inside[v]].tolist() == stays.tolist()
        assert not found[v][~inside[v]].any()
        if len(stays):
            torch.testing.assert_close(found[v, : len(stays)], plain(embeddings[row, stays]), rtol=1e-5, atol=1e-6)


def batch(model: PooledAttentionAdapter, texts: list[str], budget: int, **options: Any) -> Batch:
    instances = [Instance(id=str(i), text=text) for i, text in enumerate(texts)]
    return Batch(
        model,
        instances,
        range(len(texts)),
        **{"seed": 0, "keep_graph": False, "budget": budget, "pass_counts": Counter(), **options},
    )


def deletion_agrees(
    fast: PooledAttentionAdapter, slow: PooledAttentionAdapter, texts: list[str], budget: int
) -> tuple[Batch, Batch]:
    """Assert that shared states equal those of encoding each shorter text, and return the batches that were run."""
    found, expected = batch(fast, texts, budget), batch(slow, texts, budget)
    torch.testing.assert_close(
        found.leave_one_out("deletion"), expected.leave_one_out("deletion"), rtol=0, atol=1e-6, equal_nan=True
    )
    generator = torch.Generator().manual_seed(len(texts))
    rows = torch.randint(0, len(texts), (12,), generator=generator)
    keep = torch.rand(12, found.real.shape[1], generator=generator) < 0.5
    torch.testing.assert_close(
        found.erase(rows, keep, "deletion"),
        expected.erase(rows, keep, "deletion"),
        rtol=0,
        atol=1e-6,
        equal_nan=True,
    )
    assert expected.pass_counts["logits_without"] == 0
    if any(len(text.split()) > 1 for text in texts):
        assert found.pass_counts["logits_without"] > 0
    return found, expected


def masking_agrees(
    fast: PooledAttentionAdapter, slow: PooledAttentionAdapter, texts: list[str], budget: int
) -> tuple[Batch, Batch]:
    """Assert that shared states equal those of reading each text with masked tokens, with live and held attention."""
    found, expected = batch(fast, texts, budget), batch(slow, texts, budget)
    of_one = {"rtol": 0, "atol": 1e-6, "equal_nan": True}
    torch.testing.assert_close(found.leave_one_out("mask"), expected.leave_one_out("mask"), **of_one)
    generator = torch.Generator().manual_seed(len(texts))
    rows = torch.randint(0, len(texts), (16,), generator=generator)
    share = torch.tensor([0.0, 0.2, 0.5, 0.8]).repeat(4)[:, None]
    keep = found.real[rows] & (torch.rand(16, found.real.shape[1], generator=generator) < share)
    torch.testing.assert_close(found.masked(rows, keep), expected.masked(rows, keep), **of_one)
    held, slowly_held = (AttentionView(one).masked_with_attention_held(rows, keep) for one in (found, expected))
    torch.testing.assert_close(held, slowly_held, **of_one)
    assert expected.pass_counts["logits_masked"] == 0
    assert found.pass_counts["logits_masked"] > 0
    return found, expected
