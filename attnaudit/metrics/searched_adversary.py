"""Adversarial attention by gradient search, for decoders without an exact solution.

The JSD of the result is a lower bound on the JSD of the optimal attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attnaudit.metrics.divergence import divergence_of_distributions, jensen_shannon, total_variation
from attnaudit.metrics.padded_rows import broadcast_mask, distributions

#: A function that computes class probabilities (B, V, C) from V attentions per instance, (B, V, T) or (B, V, H, T).
Decode = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of a search by gradient descent with Adam (amsgrad).

    The attention is a softmax over the real tokens, and the search optimises its logits. The loss of an instance is a
    sum over its restarts, Σ (-JSD + penalty · relu(TVD - tvd)), minus diversity · (mean pairwise JSD of the restarts).
    Here, TVD is the total variation of the output, and tvd is its limit.

    Attributes:
        restarts: Number of starting points of each instance. They are optimised together.
        steps: Number of optimisation steps.
        learning_rate: Learning rate of Adam.
        penalty: Weight of the amount by which TVD exceeds its limit.
        spread: Standard deviation of the normal distribution from which the starting logits are drawn.
        diversity: Weight of the mean pairwise JSD of the restarts.
        from_attention: Whether the first restart begins near the audited attention α. Its starting logits are log α
            plus a hundredth of the noise. The noise is needed because the gradient of the JSD is 0 at α itself.
        pull_back: Whether restarts that end with a TVD above the limit are moved towards α until they are within the
            limit.
    """

    restarts: int = 5
    steps: int = 200
    learning_rate: float = 0.3
    penalty: float = 20.0
    spread: float = 3.0
    diversity: float = 0.0
    from_attention: bool = True
    pull_back: bool = True


PRESETS = {
    "default": SearchSettings(),
    # For models in which every step needs a pass through several layers.
    "brief": SearchSettings(restarts=2, steps=60, learning_rate=0.5),
    # As in the published code of Jain & Wallace 2019.
    "jain_wallace": SearchSettings(
        steps=500, learning_rate=0.01, penalty=500.0, diversity=1.0, from_attention=False, pull_back=False
    ),
}


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The best attention that a search found. It is feasible: the total variation of its output is within the limit.

    All attributes except `last` are float64, and NaN for instances for which the search is undefined.

    Attributes:
        attention: (B, T) weighted mean of the attention over the heads.
        jsd: (B,) Jensen-Shannon divergence between `attention` and the audited attention α, in nats.
        tvd: (B,) total variation between the output for this attention and the original output.
        heads: (B, H, T) attention of each head. H = 1 for a search without heads.
        last: (B, K, T) final attention of each of the K restarts, feasible or not. Its shape is (B, K, H, T) for a
            search with heads.
    """

    attention: Tensor
    jsd: Tensor
    tvd: Tensor
    heads: Tensor
    last: Tensor


def keyed_noise(seeds: Sequence[int], mask: Tensor, restarts: int) -> Tensor:
    """Draw standard normal noise for the real tokens of each instance, with a separate seed for each instance.

    The noise of an instance depends only on its seed and its number of real tokens, not on the other rows of the batch,
    their order or the padding.

    Args:
        seeds: One seed for each row of the mask.
        mask: (B, T) True at real tokens.
        restarts: Number of restarts.

    Returns:
        (B, restarts, T) noise, float64; 0 at padding.

    Raises:
        ValueError: The number of seeds differs from the number of rows.

    Examples:
        >>> keyed_noise([7], torch.tensor([[True, True, False]]), restarts=2).shape
        torch.Size([1, 2, 3])
    """
    if mask.dim() != 2 or len(seeds) != len(mask):
        raise ValueError(
            f"seeds: expected one for each row of mask, which must have shape (B, T), but got {len(seeds)} seeds and a "
            f"mask of shape {tuple(mask.shape)}"
        )
    noise = torch.zeros(len(mask), restarts, mask.shape[-1], dtype=torch.float64)
    for row, (seed, real) in enumerate(zip(seeds, mask.cpu(), strict=True)):
        drawn = np.random.default_rng(seed).standard_normal((restarts, int(real.sum())))
        noise[row, :, real] = torch.from_numpy(drawn)
    return noise.to(mask.device)


def searched_adversarial_attention(
    attention: Tensor,
    decode: Decode,
    tvd: float,
    mask: Tensor | None = None,
    *,
    noise: Tensor | None = None,
    seeds: Sequence[int] | None = None,
    preset: str = "default",
    restarts: int | None = None,
    steps: int | None = None,
    lr: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Search for the attention that differs most from `attention` in JSD but keeps the output within `tvd`.

    All instances and restarts are optimised together. After every step, the search checks in float64 whether the output
    of each attention is within `tvd`. The result is the attention with the largest JSD that is within this limit. If
    the search finds none, the result is the given attention, which is always within the limit. The rest of the batch
    affects the result of an instance only through rounding errors in `decode`. Source: Jain & Wallace 2019, §4.2.2.

    Args:
        attention: (B, T) weights of at least 0; they are normalised over the mask.
        decode: Maps V attentions per instance (B, V, T) to class probabilities (B, V, C). The attentions have the dtype
            of `attention`. The function must be differentiable. The result for one attention must not depend on the
            other attentions.
        tvd: Largest total variation, in [0, 1].
        mask: (B, T) True at real tokens; None if every position is real.
        noise: (B, restarts, T) standard normal noise from which the restarts begin. Give either `noise` or `seeds`.
        seeds: One integer per instance, as the seed of `keyed_noise`.
        preset: "default", "brief" or "jain_wallace". The preset "brief" has fewer restarts and steps. The preset
            "jain_wallace" has the published settings: 5 restarts from N(0, 3²), 500 steps with learning rate .01,
            penalty 500, and a reward for the mean pairwise JSD.
        restarts: Number of restarts; None to take it from the preset.
        steps: Number of steps; None to take it from the preset.
        lr: Learning rate; None to take it from the preset.

    Returns:
        The attention (B, T), its JSD (B,) in nats, and its total variation (B,), all float64. They are NaN in rows
        without real tokens, in rows whose weights sum to 0 or contain NaN, and in rows whose output is NaN.

    Raises:
        ValueError: tvd is outside [0, 1], the preset is unknown, a weight is negative, or an argument or the
            probabilities have the wrong shape.

    Examples:
        >>> token_logits = torch.tensor([[2.0, -1.0, 0.0]])
        >>> def decode(attention):
        ...     p = torch.sigmoid((attention * token_logits[:, None]).sum(-1))
        ...     return torch.stack([1 - p, p], -1)
        >>> attention = torch.tensor([[0.6, 0.3, 0.1]])
        >>> adversary, jsd, tvd = searched_adversarial_attention(attention, decode, 0.05, seeds=[0])
        >>> 0.23 < jsd.item() < 0.2405, tvd.item() <= 0.05  # the exact optimum is 0.2404
        (True, True)
    """
    result = search(
        attention, decode, tvd, mask, settings=_settings(preset, restarts, steps, lr), noise=noise, seeds=seeds
    )
    return result.attention, result.jsd, result.tvd


def search(
    attention: Tensor,
    decode: Decode,
    tvd: float,
    mask: Tensor | None = None,
    *,
    settings: SearchSettings,
    noise: Tensor | None = None,
    seeds: Sequence[int] | None = None,
    shares: Tensor | None = None,
) -> SearchResult:
    """Search for an adversarial attention for one or several heads, with custom settings.

    With several heads, each head has its own attention, and the JSD compares the weighted means over the heads. In all
    other respects, the search is the same as in `searched_adversarial_attention`.

    Args:
        attention: (B, T) weights, or (B, H, T) weights of several heads. They are normalised over the mask.
        decode: Maps V attentions per instance, (B, V, T) or (B, V, H, T), to class probabilities (B, V, C). See
            `searched_adversarial_attention`.
        tvd: Largest total variation, in [0, 1].
        mask: (B, T) True at real tokens; None if every position is real.
        settings: The settings of the search.
        noise: (B, restarts, T) standard normal noise from which the restarts begin. It cannot be used with several
            heads. Give either `noise` or `seeds`.
        seeds: One integer per instance, from which the noise is drawn.
        shares: (B, H) weights of the heads in the mean over heads; None for equal weights.

    Raises:
        ValueError: tvd is outside [0, 1], a weight is negative, or an argument or the probabilities have the wrong
            shape.
    """
    if attention.dim() not in (2, 3):
        raise ValueError(f"attention: expected shape (B, T) or (B, H, T) but got {tuple(attention.shape)}")
    if not 0 <= tvd <= 1:
        raise ValueError(f"tvd: expected a number in [0, 1] but got {tvd}")
    has_heads = attention.dim() == 3
    patterns = attention if has_heads else attention[:, None]
    real = broadcast_mask(mask, patterns[:, 0])
    heads = patterns.shape[1]
    noise = _noise(noise, seeds, real, settings.restarts, heads)
    each = distributions(patterns.detach().double(), real[:, None].expand_as(patterns), "attention")
    shares = each.new_ones(each.shape[:2]) if shares is None else shares.double()
    shares = (shares / shares.sum(1, keepdim=True))[..., None]
    exact = (each * shares).sum(1)

    def decoded(weights: Tensor) -> Tensor:
        return _decoded(decode, weights if has_heads else weights[:, :, 0])

    # The decoder expects the dtype of `attention`, so the search runs in it. Distances are computed in float64.
    alpha = each.nan_to_num(0.0).to(attention.dtype)
    reference = decoded(alpha[:, None]).detach()
    defined = real.any(-1) & ~exact.isnan().any(-1) & ~reference.isnan().flatten(1).any(-1)
    real_or_first = real.clone()
    real_or_first[~real.any(-1), 0] = True  # a softmax without tokens is NaN, which would spread to other rows

    start = settings.spread * noise
    if settings.from_attention:
        start[:, 0] = alpha.double().clamp_min(1e-6).log() + 0.01 * noise[:, 0]
    logits = start.to(attention.dtype).requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=settings.learning_rate, amsgrad=True)
    best_heads = each.clone()
    best_jsd = torch.zeros(len(exact), dtype=torch.float64, device=exact.device)
    best_tvd = best_jsd.clone()

    def current_weights() -> Tensor:
        return torch.softmax(logits.masked_fill(~real_or_first[:, None, None], -torch.inf), -1)

    def distances(weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (B, K) JSD and the (B, K) total variation of each restart, given its weights (B, K, H, T).

        The JSD compares the restart with the audited attention, both averaged over the heads.
        """
        mean = (weights.double() * shares[:, None]).sum(2)
        divergence = divergence_of_distributions(mean, exact[:, None].expand_as(mean))
        return divergence, total_variation(decoded(weights), reference)

    def keep_best(weights: Tensor, divergence: Tensor, variation: Tensor) -> None:
        """Find each instance's feasible restart with the largest JSD, and store it if it is the best so far.

        Args:
            weights: (B, K, H, T) attention of each restart.
            divergence: (B, K) JSD of each restart.
            variation: (B, K) total variation of each restart.
        """
        feasible = torch.where((variation <= tvd) & ~divergence.isnan(), divergence, -torch.inf)
        value, which = feasible.max(-1)
        better = value > best_jsd
        rows, chosen = torch.nonzero(better).flatten(), which[better]
        best_jsd[better] = value[better]
        best_tvd[better] = variation[rows, chosen]
        best_heads[better] = weights[rows, chosen].double()

    with torch.enable_grad():
        for _ in range(settings.steps):
            weights = current_weights()
            divergence, variation = distances(weights)
            keep_best(weights.detach(), divergence.detach(), variation.detach())
            per_instance = (settings.penalty * torch.relu(variation - tvd) - divergence).sum(-1)
            if settings.diversity:
                per_instance = per_instance - settings.diversity * _pairwise((weights * shares[:, None]).sum(2))
            (logits.grad,) = torch.autograd.grad(per_instance[defined].sum(), [logits])
            logits.grad.nan_to_num_(0.0)
            optimiser.step()
    with torch.no_grad():
        last = current_weights()
        divergence, variation = distances(last)
        keep_best(last, divergence, variation)
        if settings.pull_back:
            pulled = _pull_back(last, alpha, reference, decoded, tvd)
            keep_best(pulled, *distances(pulled))

    # The best attention is decoded again without the other restarts, as a caller would decode it.
    final = best_heads.nan_to_num(0.0).to(attention.dtype)
    with torch.no_grad():
        best_tvd = total_variation(decoded(final[:, None]), reference)[:, 0]
    best_attention = (best_heads * shares).sum(1)
    best_jsd = jensen_shannon(best_attention.nan_to_num(0.0), exact.nan_to_num(0.0), real)
    return SearchResult(
        attention=torch.where(defined[:, None], best_attention, torch.nan),
        heads=torch.where(defined[:, None, None], best_heads, torch.nan),
        jsd=torch.where(defined, best_jsd, torch.nan),
        tvd=torch.where(defined, best_tvd, torch.nan),
        last=last if has_heads else last[:, :, 0],
    )


def _settings(preset: str, restarts: int | None, steps: int | None, lr: float | None) -> SearchSettings:
    """Return the settings of a preset. Each argument that is not None replaces a setting.

    Raises:
        ValueError: The preset is unknown.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset: expected one of {', '.join(PRESETS)} but got {preset!r}")
    settings = PRESETS[preset]
    if restarts is not None:
        settings = replace(settings, restarts=restarts)
    if steps is not None:
        settings = replace(settings, steps=steps)
    return settings if lr is None else replace(settings, learning_rate=lr)


def _noise(noise: Tensor | None, seeds: Sequence[int] | None, real: Tensor, restarts: int, heads: int) -> Tensor:
    """Return the noise (B, K, H, T) from which the K restarts begin.

    Args:
        noise: (B, K, T) noise to use, allowed only if H = 1; None to draw it from the seeds.
        seeds: One integer per instance; None if `noise` is given.
        real: (B, T) True at real tokens.
        restarts: K, the number of restarts.
        heads: H, the number of heads.

    Raises:
        ValueError: Neither or both of `noise` and `seeds` are given, or one has the wrong shape.
    """
    if (noise is None) == (seeds is None):
        raise ValueError("noise: expected either noise or seeds but got " + ("neither" if noise is None else "both"))
    if seeds is not None:
        return keyed_noise(seeds, real, restarts * heads).reshape(len(real), restarts, heads, -1)
    assert noise is not None
    expected = (len(real), restarts, real.shape[-1])
    if tuple(noise.shape) != expected or heads != 1:
        raise ValueError(f"noise: expected shape {expected} but got {tuple(noise.shape)}")
    return noise.double()[:, :, None]


def _decoded(decode: Decode, weights: Tensor) -> Tensor:
    """Decode attentions, check the shape of the probabilities (B, V, C) and convert them to float64.

    Raises:
        ValueError: The probabilities have the wrong shape.
    """
    probabilities = decode(weights)
    if probabilities.shape[:-1] != weights.shape[:2]:
        raise ValueError(
            f"decode: expected probabilities of shape {(*weights.shape[:2], 'C')} but got {tuple(probabilities.shape)}"
        )
    return probabilities.double()


def _pairwise(weights: Tensor) -> Tensor:
    """Return the mean JSD (B,) over all K² ordered pairs of restarts, given their attentions (B, K, T).

    As in the published code of Jain & Wallace 2019, each restart is also paired with itself, with a JSD of 0.
    """
    double = weights.double()
    count = weights.shape[1]
    first, second = double[:, :, None], double[:, None]
    shape = (len(weights), count, count, weights.shape[-1])
    return divergence_of_distributions(first.expand(shape), second.expand(shape)).mean((1, 2))


def _pull_back(weights: Tensor, alpha: Tensor, reference: Tensor, decoded: Decode, tvd: float) -> Tensor:
    """Move each restart towards α just far enough to make it feasible. Find the distance by bisection.

    Args:
        weights: (B, K, H, T) attention of each restart.
        alpha: (B, H, T) audited attention.
        reference: (B, 1, C) original output.
        decoded: Computes class probabilities from attentions.
        tvd: Largest total variation.

    Returns:
        (B, K, H, T) attention of each restart after the move.
    """
    low = torch.zeros(weights.shape[:2], dtype=weights.dtype, device=weights.device)
    high = torch.ones_like(low)
    origin = alpha[:, None]

    def at(share: Tensor) -> Tensor:
        return origin + share[..., None, None] * (weights - origin)

    high_feasible = total_variation(decoded(at(high)), reference) <= tvd
    low = torch.where(high_feasible, high, low)
    for _ in range(20):
        middle = (low + high) / 2
        feasible = total_variation(decoded(at(middle)), reference) <= tvd
        low, high = torch.where(feasible, middle, low), torch.where(feasible, high, middle)
    return at(low)
