"""Adversarial attention by gradient search, for decoders without an exact form. Its JSD is a lower bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attnaudit.metrics.divergence import divergence_of_distributions, jensen_shannon, total_variation
from attnaudit.metrics.padded_rows import broadcast_mask, distributions

#: Attention (B, V, T) or (B, V, H, T) -> class probabilities (B, V, C).
Decode = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of a search by Adam (amsgrad) over free logits under a masked softmax.

    The loss of an instance is the sum over its restarts of -JSD + penalty · relu(TVD - tvd), minus diversity times the
    mean pairwise JSD of the restarts.

    Attributes:
        restarts: number of restarts, which are optimised together.
        steps: number of steps.
        learning_rate: learning rate of Adam.
        penalty: weight of the amount by which the total variation exceeds the limit `tvd`.
        spread: standard deviation of the normal distribution of the starting logits.
        diversity: weight of the pairwise JSD of the restarts.
        from_attention: start the first restart near the audited attention α, at log α plus a hundredth of the noise; at
            α itself, the JSD has gradient 0.
        pull_back: move restarts that end infeasible towards α until they are feasible.
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
    # For models that need a pass through their layers at every step.
    "brief": SearchSettings(restarts=2, steps=60, learning_rate=0.5),
    # The published code of Jain & Wallace 2019.
    "jain_wallace": SearchSettings(
        steps=500, learning_rate=0.01, penalty=500.0, diversity=1.0, from_attention=False, pull_back=False
    ),
}


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The best feasible attention that a search found.

    Attributes:
        attention: (B, T) the attention shown: the weighted mean over the heads.
        jsd: (B,) its Jensen-Shannon divergence to the audited attention α, in nats.
        tvd: (B,) total variation of its output to the original output.
        heads: (B, H, T) the attention of each head.
        last: (B, K, T) the final attention of each of the K restarts; (B, K, H, T) if the search was given heads.
    """

    attention: Tensor
    jsd: Tensor
    tvd: Tensor
    heads: Tensor
    last: Tensor


def keyed_noise(seeds: Sequence[int], mask: Tensor, restarts: int) -> Tensor:
    """Draw standard normal noise for the real tokens of each instance, from the instance's own seed.

    An instance gets the same numbers in any batch, order and padding.

    Args:
        seeds: one seed for each row of the mask.
        mask: (B, T) True at real tokens.
        restarts: number of restarts.

    Returns:
        (B, restarts, T) noise, float64; 0 at padding.

    Raises:
        ValueError: the number of seeds differs from the number of rows.

    >>> keyed_noise([7], torch.tensor([[True, True, False]]), restarts=2).shape
    torch.Size([1, 2, 3])
    """
    if mask.dim() != 2 or len(seeds) != len(mask):
        raise ValueError(f"seeds: expected one for each row of mask (B, T), {tuple(mask.shape)}, but got {len(seeds)}")
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
    """Search for the attention furthest from `attention` in JSD that keeps the output within `tvd`.

    All instances and restarts are optimised together. Every iterate is checked, in float64, against the same limit that
    the penalty uses, and the best feasible one is kept. α itself is feasible, so there always is one. The result does
    not depend on the rest of the batch, up to the rounding of `decode`. Source: Jain & Wallace 2019, §4.2.2.

    Args:
        attention: (B, T) weights; they are normalised over the mask.
        decode: maps V attentions per instance (B, V, T), in the dtype of `attention`, to class probabilities (B, V, C).
            It must be differentiable, and rows must not influence each other.
        tvd: largest total variation, in [0, 1].
        mask: (B, T) True at real tokens; None if every position is real.
        noise: (B, restarts, T) standard normal noise, keyed by instance; give either noise or seeds.
        seeds: one integer for each instance, from which `keyed_noise` draws the noise.
        preset: "default", "brief", or "jain_wallace" for the published settings: 5 restarts from N(0, 3²), 500 steps at
            learning rate .01, penalty 500, and the mean pairwise JSD.
        restarts: replaces the preset's number of restarts.
        steps: replaces the preset's number of steps.
        lr: replaces the preset's learning rate.

    Returns:
        The attention (B, T), its JSD (B,) in nats, and its total variation (B,), all float64. NaN in rows without real
        tokens, or whose output is NaN.

    Raises:
        ValueError: tvd is outside [0, 1], the preset is unknown, or noise, seeds or probabilities have the wrong shape.

    >>> token_logits = torch.tensor([[2.0, -1.0, 0.0]])
    >>> def decode(attention):
    ...     p = torch.sigmoid((attention * token_logits[:, None]).sum(-1))
    ...     return torch.stack([1 - p, p], -1)
    >>> adversary, jsd, tvd = searched_adversarial_attention(torch.tensor([[0.6, 0.3, 0.1]]), decode, 0.05, seeds=[0])
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
    """Search as `searched_adversarial_attention` does, with any settings, and optionally with several heads.

    Args:
        attention: (B, T), or (B, H, T) to let every head vary; `decode` then takes (B, V, H, T), and the divergence is
            that of the heads' weighted mean.
        decode: as in `searched_adversarial_attention`.
        tvd: largest total variation, in [0, 1].
        mask: (B, T) True at real tokens; None if every position is real.
        settings: the settings of the search.
        noise: as in `searched_adversarial_attention`; only without heads.
        seeds: as in `searched_adversarial_attention`.
        shares: (B, H) weights of the heads in their mean; equal if None.
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

    # The search runs in the dtype of `attention`, which the decoder expects; distances are computed in float64.
    alpha = each.nan_to_num(0.0).to(attention.dtype)
    reference = decoded(alpha[:, None]).detach()
    defined = real.any(-1) & ~exact.isnan().any(-1) & ~reference.isnan().flatten(1).any(-1)
    real_or_first = real.clone()
    real_or_first[~real.any(-1), 0] = True  # a softmax over nothing is NaN and would spread through the optimiser

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
        """Return (B, K) JSD to the model's attention (means over heads) and (B, K) TVD to its output, by restart."""
        mean = (weights.double() * shares[:, None]).sum(2)
        divergence = divergence_of_distributions(mean, exact[:, None].expand_as(mean))
        return divergence, total_variation(decoded(weights), reference)

    def keep_best(weights: Tensor, divergence: Tensor, variation: Tensor) -> None:
        """Keep, for each instance, the feasible restart with the largest JSD if it is the best so far."""
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

    # The best point is measured once more without the other restarts, as a caller would measure it.
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
    """Return the settings of a preset with some of them replaced."""
    if preset not in PRESETS:
        raise ValueError(f"preset: expected one of {', '.join(PRESETS)} but got {preset!r}")
    settings = PRESETS[preset]
    if restarts is not None:
        settings = replace(settings, restarts=restarts)
    if steps is not None:
        settings = replace(settings, steps=steps)
    return settings if lr is None else replace(settings, learning_rate=lr)


def _noise(noise: Tensor | None, seeds: Sequence[int] | None, real: Tensor, restarts: int, heads: int) -> Tensor:
    """Return standard normal noise (B, K, H, T): the given noise, or noise drawn from the seeds."""
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
    """Decode in float64 and check the shape of the probabilities."""
    probabilities = decode(weights)
    if probabilities.shape[:-1] != weights.shape[:2]:
        raise ValueError(
            f"decode: expected probabilities of shape {(*weights.shape[:2], 'C')} but got {tuple(probabilities.shape)}"
        )
    return probabilities.double()


def _pairwise(weights: Tensor) -> Tensor:
    """Return the mean JSD (B,) over all K² ordered pairs of restarts.

    Pairs of a restart with itself are included, as in the published code.
    """
    double = weights.double()
    count = weights.shape[1]
    first, second = double[:, :, None], double[:, None]
    shape = (len(weights), count, count, weights.shape[-1])
    return divergence_of_distributions(first.expand(shape), second.expand(shape)).mean((1, 2))


def _pull_back(weights: Tensor, alpha: Tensor, reference: Tensor, decoded: Decode, tvd: float) -> Tensor:
    """Move each restart towards α by bisection, as little as is needed to make it feasible."""
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
