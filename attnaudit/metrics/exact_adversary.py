"""The true optimum of the adversarial attention problem for linear decoders over pooled hidden states.

With the hidden states h fixed, a linear decoder's logit is w·α̃ + b with w_i = W h_i. Attention weights that keep the
output within a total variation distance ε form a polytope, {α̃ in the simplex : lower <= w·α̃ + b <= upper}. JSD(·, α)
is convex, so its maximum is at a vertex: a one-hot inside the slab, or the point of an edge (i, j) where the logit
meets a bound. All O(n²) vertices have closed forms, which makes the result a certificate that no search can beat.
"""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor

from attnaudit.metrics.divergence import jensen_shannon
from attnaudit.metrics.padded_rows import ELEMENTS_PER_CHUNK, compact, distributions, length_chunks, padded_rows

# A vertex may miss its bound by rounding. A logit moves a probability by at most a quarter of its own change, so this
# keeps the total variation within tvd + 1e-10.
LOGIT_SLACK = 4e-10


def exact_adversarial_attention(
    attention: Tensor,
    token_logits: Tensor,
    bias: Tensor | float,
    tvd: Tensor | float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The attention furthest from `attention` in JSD whose two-class output stays within `tvd`, exactly.

    Maximises JSD(α̃, α) over the simplex of the real tokens subject to |σ(w·α̃ + b) - σ(w·α + b)| <= tvd, which is the
    total variation of the two-class vector. A two-logit softmax is the same case with w = (W₁ - W₀)h and b = b₁ - b₀.
    Where p ± tvd leaves (0, 1) the slab is open on that side. α is always feasible; float64 throughout; memory is
    bounded by chunks.

    Shapes: attention (..., T), normalised over the mask first; token_logits (..., T), w_i without the bias; bias a
    number or (...); tvd a number or (...), in [0, 1]; mask (..., T) boolean, True at real tokens, every position if
    None.
    Returns (adversarial attention (..., T), zero at padding, at most two weights unless it is α itself; JSD (...),
    nats). The result's TVD, evaluated again in float64, is at most tvd + 1e-9. Rows without real tokens or mass, or
    with a real value that is not finite, are NaN in both.
    Raises ValueError for shapes that differ, a negative weight, a mask that is not boolean, or tvd outside [0, 1].
    Source: the problem of Jain & Wallace 2019, §4.2.2; solved at the vertices instead of searched.

    >>> attention, token_logits = torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([[2.0, -1.0, 0.0]])
    >>> adversary, divergence = exact_adversarial_attention(attention, token_logits, 0.0, 0.05)
    >>> [round(weight, 3) for weight in adversary[0].tolist()], round(divergence.item(), 4)
    ([0.334, 0.0, 0.666], 0.2404)
    """
    rows = padded_rows(mask, attention=attention, token_logits=token_logits)
    alpha = distributions(rows.values[0], rows.mask, "attention")
    logits = torch.where(rows.mask, rows.values[1], 0.0)
    offset = _per_row(bias, "bias", rows.leading, alpha)
    epsilon = _tolerance(tvd, rows.leading, alpha)
    logit = (alpha * logits).sum(-1)
    lower, upper = _slab(torch.sigmoid(logit + offset), torch.sigmoid(-logit - offset), epsilon, offset, logit)
    adversary = _furthest_vertex(alpha, logits, lower, upper, rows.mask)
    divergence = jensen_shannon(adversary, alpha, rows.mask)
    return adversary.reshape(attention.shape), divergence.reshape(rows.leading)


def adversarial_upper_bound(
    attention: Tensor,
    token_logits: Tensor,
    bias: Tensor,
    tvd: Tensor | float,
    mask: Tensor | None = None,
) -> Tensor:
    """An upper bound (nats) on the JSD of any attention whose multi-class output stays within `tvd`.

    TVD <= ε bounds every class, |Δp_c| <= ε, and so the log-odds of every pair of classes from both sides. Each pair is
    a slab like that of `exact_adversarial_attention`; the true optimum satisfies them all, so the least of the exact
    maxima under one slab alone is above it. With two classes the bound is the exact value.

    Shapes: attention (..., T); token_logits (..., T, C), W_c h_i without the bias, softmax over C; bias (C,) or (...,
    C); tvd a number or (...), in [0, 1]; mask (..., T) boolean; result (...). Undefined rows and errors as in
    `exact_adversarial_attention`. A search (`searched_adversarial_attention`) gives the bracket's lower end.

    >>> attention = torch.tensor([[0.6, 0.3, 0.1]])
    >>> token_logits = torch.tensor([[[0.0, 2.0, 1.0], [0.0, -1.0, 1.0], [0.0, 0.0, 0.5]]])
    >>> round(adversarial_upper_bound(attention, token_logits, torch.zeros(3), 0.05).item(), 4)
    0.2804
    """
    rows = padded_rows(mask, attention=attention)
    alpha = distributions(rows.values[0], rows.mask, "attention")
    if token_logits.shape[:-1] != attention.shape or token_logits.shape[-1] < 2:
        raise ValueError(
            f"token_logits: expected shape {(*attention.shape, 'C')} with C >= 2 but got {tuple(token_logits.shape)}"
        )
    classes = token_logits.shape[-1]
    try:
        offset = bias.to(alpha).expand(*rows.leading, classes).reshape(-1, classes)
    except RuntimeError:
        raise ValueError(
            f"bias: expected shape ({classes},) or {(*rows.leading, classes)} but got {tuple(bias.shape)}"
        ) from None
    epsilon = _tolerance(tvd, rows.leading, alpha)
    logits = torch.where(rows.mask[..., None], token_logits.to(alpha).reshape(*alpha.shape, classes), 0.0)
    context = torch.einsum("bt,btc->bc", alpha, logits)
    probabilities = torch.softmax(context + offset, -1)
    bound = torch.full(alpha.shape[:1], torch.inf, dtype=alpha.dtype, device=alpha.device)
    for c, d in combinations(range(classes), 2):
        lower, upper = _slab(
            probabilities[:, c],
            probabilities[:, d],
            epsilon,
            offset[:, c] - offset[:, d],
            context[:, c] - context[:, d],
        )
        adversary = _furthest_vertex(alpha, logits[:, :, c] - logits[:, :, d], lower, upper, rows.mask)
        bound = torch.minimum(bound, jensen_shannon(adversary, alpha, rows.mask))
    return bound.reshape(rows.leading)


def _per_row(value: Tensor | float, name: str, leading: torch.Size, like: Tensor) -> Tensor:
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if tensor.numel() == 1:
        tensor = tensor.reshape(())
    elif tensor.shape != leading:
        raise ValueError(f"{name}: expected a number or shape {tuple(leading)} but got {tuple(tensor.shape)}")
    return tensor.expand(leading).reshape(-1)


def _tolerance(tvd: Tensor | float, leading: torch.Size, like: Tensor) -> Tensor:
    epsilon = _per_row(tvd, "tvd", leading, like)
    outside = epsilon[~((epsilon >= 0) & (epsilon <= 1))]
    if len(outside):
        raise ValueError(f"tvd: expected a number in [0, 1] but got {float(outside[0])}")
    return epsilon


def _slab(p: Tensor, q: Tensor, epsilon: Tensor, offset: Tensor, logit: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds on w·α̃ (bias not included) from log-odds log(p/q) with p and q each within epsilon; inf where open."""
    lower = torch.where(p > epsilon, ((p - epsilon) / (q + epsilon)).log() - offset, -torch.inf)
    upper = torch.where(q > epsilon, ((p + epsilon) / (q - epsilon)).log() - offset, torch.inf)
    # Rounding must not exclude the original attention, also where p or q has rounded to 0; NaN stays NaN.
    logit = torch.where(p.isnan() | q.isnan(), torch.nan, logit)
    return torch.minimum(lower, logit), torch.maximum(upper, logit)


def _furthest_vertex(alpha: Tensor, logits: Tensor, lower: Tensor, upper: Tensor, mask: Tensor) -> Tensor:
    """The vertex (B, T) of {simplex over mask, lower <= logits·α̃ <= upper} with the largest JSD to alpha (B, T)."""
    defined = mask.any(-1) & alpha.isfinite().all(-1) & logits.isfinite().all(-1) & ~lower.isnan() & ~upper.isnan()
    positions, lengths, (weights, scores) = compact(mask, alpha, logits)
    adversary = torch.where(defined[:, None], alpha, torch.nan)
    lengths = torch.where(defined, lengths, 0)
    for index, width in length_chunks(lengths, lambda length: length * length):
        real = torch.arange(width, device=alpha.device) < lengths[index, None]
        found, first, second, share = _search_vertices(
            weights[index, :width], scores[index, :width], lower[index], upper[index], real
        )
        vertex = torch.zeros(len(index), alpha.shape[-1], dtype=alpha.dtype, device=alpha.device)
        places = positions[index]
        vertex.scatter_(-1, places.gather(-1, first[:, None]), share[:, None])
        vertex.scatter_add_(-1, places.gather(-1, second[:, None]), 1 - share[:, None])
        adversary[index] = torch.where(found[:, None], vertex, adversary[index])
    return adversary


def _search_vertices(
    alpha: Tensor, logits: Tensor, lower: Tensor, upper: Tensor, real: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(found, first token, second token, weight of the first), each (B,), of the furthest vertex of each row.

    Twice the JSD to a vertex with weights t on i and u = 1 - t on j is, up to 2 ln 2,
    f(t) + f(u) + f(α_i) + f(α_j) - f(t + α_i) - f(u + α_j) with f(x) = x ln x: only the terms of i and j change.
    """
    inside = real & (logits >= lower[:, None] - LOGIT_SLACK) & (logits <= upper[:, None] + LOGIT_SLACK)
    least, first = torch.where(inside, alpha, torch.inf).min(-1)
    best = torch.where(inside.any(-1), _f(least) - _f(1 + least), -torch.inf)
    second, share = first.clone(), torch.ones_like(best)
    ascending = torch.where(real, logits, torch.inf).sort(dim=-1, stable=True)
    descending = torch.where(real, logits, -torch.inf).sort(dim=-1, descending=True, stable=True)

    for bound in (lower, upper):
        rows = torch.nonzero(bound.isfinite()).flatten()
        level = bound[rows][:, None, None]
        low, high = ascending.values[rows], descending.values[rows]
        below = int((low < level[:, 0]).sum(-1).max()) if len(rows) else 0
        above = int((high > level[:, 0]).sum(-1).max()) if len(rows) else 0
        if not below or not above:
            continue
        low_places, high_places = ascending.indices[rows, :below], descending.indices[rows, :above]
        low_alpha, high_alpha = alpha[rows].gather(-1, low_places), alpha[rows].gather(-1, high_places)
        low, high, high_alpha = low[:, :below], high[:, None, :above], high_alpha[:, None, :]
        block = max(1, ELEMENTS_PER_CHUNK // (len(rows) * above))
        for start in range(0, below, block):
            low_part, alpha_part = low[:, start : start + block, None], low_alpha[:, start : start + block, None]
            t = (high - level) / (high - low_part)
            u = 1 - t
            crossing = (low_part < level) & (high > level)
            crossing &= (t * low_part + u * high - level).abs() <= LOGIT_SLACK
            value = _f(t) + _f(u) + _f(alpha_part) + _f(high_alpha) - _f(t + alpha_part) - _f(u + high_alpha)
            value, flat = torch.where(crossing, value, -torch.inf).flatten(1).max(-1)
            better = value > best[rows]
            chosen, flat = rows[better], flat[better]
            low_index, high_index = start + flat // above, flat % above
            best[chosen] = value[better]
            first[chosen] = low_places[better].gather(-1, low_index[:, None]).squeeze(-1)
            second[chosen] = high_places[better].gather(-1, high_index[:, None]).squeeze(-1)
            share[chosen] = t[better].flatten(1).gather(-1, flat[:, None]).squeeze(-1)
    # A vertex no further away than α itself (-2 ln 2 on this scale) is rounding: α stays.
    found = best > -2 * math.log(2)
    return found, first, second, share


def _f(x: Tensor) -> Tensor:
    value: Tensor = torch.special.xlogy(x, x)
    return value
