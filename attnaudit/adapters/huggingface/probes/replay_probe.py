"""Probe which shortcuts of `HuggingFaceAdapter.replay` give the same logits as a full pass.

Shapes: B rows, T tokens, V variants, C classes, H heads, K keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.half_precision import in_float32
from attnaudit.adapters.huggingface.logit_comparison import gives
from attnaudit.adapters.huggingface.outputs.read_tokens import ReadTokens, read_positions
from attnaudit.adapters.huggingface.passes.query_replay import (
    replay_after_position,
    replay_from_layer,
    replay_full,
    replay_one_position,
)
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.protocol import Inputs, Site, Trace

#: Number of different weights per row with which the shortcuts are tested.
VARIANTS = 2
#: A function of `query_replay` that starts from a trace.
Shortcut = Callable[[Runner, Inputs, Trace, Site, Tensor, Tensor], Tensor]


class ReplayForms:
    """Which shortcuts of `HuggingFaceAdapter.replay` give the same logits as a full pass, at one attention site.

    A model that runs without padding has no shortcuts, because its traces do not contain the states of the layers. A
    shortcut is probed when it is first asked for. Probing runs the model on synthetic tokens, in float32.

    Args:
        runner: Runs the model.
        site: The site.
        read_tokens: The tokens that the logits are read from.
    """

    def __init__(self, runner: Runner, site: Site, read_tokens: ReadTokens) -> None:
        self.runner = runner
        self.site = site
        self.read_tokens = read_tokens
        self._call = runner.layout.calls[runner.layout.call_index(site)]
        self._in_last_layer = self._call.layer_call == len(runner.layout.layers) - 1

    @cached_property
    def one_position(self) -> bool:
        """Whether it is enough to run the last layer alone, at the one position that the logits are read from."""
        return (
            not self.runner.builder.unpadded
            and self._in_last_layer
            and self._call is self.runner.layout.calls[-1]
            and self.site.query == self.runner.builder.output_stream
            and self.read_tokens in ("first", "last")
            and self.runner.kernel.calls_attention_function
            and self._gives(replay_one_position, self.read_tokens)
        )

    @cached_property
    def after_position(self) -> bool:
        """Whether it is enough to run the site's layer at the position of the query, and all later layers at all
        positions."""
        return (
            not self.runner.builder.unpadded
            and self._call.layer_call >= 0
            and not self._in_last_layer
            and not self._call.time_first
            and self.runner.builder.decoder is None
            and self.runner.kernel.calls_attention_function
            and self._gives(replay_after_position, "first")
            and self._gives(replay_after_position, "last")
        )

    @cached_property
    def from_layer(self) -> bool:
        """Whether it is enough to run the site's layer and all later layers, at all positions."""
        return (
            not self.runner.builder.unpadded
            and self._call.layer_call >= 0
            and self._gives(replay_from_layer, self.read_tokens)
        )

    def _gives(self, shortcut: Shortcut, position: ReadTokens) -> bool:
        """Return whether a shortcut gives the logits of `replay_full`.

        Args:
            shortcut: The function to test.
            position: The token of each text whose weights are replaced: "last", otherwise the first one.
        """
        runner, site, builder = self.runner, self.site, self.runner.builder
        inputs = builder.synthetic()
        of_output = site.query == builder.output_stream
        queries = read_positions(builder.output_mask(inputs) if of_output else inputs.mask[str(site.query)], position)
        with torch.no_grad(), in_float32(runner.model):
            trace = runner.run(inputs, hidden=True)
            live = trace.attention[site.key]
            noise = torch.rand((VARIANTS, *live.shape), generator=torch.Generator().manual_seed(1)).to(live)
            changed = (live * 0.5 + noise) * trace.allowed[site.key]
            changed = changed / changed.sum(-1, keepdim=True).clamp_min(1e-9) * live.sum(-1, keepdim=True)
            index = queries[None, :, None, None, None].expand(VARIANTS, -1, live.shape[1], 1, live.shape[3])
            weights = changed.gather(3, index)[:, :, :, 0].transpose(0, 1).contiguous()
            expected = replay_full(runner, inputs, site, queries, weights)
            return gives(lambda: shortcut(runner, inputs, trace, site, queries, weights), expected)
