"""Functions of class logits: probabilities, centred logits, and their rounding errors.

All results are float64. Differences between two passes are taken between logits, because probabilities round to 0 and 1
if a prediction is confident.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.precision import EPSILONS, FLOAT32


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
