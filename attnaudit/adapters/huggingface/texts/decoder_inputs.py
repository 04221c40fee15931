"""The inputs of the decoder of an encoder-decoder model, computed from the text.

Shapes: B rows, T tokens of the text, D tokens of the decoder.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.attention.layout import DECODER
from attnaudit.adapters.huggingface.outputs.target_heads import WRITTEN
from attnaudit.adapters.huggingface.wrapped_models import backbone_of
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.errors import DataError, ModelError


class DecoderInputs:
    """Builds the inputs of the decoder.

    The decoder of a language model reads its start token and predicts the next token. If the tokenizer puts special
    tokens before the texts that the decoder writes, such as <s>, the decoder reads them after the start token. If the
    target is a string, it also reads the tokens of the string except the last one. The decoder of a classifier reads
    the text again, shifted by one token, and classifies it at the last end-of-text token.

    Attributes:
        generates: Whether the model is a language model.
        start_id: Id of the decoder's start token.
        end_id: Id of the end-of-text token; None if the model has none.
        first_ids: Ids of the tokens that the decoder of a language model reads before it writes: the start token, and
            the special tokens after it.
    """

    def __init__(self, config: Any, *, generates: bool, before_written: Sequence[int] = ()) -> None:
        self.generates = generates
        self.end_id = getattr(config, "eos_token_id", None)
        start = getattr(config, "decoder_start_token_id", None)
        if start is None:
            raise ModelError("config.json has no decoder_start_token_id, the id of the decoder's first token. Add it.")
        self.start_id = int(start)
        self.first_ids = (self.start_id, *before_written)

    def build(self, model: Any, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return the decoder's ids (B, D) and its mask (B, D), True on tokens."""
        ids, mask = inputs.ids[TEXT], inputs.mask[TEXT]
        if WRITTEN in inputs.extra:
            written, first = inputs.extra[WRITTEN][:, 0], self._first(ids)
            after = (written[:, first.shape[1] - 1 : -1] - 1).clamp_min(0)
            reads = written > 0
            reads[:, : first.shape[1]] = True
            return torch.cat([first, after], dim=1), reads
        if self.generates:
            first = self._first(ids)
            return first, torch.ones_like(first, dtype=torch.bool)
        return self._shifted(model, ids), mask

    def _first(self, ids: Tensor) -> Tensor:
        """Return `first_ids` for every row of the text (B, T)."""
        return torch.tensor(self.first_ids, dtype=ids.dtype, device=ids.device).expand(len(ids), -1)

    def _shifted(self, model: Any, ids: Tensor) -> Tensor:
        """Shift the ids to the right by one token, with the model's own function if it has one."""
        model = backbone_of(model)
        function = getattr(sys.modules.get(type(model).__module__), "shift_tokens_right", None)
        if function is not None:
            settings = (ids, model.config.pad_token_id, self.start_id)
            shifted: Tensor = function(*settings[: len(inspect.signature(function).parameters)])
            return shifted
        if hasattr(model, "_shift_right"):
            moved: Tensor = model._shift_right(ids)
            return moved
        return torch.cat([torch.full_like(ids[:, :1], self.start_id), ids[:, :-1]], dim=1)

    def arguments(self, inputs: Inputs) -> dict[str, Tensor]:
        """Return the forward() arguments for the decoder.

        For a classifier, return no arguments, because the model computes the decoder's tokens itself.
        """
        if not self.generates:
            return {}
        text_ids, mask = inputs.ids[TEXT], self.mask(inputs)
        ids = inputs.ids.get(DECODER)
        arguments = {"decoder_input_ids": self._first(text_ids) if ids is None else ids}
        if not bool(mask.all()):
            arguments["decoder_attention_mask"] = mask.long()
        return arguments

    def mask(self, inputs: Inputs) -> Tensor:
        """Return the mask (B, D) of the decoder, True on tokens. For a classifier, it is the mask of the text."""
        if not self.generates:
            return inputs.mask[TEXT]
        if DECODER in inputs.mask:
            return inputs.mask[DECODER]
        return torch.ones_like(self._first(inputs.ids[TEXT]), dtype=torch.bool)

    def require_end_tokens(self, inputs: Inputs, names: Sequence[str]) -> None:
        """Check that all rows of a batch have the same number of end-of-text tokens, and at least one.

        Only classifiers with an end-of-text token require this. For other models, nothing is checked.

        Args:
            inputs: The encoded texts.
            names: One name per row, for messages.

        Raises:
            DataError: A row has no end-of-text token, or their number differs from that of the first row.
        """
        if self.generates or self.end_id is None:
            return
        counts = ((inputs.ids[TEXT] == self.end_id) & inputs.mask[TEXT]).sum(1).tolist()
        expected = counts[0] if counts else 0
        for name, count in zip(names, counts, strict=True):
            if count == 0 or count != expected:
                raise DataError(
                    f"{name}: the encoded text has {count} end-of-text tokens, and that of {names[0]} has {expected}. "
                    "The model reads its prediction from the last of these tokens, so every row must have at least "
                    "one of them, and all rows must have equally many. Remove the token from the texts. Give all "
                    "rows a query, or none."
                )
