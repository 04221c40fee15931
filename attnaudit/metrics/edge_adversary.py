"""Adversarial attention on the vertices and edges of the simplex, for decoders of two classes that can only be run.

Where the decoder is linear the optimum lies there (exact_adversary.py). Where it is not, the same points are good
candidates: all weight on one token, or on two tokens that move the output to opposite sides, in the shares that cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnaudit.metrics.divergence import divergence_of_distributions, total_variation
from attnaudit.metrics.padded_rows import distributions

#: Pairs of tokens per instance, and halvings of the interval that holds the shares that cancel.
PAIRS, HALVINGS = 16, 10


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """points (B, M, T) distributions; jsd (B, M) in nats to the attention and tvd (B, M) of their outputs to the
    original, both NaN where there is no such point."""

    points: Tensor
    jsd: Tensor
    tvd: Tensor

    def best(self, tvd: float) -> tuple[Tensor, Tensor]:
        """(B, T) the feasible point that is furthest in JSD, and (B,) whether there is one."""
        value = torch.where(self.tvd <= tvd, self.jsd, -torch.inf).nan_to_num(nan=-torch.inf)
        most, which = value.max(1)
        rows = torch.arange(len(which), device=which.device)
        return self.points[rows, which], most > 0


def vertices_and_edges(
    attention: Tensor,
    output: Tensor,
    decode: Callable[[Tensor], Tensor],
    mask: Tensor,
    *,
    pairs: int = PAIRS,
    halvings: int = HALVINGS,
) -> Candidates:
    """Every vertex, and the points on promising edges where the output is nearest to the original one.

    Pairs are ranked by the JSD of the point where the two vertices' outputs, mixed in its shares, equal the original;
    the point itself is found by halving, each step being a run of the decoder. No point is claimed to be the optimum.

    attention (B, T) and mask (B, T), T tokens; output (B, 2) class probabilities of the original; decode takes (B, V,
    T) and returns (B, V, 2). Raises ValueError for another number of classes.

    >>> weights = torch.tensor([[0.6, 0.3, 0.1]])
    >>> def decode(rows):
    ...     p = torch.sigmoid((rows * torch.tensor([2.0, -1.0, 0.0], dtype=rows.dtype)).sum(-1))
    ...     return torch.stack([1 - p, p], -1)
    >>> real = torch.ones(1, 3, dtype=torch.bool)
    >>> found = vertices_and_edges(weights, decode(weights[:, None].double())[:, 0], decode, real)
    >>> point, feasible = found.best(0.05)
    >>> bool(feasible), (point > 0).sum().item()  # two tokens that cancel
    (True, 2)
    """
    if output.shape[-1] != 2:
        raise ValueError(f"output: expected two classes but got {output.shape[-1]}")
    shown = distributions(attention.detach().double(), mask, "attention").nan_to_num(0.0)
    reference = output.detach().double()[:, None]
    count, width = shown.shape
    corners = torch.eye(width, dtype=torch.float64, device=shown.device).expand(count, -1, -1)
    at_corners = decode(corners).double()
    side = (at_corners - reference)[..., 1]

    first, second, exists = _pairs(shown, side, mask, pairs)
    low = torch.zeros_like(exists, dtype=torch.float64)  # share of the first token at which the output is on its side
    high = torch.ones_like(low)
    above = side.gather(1, first) > 0
    points, outputs, there = [corners], [at_corners], [mask]
    for _ in range(halvings):
        share = (low + high) / 2
        point = torch.zeros((count, share.shape[1], width), dtype=torch.float64, device=shown.device)
        point.scatter_(2, first[..., None], share[..., None]).scatter_add_(2, second[..., None], 1 - share[..., None])
        found = decode(point).double()
        points, outputs, there = [*points, point], [*outputs, found], [*there, exists]
        too_far = ((found - reference)[..., 1] > 0) == above
        low, high = torch.where(too_far, low, share), torch.where(too_far, share, high)
    every = torch.cat(points, 1)
    known = torch.cat(there, 1)
    divergence = divergence_of_distributions(every, shown[:, None].expand_as(every))
    moved = total_variation(torch.cat(outputs, 1), reference)
    return Candidates(
        points=every, jsd=divergence.masked_fill(~known, torch.nan), tvd=moved.masked_fill(~known, torch.nan)
    )


def _pairs(shown: Tensor, side: Tensor, mask: Tensor, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, P) first tokens, above the original output; (B, P) second ones, below it; (B, P) whether there is a pair."""
    width = shown.shape[1]
    opposite = (side > 0)[:, :, None] & (side < 0)[:, None, :] & mask[:, :, None] & mask[:, None, :]
    up, down = side[:, :, None].clamp_min(0.0), -side[:, None, :].clamp_max(0.0)
    share = torch.where(opposite, down / (up + down).clamp_min(1e-300), 0.5)
    a, b = shown[:, :, None], shown[:, None, :]
    # JSD of the point (share, 1 - share) on the edge: only the two tokens' terms differ from α's own.
    value = _term(share, a) + _term(1 - share, b) + (1 - a - b) * torch.log(torch.tensor(2.0, dtype=torch.float64))
    ranked = torch.where(opposite, value, -torch.inf).flatten(1)
    top = ranked.topk(min(pairs, ranked.shape[1]), dim=1)
    return top.indices // width, top.indices % width, top.values > -torch.inf


def _term(q: Tensor, p: Tensor) -> Tensor:
    """q·ln(q/m) + p·ln(p/m) with m the mean of both: twice a token's share of the JSD."""
    middle = (p + q) / 2
    return torch.xlogy(q, q) + torch.xlogy(p, p) - 2 * torch.xlogy(middle, middle)
