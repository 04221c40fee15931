"""The exact optimum of the adversarial attention problem, for linear decoders over pooled hidden states.

With fixed hidden states h, the logit of a linear decoder is w·α̃ + b with w_i = W h_i. The attention weights that keep
the output within a total variation ε form a polytope: {α̃ in the simplex, lower <= w·α̃ + b <= upper}. JSD(·, α) is
convex, so its maximum is at a vertex: a one-hot distribution whose logit is within the bounds, or the point of an edge
(i, j) at which the logit equals a bound. All O(n²) vertices have closed forms, so the optimum is found without a
search.
"""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor

from attnaudit.metrics.divergence import jensen_shannon
from attnaudit.metrics.padded_rows import ELEMENTS_PER_CHUNK, compact, distributions, length_chunks, padded_rows

#: By how much a vertex may miss its bound through rounding. A change of a logit changes a probability by at most a
#: quarter as much, so the total variation stays within tvd + 1e-10.
LOGIT_SLACK = 4e-10


def exact_adversarial_attention(
    attention: Tensor,
    token_logits: Tensor,
    bias: Tensor | float,
    tvd: Tensor | float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attention furthest from `attention` in JSD that keeps a two-class output within `tvd`.

    It maximises JSD(α̃, α) over the simplex of the real tokens, subject to |σ(w·α̃ + b) - σ(w·α + b)| <= tvd, the total
    variation of the two-class output. A softmax over two logits is the same problem with w = (W₁ - W₀)h and b = b₁ -
    b₀. Where σ(w·α + b) ± tvd leaves (0, 1), the logit has no bound on that side. α itself is always feasible. Rows are
    processed in chunks, which limits the memory. Source: Jain & Wallace 2019, §4.2.2, state the problem and search;
    here it is solved at the vertices.

    Args:
        attention: (..., T) weights of at least 0; they are normalised over the mask.
        token_logits: (..., T) logit w_i of each token, without the bias.
        bias: a number, or (...).
        tvd: largest total variation, in [0, 1]; a number, or (...).
        mask: (..., T) True at real tokens; None if every position is real.

    Returns:
        The adversarial attention (..., T), float64, 0 at padding, with at most two nonzero weights unless it is α
        itself; and its JSD (...), in nats. Its total variation, recomputed in float64, is at most tvd + 1e-9. Both are
        NaN in rows without real tokens or mass, or with a value that is not finite at a real token.

    Raises:
        ValueError: shapes differ, a weight is negative, the mask is not boolean, or tvd is outside [0, 1].

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
    """Return an upper bound, in nats, on the JSD of any attention that keeps a multi-class output within `tvd`.

    TVD <= ε bounds the change of every class, |Δp_c| <= ε, and therefore the log-odds of every pair of classes from
    both sides. Each pair of classes gives a two-class problem as in `exact_adversarial_attention`. The optimum
    satisfies the bounds of all of them, so its JSD is at most the maximum of each; the smallest of these maxima is
    returned. With two classes the bound is exact. A search (`searched_adversarial_attention`) gives a lower bound.

    Args:
        attention: (..., T) weights of at least 0; they are normalised over the mask.
        token_logits: (..., T, C) logits W_c h_i without the bias, for a softmax over C >= 2 classes.
        bias: (C,) or (..., C).
        tvd: largest total variation, in [0, 1]; a number, or (...).
        mask: (..., T) True at real tokens; None if every position is real.

    Returns:
        (...) bounds; NaN in the rows in which `exact_adversarial_attention` is NaN.

    Raises:
        ValueError: as in `exact_adversarial_attention`.

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
    """Expand a number, or a tensor of the leading shape, to one value per flattened row."""
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if tensor.numel() == 1:
        tensor = tensor.reshape(())
    elif tensor.shape != leading:
        raise ValueError(f"{name}: expected a number or shape {tuple(leading)} but got {tuple(tensor.shape)}")
    return tensor.expand(leading).reshape(-1)


def _tolerance(tvd: Tensor | float, leading: torch.Size, like: Tensor) -> Tensor:
    """Return the largest total variation of every flattened row; raises ValueError if one is outside [0, 1]."""
    epsilon = _per_row(tvd, "tvd", leading, like)
    outside = epsilon[~((epsilon >= 0) & (epsilon <= 1))]
    if len(outside):
        raise ValueError(f"tvd: expected a number in [0, 1] but got {float(outside[0])}")
    return epsilon


def _slab(p: Tensor, q: Tensor, epsilon: Tensor, offset: Tensor, logit: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower and upper bounds (B,) on w·α̃, without the bias, that keep the output within epsilon.

    They follow from the log-odds log(p/q), where p and q may each change by at most epsilon. The lower bound is -∞ for
    p <= epsilon, and the upper bound ∞ for q <= epsilon.

    Args:
        p: (B,) probability of one class.
        q: (B,) probability of the other class.
        epsilon: (B,) largest change of each.
        offset: (B,) difference of the two biases.
        logit: (B,) w·α, the original logit difference without the bias.
    """
    lower = torch.where(p > epsilon, ((p - epsilon) / (q + epsilon)).log() - offset, -torch.inf)
    upper = torch.where(q > epsilon, ((p + epsilon) / (q - epsilon)).log() - offset, torch.inf)
    # Rounding must not exclude the original attention, even where p or q was rounded to 0. NaN must stay NaN.
    logit = torch.where(p.isnan() | q.isnan(), torch.nan, logit)
    return torch.minimum(lower, logit), torch.maximum(upper, logit)


def _furthest_vertex(alpha: Tensor, logits: Tensor, lower: Tensor, upper: Tensor, mask: Tensor) -> Tensor:
    """Return the vertex (B, T) of {simplex, lower <= logits·α̃ <= upper} with the largest JSD to alpha (B, T)."""
    defined = mask.any(-1) & alpha.isfinite().all(-1) & logits.isfinite().all(-1) & ~lower.isnan() & ~upper.isnan()
    positions, lengths, (weights, scores) = compact(mask, alpha, logits)
    adversary = torch.where(defined[:, None], alpha, torch.nan)
    lengths = torch.where(defined, lengths, 0)
    for index, width in length_chunks(lengths, lambda length: length * length):
        real = torch.arange(width, device=alpha.device) < lengths[index, None]
        is_further, first, second, share = _search_vertices(
            weights[index, :width], scores[index, :width], lower[index], upper[index], real
        )
        vertex = torch.zeros(len(index), alpha.shape[-1], dtype=alpha.dtype, device=alpha.device)
        places = positions[index]
        vertex.scatter_(-1, places.gather(-1, first[:, None]), share[:, None])
        vertex.scatter_add_(-1, places.gather(-1, second[:, None]), 1 - share[:, None])
        adversary[index] = torch.where(is_further[:, None], vertex, adversary[index])
    return adversary


def _search_vertices(
    alpha: Tensor, logits: Tensor, lower: Tensor, upper: Tensor, real: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find the vertex furthest from alpha in each row.

    Up to the constant 2 ln 2, twice the JSD to a vertex with weight t on token i and u = 1 - t on token j is
    f(t) + f(u) + f(α_i) + f(α_j) - f(t + α_i) - f(u + α_j) with f(x) = x ln x: only the terms of i and j depend on it.

    Returns:
        Whether a vertex is further away than alpha itself, its first token, its second token, and the weight of the
        first token; each (B,).
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
    # On this scale, α itself has the value -2 ln 2. A vertex that is not further away than that is rejected.
    is_further = best > -2 * math.log(2)
    return is_further, first, second, share


def _f(x: Tensor) -> Tensor:
    """Return x ln x, with 0 ln 0 = 0."""
    value: Tensor = torch.special.xlogy(x, x)
    return value
