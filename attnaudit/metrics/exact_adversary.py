"""The exact optimum of the adversarial attention problem, for linear decoders over pooled hidden states.

Let α be the model's attention, and h_i the fixed hidden states. Under another attention α̃, the logit of a linear
decoder is w·α̃ + b, where w_i = W h_i. The attentions that keep the output within a total variation ε form a polytope:
{α̃ in the simplex, lower <= w·α̃ + b <= upper}. JSD(·, α) is convex, so its maximum is at a vertex of the polytope. A
vertex is either a one-hot distribution whose logit is within the bounds, or a point on an edge of the simplex at which
the logit equals a bound. All O(n²) vertices have closed forms, so no numerical optimisation is needed.
"""

from __future__ import annotations

import math
from itertools import combinations

import torch
from torch import Tensor

from attnaudit.metrics.divergence import jensen_shannon
from attnaudit.metrics.padded_rows import ELEMENTS_PER_CHUNK, compact, distributions, length_chunks, padded_rows

#: Because of rounding, the logit of a vertex may exceed its bound by this amount. A probability changes by at most a
#: quarter of the change of the logit, so the total variation is at most tvd + 1e-10.
LOGIT_SLACK = 4e-10


def exact_adversarial_attention(
    attention: Tensor,
    token_logits: Tensor,
    bias: Tensor | float,
    tvd: Tensor | float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attention that differs most from `attention` in JSD but keeps a two-class output within `tvd`.

    Let α be the given attention. The result α̃ maximises JSD(α̃, α) among all distributions over the real tokens that
    satisfy the constraint |σ(w·α̃ + b) - σ(w·α + b)| <= tvd. The left side is the total variation of the output. α
    itself always satisfies the constraint. For a softmax over two logits, use w = (W₁ - W₀)h and b = b₁ - b₀.

    Jain & Wallace 2019, §4.2.2, state this problem and solve it approximately by a search. This function finds the
    exact solution (see the module's documentation).

    Args:
        attention: (..., T) weights of at least 0; they are normalised over the mask.
        token_logits: (..., T) logit w_i of each token, without the bias.
        bias: b, a number or a tensor (...).
        tvd: Largest total variation, in [0, 1]; a number or a tensor (...).
        mask: (..., T) True at real tokens; None if every position is real.

    Returns:
        The adversarial attention (..., T), float64, 0 at padding; and its JSD (...) to α, in nats. The attention has at
        most two nonzero weights, unless it is α itself. The total variation of its output, computed in float64, is at
        most tvd + 1e-9. Both results are NaN in rows without real tokens, in rows whose weights sum to 0, and in rows
        with a non-finite value at a real token.

    Raises:
        ValueError: Shapes differ, a weight is negative, the mask is not boolean, or tvd is outside [0, 1].

    Examples:
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

    If the total variation is at most ε, the probability of each class changes by at most ε. This bounds the log-odds of
    each pair of classes from both sides, as in the two-class problem of `exact_adversarial_attention`. The adversarial
    attention satisfies the bounds of all pairs, so its JSD is at most the optimum of each two-class problem. The
    function returns the smallest of these optima. With two classes, the bound is exact. For a lower bound, use
    `searched_adversarial_attention`.

    Args:
        attention: (..., T) weights of at least 0; they are normalised over the mask.
        token_logits: (..., T, C) logits W_c h_i without the bias, for a softmax over C >= 2 classes.
        bias: (C,) or (..., C) bias of the logits.
        tvd: Largest total variation, in [0, 1]; a number or a tensor (...).
        mask: (..., T) True at real tokens; None if every position is real.

    Returns:
        (...) bounds. They are NaN in rows without real tokens, in rows whose weights sum to 0, and in rows with a
        non-finite value at a real token.

    Raises:
        ValueError: Shapes do not fit, a weight is negative, the mask is not boolean, or tvd is outside [0, 1].

    Examples:
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
    """Expand a number, or a tensor with one value per row, to a tensor with one value per flattened row.

    Args:
        value: The number or the tensor.
        name: The name of the argument, for the error message.
        leading: The shape of the rows before they were flattened.
        like: A tensor with the data type and device of the result.

    Raises:
        ValueError: The tensor has another shape.
    """
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if tensor.numel() == 1:
        tensor = tensor.reshape(())
    elif tensor.shape != leading:
        raise ValueError(f"{name}: expected a number or shape {tuple(leading)} but got {tuple(tensor.shape)}")
    return tensor.expand(leading).reshape(-1)


def _tolerance(tvd: Tensor | float, leading: torch.Size, like: Tensor) -> Tensor:
    """Return the largest total variation that is allowed in each flattened row.

    Raises:
        ValueError: A value is outside [0, 1], or the tensor has the wrong shape.
    """
    epsilon = _per_row(tvd, "tvd", leading, like)
    outside = epsilon[~((epsilon >= 0) & (epsilon <= 1))]
    if len(outside):
        raise ValueError(f"tvd: expected a number in [0, 1] but got {float(outside[0])}")
    return epsilon


def _slab(p: Tensor, q: Tensor, epsilon: Tensor, offset: Tensor, logit: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower and upper bounds (B,) on w·α̃ that keep the output within epsilon. They do not include the bias.

    The bounds follow from the log-odds log(p/q), where p and q may each change by at most epsilon. The lower bound is
    -∞ if p <= epsilon, and the upper bound is ∞ if q <= epsilon.

    Args:
        p: (B,) original probability of the first class.
        q: (B,) original probability of the second class.
        epsilon: (B,) largest change of each probability.
        offset: (B,) difference of the biases of the two classes.
        logit: (B,) w·α, the original difference of the logits without the biases.
    """
    lower = torch.where(p > epsilon, ((p - epsilon) / (q + epsilon)).log() - offset, -torch.inf)
    upper = torch.where(q > epsilon, ((p + epsilon) / (q - epsilon)).log() - offset, torch.inf)
    # Rounding must not exclude the original attention, even if p or q was rounded to 0. NaN must stay NaN.
    logit = torch.where(p.isnan() | q.isnan(), torch.nan, logit)
    return torch.minimum(lower, logit), torch.maximum(upper, logit)


def _furthest_vertex(alpha: Tensor, logits: Tensor, lower: Tensor, upper: Tensor, mask: Tensor) -> Tensor:
    """Return the vertex of the polytope {α̃ in the simplex, lower <= logits·α̃ <= upper} with the largest JSD to alpha.

    Args:
        alpha: (B, T) original attention.
        logits: (B, T) logit of each token.
        lower: (B,) lower bounds.
        upper: (B,) upper bounds.
        mask: (B, T) True at real tokens.

    Returns:
        (B, T) vertices. A row is alpha itself if no vertex has a larger JSD, and NaN if it has no real tokens or if
        some value of a real token is not finite.
    """
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
    """Find the vertex with the largest JSD to alpha in each row.

    Let a vertex have weight t on token i and u = 1 - t on token j. Vertices are compared by twice their JSD to alpha,
    minus the constant 2 ln 2. This equals f(t) + f(u) + f(α_i) + f(α_j) - f(t + α_i) - f(u + α_j), where f(x) = x ln x.

    Args:
        alpha: (B, T) original attention.
        logits: (B, T) logit of each token.
        lower: (B,) lower bounds.
        upper: (B,) upper bounds.
        real: (B, T) True at real tokens.

    Returns:
        Four tensors (B,): whether some vertex has a positive JSD to alpha; the first token of the best vertex; its
        second token; and the weight of the first token.
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
    # α itself has JSD 0, so its value is -2 ln 2. A vertex is accepted only if its value is larger.
    is_further = best > -2 * math.log(2)
    return is_further, first, second, share


def _f(x: Tensor) -> Tensor:
    """Return x ln x of numbers that are not negative, with 0 ln 0 = 0. This takes a quarter of the time of xlogy."""
    return x * x.clamp_min(torch.finfo(x.dtype).tiny).log()
