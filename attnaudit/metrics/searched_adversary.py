"""Adversarial attention by gradient search, for decoders that have no exact form: a feasible lower bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attnaudit.metrics.divergence import divergence_of_distributions, jensen_shannon, total_variation
from attnaudit.metrics.padded_rows import broadcast_mask, distributions

Decode = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How to search: Adam (amsgrad) over free logits under a masked softmax.

    Loss per instance: sum over restarts of (-JSD + penalty · relu(TVD - tvd)) - diversity · mean pairwise JSD of the
    restarts. Restarts start at N(0, spread²); with `from_attention`, the first starts at log α instead, nudged by a
    hundredth of its noise since JSD has no gradient at α. `pull_back`: at the end an infeasible restart is moved
    towards α until it is feasible.
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
    # For models that take a pass through their layers at every step.
    "brief": SearchSettings(restarts=2, steps=60, learning_rate=0.5),
    # Jain & Wallace 2019, published code.
    "jain_wallace": SearchSettings(
        steps=500, learning_rate=0.01, penalty=500.0, diversity=1.0, from_attention=False, pull_back=False
    ),
}


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """attention (B, T), jsd (B,), tvd (B,) of the best feasible point; heads (B, H, T): what it is the mean of; last
    (B, K, T), (B, K, H, T) with heads: where each restart ended."""

    attention: Tensor
    jsd: Tensor
    tvd: Tensor
    heads: Tensor
    last: Tensor


def keyed_noise(seeds: Sequence[int], mask: Tensor, restarts: int) -> Tensor:
    """Standard normal noise (B, restarts, T), drawn from each instance's own seed over its real tokens only.

    An instance gets the same numbers in any batch, order and padding. Zero at padding.
    Raises ValueError unless there is one seed for each of the B rows of mask (B, T).

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
    """The furthest attention in JSD that a search finds with the output within `tvd`; all instances and restarts at
    once.

    `decode` takes attention (B, V, T), V alternatives for each instance in the dtype of `attention`, and returns class
    probabilities (B, V, C); it must be differentiable, and rows must not influence each other. Every iterate is held
    against the same `tvd` that the penalty uses, in float64; the best feasible one is kept. α itself is feasible, so
    there always is one. The result does not depend on the rest of the batch, up to the rounding of `decode`.

    Give either `noise` (B, restarts, T), standard normal and keyed by instance, or `seeds`, one integer per instance
    (`keyed_noise`). Presets: "default", and "jain_wallace" with K = 5, Adam amsgrad, learning rate .01, 500 steps, N(0,
    3²) starts, penalty 500 and the mean pairwise JSD; `restarts`, `steps` and `lr` override them.

    Shapes: attention (B, T), normalised over the mask; mask (B, T) boolean, every position if None.
    Returns (attention (B, T), JSD (B,) in nats, TVD (B,)), float64; rows without real tokens, or whose output is NaN,
    are NaN.
    Raises ValueError for tvd outside [0, 1], another preset, noise or seeds that do not fit, or probabilities of
    another shape. Source: Jain & Wallace 2019, §4.2.2.

    >>> token_logits = torch.tensor([[2.0, -1.0, 0.0]])
    >>> def decode(attention):
    ...     p = torch.sigmoid((attention * token_logits[:, None]).sum(-1))
    ...     return torch.stack([1 - p, p], -1)
    >>> found, jsd, tvd = searched_adversarial_attention(torch.tensor([[0.6, 0.3, 0.1]]), decode, 0.05, seeds=[0])
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
    """`searched_adversarial_attention` with free settings, and with where every restart ended.

    attention (B, H, T) has every head free: `decode` then takes (B, V, H, T), and the divergence is that of their mean
    with the given shares (B, H), equal ones if None.
    """
    if attention.dim() not in (2, 3):
        raise ValueError(f"attention: expected shape (B, T) or (B, H, T) but got {tuple(attention.shape)}")
    if not 0 <= tvd <= 1:
        raise ValueError(f"tvd: expected a number in [0, 1] but got {tvd}")
    own, many = (attention, True) if attention.dim() == 3 else (attention[:, None], False)
    real = broadcast_mask(mask, own[:, 0])
    heads = own.shape[1]
    noise = _noise(noise, seeds, real, settings.restarts, heads)
    each = distributions(own.detach().double(), real[:, None].expand_as(own), "attention")
    shares = each.new_ones(each.shape[:2]) if shares is None else shares.double()
    shares = (shares / shares.sum(1, keepdim=True))[..., None]
    exact = (each * shares).sum(1)

    def decoded(weights: Tensor) -> Tensor:
        return _decoded(decode, weights if many else weights[:, :, 0])

    # The search runs in the dtype of `attention`, which the decoder understands; measures are in float64.
    alpha = each.nan_to_num(0.0).to(attention.dtype)
    reference = decoded(alpha[:, None]).detach()
    defined = real.any(-1) & ~exact.isnan().any(-1) & ~reference.isnan().flatten(1).any(-1)
    real_or_first = real.clone()
    real_or_first[~real.any(-1), 0] = True  # a softmax over nothing would be NaN and spoil the shared optimiser

    start = settings.spread * noise
    if settings.from_attention:
        start[:, 0] = alpha.double().clamp_min(1e-6).log() + 0.01 * noise[:, 0]
    logits = start.to(attention.dtype).requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=settings.learning_rate, amsgrad=True)
    best_heads = each.clone()
    best_jsd = torch.zeros(len(exact), dtype=torch.float64, device=exact.device)
    best_tvd = best_jsd.clone()

    def weights_now() -> Tensor:
        return torch.softmax(logits.masked_fill(~real_or_first[:, None, None], -torch.inf), -1)

    def measures(weights: Tensor) -> tuple[Tensor, Tensor]:
        """JSD (B, K) of the weights' mean to α's and TVD (B, K) of their outputs to the reference."""
        shown = (weights.double() * shares[:, None]).sum(2)
        divergence = divergence_of_distributions(shown, exact[:, None].expand_as(shown))
        return divergence, total_variation(decoded(weights), reference)

    def keep(weights: Tensor, divergence: Tensor, moved: Tensor) -> None:
        feasible = torch.where((moved <= tvd) & ~divergence.isnan(), divergence, -torch.inf)
        value, which = feasible.max(-1)
        better = value > best_jsd
        rows, chosen = torch.nonzero(better).flatten(), which[better]
        best_jsd[better] = value[better]
        best_tvd[better] = moved[rows, chosen]
        best_heads[better] = weights[rows, chosen].double()

    with torch.enable_grad():
        for _ in range(settings.steps):
            weights = weights_now()
            divergence, moved = measures(weights)
            keep(weights.detach(), divergence.detach(), moved.detach())
            per_instance = (settings.penalty * torch.relu(moved - tvd) - divergence).sum(-1)
            if settings.diversity:
                per_instance = per_instance - settings.diversity * _pairwise((weights * shares[:, None]).sum(2))
            (logits.grad,) = torch.autograd.grad(per_instance[defined].sum(), [logits])
            logits.grad.nan_to_num_(0.0)
            optimiser.step()
    with torch.no_grad():
        last = weights_now()
        divergence, moved = measures(last)
        keep(last, divergence, moved)
        if settings.pull_back:
            pulled = _pull_back(last, alpha, reference, decoded, tvd)
            keep(pulled, *measures(pulled))

    # The kept point is measured once more, by itself, as a caller would.
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
        last=last if many else last[:, :, 0],
    )


def _settings(preset: str, restarts: int | None, steps: int | None, lr: float | None) -> SearchSettings:
    if preset not in PRESETS:
        raise ValueError(f"preset: expected one of {', '.join(PRESETS)} but got {preset!r}")
    settings = PRESETS[preset]
    if restarts is not None:
        settings = replace(settings, restarts=restarts)
    if steps is not None:
        settings = replace(settings, steps=steps)
    return settings if lr is None else replace(settings, learning_rate=lr)


def _noise(noise: Tensor | None, seeds: Sequence[int] | None, real: Tensor, restarts: int, heads: int) -> Tensor:
    """(B, K, H, T) standard normal noise."""
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
    probabilities = decode(weights)
    if probabilities.shape[:-1] != weights.shape[:2]:
        raise ValueError(
            f"decode: expected probabilities of shape {(*weights.shape[:2], 'C')} but got {tuple(probabilities.shape)}"
        )
    return probabilities.double()


def _pairwise(weights: Tensor) -> Tensor:
    """Mean JSD (B,) over all K² ordered pairs of restarts, each with itself included, as the published code has it."""
    double = weights.double()
    count = weights.shape[1]
    first, second = double[:, :, None], double[:, None]
    shape = (len(weights), count, count, weights.shape[-1])
    return divergence_of_distributions(first.expand(shape), second.expand(shape)).mean((1, 2))


def _pull_back(weights: Tensor, alpha: Tensor, reference: Tensor, decoded: Decode, tvd: float) -> Tensor:
    """Each restart moved towards α as little as bisection finds to make it feasible."""
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
