"""Search the vertices and edges of the simplex for adversarial attention, for any decoder with two classes.

At a vertex, all weight is on one token. On an edge, the weight is divided between two tokens. If the decoder is linear,
the optimum is a vertex or a point on an edge (see `attnaudit.metrics.exact_adversary`). For other decoders, these
points are good candidates, especially points on an edge at which the effects of the two tokens on the output cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnaudit.metrics.divergence import divergence_of_distributions, total_variation
from attnaudit.metrics.padded_rows import distributions

#: Largest number of pairs of tokens per instance; and number of bisection steps that search the point of an edge at
#: which the effects of the two tokens cancel.
PAIRS, HALVINGS = 16, 10


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Candidates for the adversarial attention of B instances, M for each.

    Attributes:
        points: (B, M, T) distributions over the tokens.
        jsd: (B, M) Jensen-Shannon divergence between each candidate and the original attention, in nats. NaN for unused
            entries.
        tvd: (B, M) total variation between the output for each candidate and the original output. NaN for unused
            entries.
    """

    points: Tensor
    jsd: Tensor
    tvd: Tensor

    def best(self, tvd: float) -> tuple[Tensor, Tensor]:
        """Return the candidate with the largest JSD whose total variation is at most `tvd`.

        Returns:
            (B, T) candidates; and a (B,) mask, True if an instance has such a candidate with a positive JSD. If the
            mask is False, the returned distribution is arbitrary.
        """
        value = torch.where(self.tvd <= tvd, self.jsd, -torch.inf).nan_to_num(nan=-torch.inf)
        most, which = value.max(1)
        rows = torch.arange(len(which), device=which.device)
        return self.points[rows, which], most > 0


def vertices_and_edges(
    attention: Tensor,
    output: Tensor,
    decode: Callable[[Tensor], Tensor],
    mask: Tensor,
) -> Candidates:
    """Return every vertex of the simplex, and points on promising edges whose output is close to the original output.

    For every pair of tokens, the function first predicts which point of the edge has the original output, by linear
    interpolation between the outputs of the two vertices. It keeps the pairs with the largest JSD at the predicted
    point. It then searches for the actual point by bisection, and decodes one point per edge in each step. All decoded
    points are candidates. The best candidate is not necessarily the optimum.

    Args:
        attention: (B, T) weights of at least 0; they are normalised over the mask.
        output: (B, 2) original class probabilities.
        decode: Maps V distributions per instance (B, V, T) to class probabilities (B, V, 2).
        mask: (B, T) True at real tokens.

    Raises:
        ValueError: The number of classes is not two, or a weight is negative.

    Examples:
        >>> weights = torch.tensor([[0.6, 0.3, 0.1]])
        >>> def decode(rows):
        ...     p = torch.sigmoid((rows * torch.tensor([2.0, -1.0, 0.0], dtype=rows.dtype)).sum(-1))
        ...     return torch.stack([1 - p, p], -1)
        >>> real = torch.ones(1, 3, dtype=torch.bool)
        >>> candidates = vertices_and_edges(weights, decode(weights[:, None].double())[:, 0], decode, real)
        >>> point, feasible = candidates.best(0.05)
        >>> bool(feasible), (point > 0).sum().item()  # two tokens whose effects cancel
        (True, 2)
    """
    if output.shape[-1] != 2:
        raise ValueError(f"output: expected two classes but got {output.shape[-1]}")
    alpha = distributions(attention.detach().double(), mask, "attention").nan_to_num(0.0)
    reference = output.detach().double()[:, None]
    count, width = alpha.shape
    corners = torch.eye(width, dtype=torch.float64, device=alpha.device).expand(count, -1, -1)
    at_corners = decode(corners).double()
    side = (at_corners - reference)[..., 1]

    first, second, exists = _pairs(alpha, side, mask)
    # Bounds of the first token's weight. At `high`, the output deviates in the same direction as for the first token
    # alone.
    low = torch.zeros_like(exists, dtype=torch.float64)
    high = torch.ones_like(low)
    above = side.gather(1, first) > 0
    points, outputs, validity = [corners], [at_corners], [mask]
    for _ in range(HALVINGS):
        share = (low + high) / 2
        point = torch.zeros((count, share.shape[1], width), dtype=torch.float64, device=alpha.device)
        point.scatter_(2, first[..., None], share[..., None]).scatter_add_(2, second[..., None], 1 - share[..., None])
        decoded = decode(point).double()
        points, outputs, validity = [*points, point], [*outputs, decoded], [*validity, exists]
        too_far = ((decoded - reference)[..., 1] > 0) == above
        low, high = torch.where(too_far, low, share), torch.where(too_far, share, high)
    candidates = torch.cat(points, 1)
    valid = torch.cat(validity, 1)
    divergence = divergence_of_distributions(candidates, alpha[:, None].expand_as(candidates))
    tvd = total_variation(torch.cat(outputs, 1), reference)
    return Candidates(
        points=candidates, jsd=divergence.masked_fill(~valid, torch.nan), tvd=tvd.masked_fill(~valid, torch.nan)
    )


def _pairs(alpha: Tensor, side: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the most promising pairs of tokens whose vertices change the output in opposite directions.

    Args:
        alpha: (B, T) original attention.
        side: (B, T) probability of class 1 with all weight on a token, minus the original probability.
        mask: (B, T) True at real tokens.

    Returns:
        (B, P) first tokens, which increase the probability of class 1; (B, P) second tokens, which decrease it; and a
        (B, P) mask, True where such a pair exists.
    """
    width = alpha.shape[1]
    opposite = (side > 0)[:, :, None] & (side < 0)[:, None, :] & mask[:, :, None] & mask[:, None, :]
    up, down = side[:, :, None].clamp_min(0.0), -side[:, None, :].clamp_max(0.0)
    share = torch.where(opposite, down / (up + down).clamp_min(1e-300), 0.5)
    a, b = alpha[:, :, None], alpha[:, None, :]
    # Twice the JSD at the point (share, 1 - share) of the edge. Only the terms of the two tokens depend on the point.
    value = _term(share, a) + _term(1 - share, b) + (1 - a - b) * torch.log(torch.tensor(2.0, dtype=torch.float64))
    ranked = torch.where(opposite, value, -torch.inf).flatten(1)
    top = ranked.topk(min(PAIRS, ranked.shape[1]), dim=1)
    return top.indices // width, top.indices % width, top.values > -torch.inf


def _term(q: Tensor, p: Tensor) -> Tensor:
    """Return q·ln(q/m) + p·ln(p/m), where m = (p + q)/2. This is twice the contribution of a token to the JSD."""
    middle = (p + q) / 2
    return torch.xlogy(q, q) + torch.xlogy(p, p) - 2 * torch.xlogy(middle, middle)
