"""Run the same texts again, to find models whose results change from call to call."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.logit_comparison import close, largest_difference
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.errors import AdapterError

#: The largest number of runs, and the seconds after which no further run begins.
RUNS, SECONDS = 50, 10.0


def require_same_results(runner: Runner) -> None:
    """Run the same synthetic texts many times, and require that the logits stay the same.

    Some models change their results only at some calls. Other tests then fail at a place that has nothing to do with
    the cause, so call this function before their errors are shown.

    Raises:
        AdapterError: The logits of two runs differ.
    """
    inputs, began = runner.builder.synthetic(), time.monotonic()
    with torch.no_grad():
        first = runner.logits(inputs)
        if not bool(first.isfinite().all()):  # NaN differs from itself
            return
        for _ in range(RUNS):
            refuse_different_results(runner.name, first, runner.logits(inputs))
            if time.monotonic() - began > SECONDS:
                return


def refuse_different_results(name: str, first: Tensor, again: Tensor) -> None:
    """Require that two runs of the same texts have the same logits.

    Args:
        name: The class name of the model.
        first: (B, C) logits of one run.
        again: (B, C) logits of the other run.

    Raises:
        AdapterError: The logits differ.
    """
    if not close(again, first):
        raise AdapterError(
            f"{name}: two runs of the same texts in evaluation mode differ by {largest_difference(again, first):.2g} "
            "in the logits. Look for random numbers in forward(), such as dropout that eval() does not switch off: "
            "create nn.Dropout in __init__(), and pass training=self.training to nn.functional.dropout(). Also look "
            "for values that forward() changes, such as a counter of its calls."
        )
