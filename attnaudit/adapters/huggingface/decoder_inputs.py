"""What the decoder of an encoder–decoder model starts from, which follows from the text.

Shapes: B rows, T tokens of the text, D tokens of the decoder.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.site_discovery import DECODER
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.errors import DataError, ModelError


class Decoding:
    """writes: a language model, whose decoder is given its start token and asked for the next; otherwise a classifier,
    whose decoder reads the text once more, moved by one, and decides at its end."""

    def __init__(self, config: Any, *, writes: bool) -> None:
        self.writes = writes
        self.end_id = getattr(config, "eos_token_id", None)
        start = getattr(config, "decoder_start_token_id", None)
        if start is None:
            raise ModelError(
                "config.json has no decoder_start_token_id, so it is not known what the decoder starts from. Add it."
            )
        self.start_id = int(start)

    def start(self, model: Any, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """((B, D) ids, (B, D) True on tokens) of the decoder."""
        ids, mask = inputs.ids[TEXT], inputs.mask[TEXT]
        if self.writes:
            first = torch.full((len(ids), 1), self.start_id, dtype=ids.dtype, device=ids.device)
            return first, torch.ones_like(first, dtype=torch.bool)
        return self._moved(model, ids), mask

    def _moved(self, model: Any, ids: Tensor) -> Tensor:
        """As the model moves them itself."""
        function = getattr(sys.modules.get(type(model).__module__), "shift_tokens_right", None)
        if function is not None:
            settings = (ids, model.config.pad_token_id, self.start_id)
            moved: Tensor = function(*settings[: len(inspect.signature(function).parameters)])
            return moved
        if hasattr(model, "_shift_right"):
            shifted: Tensor = model._shift_right(ids)
            return shifted
        return torch.cat([torch.full_like(ids[:, :1], self.start_id), ids[:, :-1]], dim=1)

    def arguments(self, inputs: Inputs) -> dict[str, Tensor]:
        """For the model's forward; a classifier makes its own."""
        if not self.writes:
            return {}
        rows, mask = inputs.ids[TEXT], self.mask(inputs)
        given = inputs.ids.get(DECODER)
        if given is None:
            given = torch.full((len(rows), 1), self.start_id, dtype=rows.dtype, device=rows.device)
        arguments = {"decoder_input_ids": given}
        if not bool(mask.all()):
            arguments["decoder_attention_mask"] = mask.long()
        return arguments

    def mask(self, inputs: Inputs) -> Tensor:
        """(B, D) True on tokens, of what the decoder in fact runs on."""
        if not self.writes:
            return inputs.mask[TEXT]
        if DECODER in inputs.mask:
            return inputs.mask[DECODER]
        return torch.ones((len(inputs.ids[TEXT]), 1), dtype=torch.bool, device=inputs.ids[TEXT].device)

    def check(self, inputs: Inputs, names: Sequence[str]) -> None:
        """Raises DataError for a text whose end the classifier would not find."""
        if self.writes or self.end_id is None:
            return
        ends = ((inputs.ids[TEXT] == self.end_id) & inputs.mask[TEXT]).sum(1).tolist()
        usual = ends[0] if ends else 0
        for name, count in zip(names, ends, strict=True):
            if count == 0 or count != usual:
                raise DataError(
                    f"{name}: {count} end-of-text tokens, where {names[0]} has {usual}. The model decides at the last "
                    "one and takes the same number in every row: take the token out of the text, and do not mix rows "
                    "with and without a query."
                )
