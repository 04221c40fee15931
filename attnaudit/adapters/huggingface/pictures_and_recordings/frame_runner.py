"""Forward passes of a Transformers model that reads waveforms, with erased, deleted or given frames.

Shapes: B rows, T frames, C classes, d features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.attention.attention_kernels import Kernel
from attnaudit.adapters.huggingface.attention.fused_attention import FusedObserver
from attnaudit.adapters.huggingface.attention.recorder import Observer
from attnaudit.adapters.huggingface.attention.site_discovery import discover_layout
from attnaudit.adapters.huggingface.outputs.output_heads import Head
from attnaudit.adapters.huggingface.passes.runner import Runner, class_logits
from attnaudit.adapters.huggingface.pictures_and_recordings.frame_inputs import FrameInputBuilder
from attnaudit.adapters.protocol import TEXT, Inputs


@dataclass(frozen=True, kw_only=True)
class FrameRunner(Runner):
    """Runs one model that reads waveforms.

    Attributes:
        builder: Builds the model's inputs.
    """

    builder: FrameInputBuilder

    def logits(
        self, inputs: Inputs, observer: Observer | None = None, embeddings: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        mask = inputs.mask[TEXT]
        if observer is None and self.fuses:
            observer = FusedObserver(skips_masks=self.selects_queries)
        given = self.embed(inputs) if embeddings is None else embeddings[TEXT]

        def run() -> Tensor:
            arguments = self.builder.arguments(inputs)
            return class_logits(self.model, self.head, self.kernel, arguments, mask, observer, inputs.extra)

        with self.builder.modules.given(given):
            return self.shortened(mask, observer, run)

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the embeddings (B, T, d) of the frames."""
        return self.builder.embed(inputs)

    def logits_of_model(self, model: Any, inputs: Inputs) -> Tensor:
        """Run a model on the waveforms themselves, one at a time and without padding."""
        rows = []
        for row, waveform in enumerate(self.builder.waveforms(inputs)):
            arguments = {self.builder.encoder.argument: waveform[None]}
            rows.append(self.head.logits(model, arguments, inputs.mask[TEXT][row : row + 1], {}))
        return torch.cat(rows)


def prepare_frame_runner(head: Head, kernel: Kernel, builder: FrameInputBuilder) -> FrameRunner:
    """Find the layout of a model by running it on random recordings, and return a runner for it.

    Raises:
        AdapterError: Some attention of the model cannot be observed.
    """
    inputs = builder.synthetic()

    def forward() -> Tensor:
        with builder.modules.given(builder.embed(inputs)):
            return class_logits(builder.model, head, kernel, builder.arguments(inputs), builder.output_mask(inputs))

    layout = discover_layout(
        builder.model, inputs.ids[TEXT], forward, encoder_decoder=False, embedding=builder.modules.projection
    )
    return FrameRunner(head=head, kernel=kernel, builder=builder, layout=layout)
