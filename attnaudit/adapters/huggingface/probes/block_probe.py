"""Probe whether the attention weights of a model may be computed in blocks of queries."""

from __future__ import annotations

from functools import partial

import torch

from attnaudit.adapters.huggingface.logit_comparison import TOLERANCE, attempt, close, largest_difference
from attnaudit.adapters.huggingface.passes.layer_states import LayerStates
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.huggingface.texts.input_builder import single_row


def computes_blocks_exactly(runner: Runner) -> bool:
    """Return whether weights computed in blocks of queries equal weights computed all at once, at every site.

    The comparison runs on texts with and without padding. Each text is divided into at least two blocks.
    """
    if not runner.kernel.calls_attention_function:
        return False
    sites = runner.layout.sites
    keys = [site.key for site in sites]
    batch = runner.builder.synthetic()
    with torch.no_grad():
        for inputs in (batch, single_row(batch, 1)):
            whole = runner.run(inputs)
            # An attention function that cannot be called for some of the queries may fail with any exception.
            trace = attempt(partial(runner.run, inputs, sites=keys, blocks=keys))
            if trace is None:
                return False
            assert isinstance(trace.cache, LayerStates)
            if not close(trace.logits, whole.logits):
                return False
            for site in sites:
                expected, allowed = whole.attention[site.key], whole.allowed[site.key]
                queries = expected.shape[2]
                size = max(1, queries // 2)
                for first in range(0, queries, size):
                    block = slice(first, first + size)
                    _, found, permitted = trace.cache.calls[site.key].rows(block.start, block.stop)
                    if not largest_difference(found, expected[:, :, block]) <= TOLERANCE:
                        return False
                    if not torch.equal(permitted, allowed.expand(-1, -1, queries, -1)[:, :, block]):
                        return False
    return True
