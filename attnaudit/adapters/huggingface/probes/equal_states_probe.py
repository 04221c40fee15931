"""Probe whether linear layers of a model may run only on the distinct states."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnaudit.adapters.huggingface.logit_comparison import gives
from attnaudit.adapters.huggingface.passes.equal_states import FirstLinears, find_first_linears
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.padding import repeated


def first_linears_of_equal_states(runner: Runner) -> FirstLinears | None:
    """Find the linear layers that need to run only on the distinct states.

    Returns:
        The linear layers. None if running them on only these states changes the logits.
    """
    batch = repeated(runner.builder.synthetic(), 2)
    with torch.no_grad():
        first_linears = find_first_linears(runner.layout, lambda: runner.logits(batch))
        if first_linears is None:
            return None
        once = replace(runner, first_linears=first_linears)
        return first_linears if gives(lambda: once.logits(batch), runner.logits(batch)) else None
