"""Random samples of the units of instances, for measures that would otherwise run the model once per unit.

The sample of an instance depends only on the seed of the audit, the id of the instance and the number of its units.
Samples of different instances are independent. A larger sample of an instance contains every smaller one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.measures import AttentionView
from attnaudit.seeding import keyed_generator


def sampled_units(view: AttentionView, size: int) -> Tensor:
    """Draw units at random, without replacement.

    Args:
        view: B instances.
        size: The largest number of units of an instance that are drawn; 0 for all of them.

    Returns:
        (B, T) mask, True at the drawn units. It contains all units of an instance that has at most `size` units.
    """
    if not size:
        return view.real
    mask = view.real.clone()
    for row in (view.lengths > size).nonzero()[:, 0].tolist():
        units = view.real[row].nonzero()[:, 0]
        drawn = keyed_generator(view.seed, "sampled units", view.instances[row].id).permutation(len(units))[:size]
        mask[row] = False
        mask[row, units[torch.from_numpy(drawn).to(units.device)]] = True
    return mask
