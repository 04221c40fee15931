"""Functions of class logits: probabilities, centred logits, and their rounding errors.

All results are float64. Differences between two passes are taken between logits, because probabilities round to 0 and 1
if a prediction is confident.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnaudit.precision import EPSILONS, FLOAT32, logit_rounding


def probabilities(logits: Tensor) -> Tensor:
    """Convert logits to class probabilities in float64.

    Args:
        logits: (..., C) logits. If C = 1, the sigmoid of the logit is the probability of class 1.

    Returns:
        (..., max(C, 2)) probabilities.
    """
    wide = logits.double()
    if wide.shape[-1] == 1:
        return torch.cat([torch.sigmoid(-wide), torch.sigmoid(wide)], dim=-1)
    return torch.softmax(wide, dim=-1)


def centred_logits(logits: Tensor, open_classes: Tensor | None = None) -> Tensor:
    """Subtract the mean over the classes from logits. This does not change the probabilities.

    Args:
        logits: (..., C) logits. If C = 1, class 1 has this logit (under a sigmoid), and class 0 has the logit 0.
        open_classes: (..., C) True for the classes that are possible answers. The others get the logit 0, and are left
            out of the mean. None if all are possible.

    Returns:
        (..., max(C, 2)) logits, float64.
    """
    wide = logits.double()
    if wide.shape[-1] == 1:
        return torch.cat([-wide / 2, wide / 2], dim=-1)
    if open_classes is None:
        return wide - wide.mean(-1, keepdim=True)
    number = open_classes.sum(-1, keepdim=True).clamp_min(1)
    mean = torch.where(open_classes, wide, 0.0).sum(-1, keepdim=True) / number
    return torch.where(open_classes, wide - mean, 0.0)


def without_rounding(logits: Tensor, clean: Tensor) -> Tensor:
    """Replace logits that differ from those of the clean pass by at most the rounding error of float32.

    If a class has a very large bias, its logit varies by rounding errors only. Centring would spread them over all
    classes.

    Args:
        logits: (..., C) logits.
        clean: (..., C) logits of the clean pass.
    """
    return torch.where((logits - clean).abs() <= EPSILONS[FLOAT32] * clean.abs(), clean.expand_as(logits), logits)


def log_probabilities(logits: Tensor) -> Tensor:
    """Return the logarithms of `probabilities`, which do not round to 0 or to minus infinity."""
    wide = logits.double()
    if wide.shape[-1] == 1:
        return torch.nn.functional.logsigmoid(torch.cat([-wide, wide], dim=-1))
    return torch.log_softmax(wide, dim=-1)


def mean_over_draws(logits: Sequence[Tensor]) -> Tensor:
    """Return (..., C) logits whose probabilities are the mean probabilities of several passes."""
    if len(logits) == 1:
        return logits[0]
    mean = torch.stack([log_probabilities(one) for one in logits]).logsumexp(0) - math.log(len(logits))
    return mean[..., 1:] - mean[..., :1] if logits[0].shape[-1] == 1 else mean


def log_odds(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return the logarithm of p / (1 - p), where p is the probability of a class. It does not round if p rounds to 1.

    Args:
        logits: (..., C) logits.
        chosen: (...) index of the class.
    """
    wide = logits.double()
    if wide.shape[-1] == 1:
        return torch.where(chosen == 1, wide[..., 0], -wide[..., 0])
    index = chosen[..., None].expand(*wide.shape[:-1], 1)
    others = wide.masked_fill(torch.zeros_like(wide, dtype=torch.bool).scatter(-1, index, True), -torch.inf)
    return wide.gather(-1, index)[..., 0] - others.logsumexp(-1)


def sizes_of_logits(*logits: Tensor) -> Tensor:
    """Return the (..., C) largest absolute values of several logits. NaN counts as 0.

    The largest values over the variants of an instance show how large the terms are that add up to a logit near 0.
    """
    largest = logits[0].abs().nan_to_num(nan=0.0)
    for other in logits[1:]:
        largest = largest.maximum(other.abs().nan_to_num(nan=0.0))
    return largest


def rounding_of_logits(sizes: Tensor, precision: str, open_classes: Tensor | None = None) -> Tensor:
    """Return the (..., C) rounding errors of logits.

    The error is relative to the size of the logit, or to the median size of the logits if that is larger.

    Args:
        sizes: (..., C) sizes of the logits (see `sizes_of_logits`).
        precision: The floating-point type in which the model computes (see `Capabilities.precision`).
        open_classes: (..., C) True for the classes that are possible answers. The others do not count for the median.
            None if all are.
    """
    number = torch.full_like(sizes[..., :1], sizes.shape[-1], dtype=torch.long)
    if open_classes is not None:
        sizes = sizes.masked_fill(~open_classes, -1.0)
        number = open_classes.sum(-1, keepdim=True).clamp_min(1)
    ordered = sizes.sort(-1, descending=True).values
    typical = ordered.gather(-1, ((number - 1) // 2).expand(*ordered.shape[:-1], 1))
    return logit_rounding(precision) / 2 * sizes.maximum(typical)


def equal_within_rounding(
    first: Tensor, second: Tensor, sizes: Tensor, precision: str, open_classes: Tensor | None = None
) -> Tensor:
    """Return a (...) mask, True where two outputs differ by at most the rounding error of the logits.

    The outputs are equal if adding one number to all logits of the first makes each of them equal to that of the
    second, up to the rounding error of its class (see `rounding_of_logits`). So neither the scale of the logits nor a
    large bias of a class matters.

    Args:
        first: (..., C) logits.
        second: (..., C) logits.
        sizes: (..., C) sizes of the logits (see `sizes_of_logits`).
        precision: The floating-point type in which the model computes (see `Capabilities.precision`).
        open_classes: (..., C) True for the classes that are possible answers. The others are ignored. None if all are.
    """
    change = first - second
    rounding = rounding_of_logits(sizes, precision, open_classes)
    if change.shape[-1] == 1:
        return change.abs()[..., 0] <= 2 * rounding[..., 0]
    lowest, highest = change - rounding, change + rounding
    if open_classes is not None:
        lowest, highest = lowest.masked_fill(~open_classes, -torch.inf), highest.masked_fill(~open_classes, torch.inf)
    return lowest.amax(-1) <= highest.amin(-1)
