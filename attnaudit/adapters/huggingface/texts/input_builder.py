"""Build padded batches from instances, and forward() arguments from batches, for Transformers models.

Shapes: B rows, T tokens of the text, V variants, d features.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnaudit.adapters.dispatched_models import input_device
from attnaudit.adapters.huggingface.attention.layout import DECODER
from attnaudit.adapters.huggingface.outputs.output_heads import Head
from attnaudit.adapters.huggingface.outputs.target_heads import MARKS, WRITTEN
from attnaudit.adapters.huggingface.texts.configuration import configuration_text
from attnaudit.adapters.huggingface.texts.decoder_inputs import DecoderInputs
from attnaudit.adapters.huggingface.texts.target_inputs import CANDIDATES, TargetInputs
from attnaudit.adapters.huggingface.texts.tokenization import TextEncoder
from attnaudit.adapters.huggingface.wrapped_models import CustomModel
from attnaudit.adapters.padding import (
    delete_positions,
    keep_positions,
    pad_flat,
    select_rows,
    substitute_positions,
    without_shared_padding,
)
from attnaudit.adapters.protocol import TARGET_QUERIES, TEXT, Inputs
from attnaudit.errors import AdapterError, DataError, ModelError
from attnaudit.instances import Instance

#: Key of the token types (B, T) in `Inputs.extra`. A token type is 0 or 1: the text of a pair that a token belongs to.
TOKEN_TYPES = "token_types"
#: Lengths of the synthetic texts in words. The first text must be the longest, so that its row has no padding. The
#: number of texts must differ from the number of tokens, so that axes of rows and tokens cannot be confused.
SYNTHETIC_LENGTHS = (9, 4, 6)
#: The entries of `Inputs.extra` with one value per token of the text.
_PER_TOKEN = (TOKEN_TYPES, MARKS, CANDIDATES, TARGET_QUERIES)


@dataclass(frozen=True, kw_only=True)
class InputBuilder:
    """Builds the inputs of one model.

    Attributes:
        model: The Transformers model.
        text_encoder: Encodes texts with the model's tokenizer.
        pad_id: Id that fills padding.
        accepted_arguments: Names of the arguments that the model's forward() takes.
        accepts_others: Whether forward() also takes any other arguments.
        decoder: Builds the decoder's tokens; None for a model without a decoder.
        target: Marks the target of each row; None if the target is the same for every row.
        position_offset: Number of position ids that the model reserves for padding.
        first_position: Position id of a row's first token if the batch is padded on the left.
        pads_left: Whether batches are padded on the left. A few models need this, because they always read their
            logits from the last position.
        unpadded: Whether the model runs only on rows of equal length, without padding (see `UnpaddedRunner`). The rows
            of a batch are still padded on the right.
    """

    model: Any
    text_encoder: TextEncoder
    pad_id: int
    accepted_arguments: frozenset[str]
    accepts_others: bool
    decoder: DecoderInputs | None
    position_offset: int
    first_position: int
    pads_left: bool = False
    target: TargetInputs | None = None
    unpadded: bool = False

    @property
    def tokenizer(self) -> Any:
        return self.text_encoder.tokenizer

    @property
    def device(self) -> torch.device:
        return input_device(self.model)

    @property
    def output_stream(self) -> str:
        """The stream that the logits are read from."""
        return TEXT if self.decoder is None else DECODER

    @property
    def deletes(self) -> bool:
        """Whether units can be deleted."""
        return True

    @property
    def pads(self) -> bool:
        """Whether inputs can have different lengths, so that batches need padding."""
        return True

    @property
    def masks(self) -> bool:
        """Whether units can be replaced by the mask token, or by something else that serves as a mask."""
        return self.tokenizer.mask_token_id is not None

    @property
    def reads(self) -> str:
        """What the model reads instead of texts, such as "pictures"; "" for texts."""
        return ""

    @property
    def encodes_on_cpu(self) -> bool:
        """Whether texts can be encoded without the model, which may be needed for a decoder or to find the target."""
        return self.decoder is None and self.target is None and not self.reads

    @property
    def draws(self) -> int:
        """How many random replacements of an erased unit are averaged (see `Capabilities.draws`)."""
        return 1

    @property
    def erasure(self) -> str:
        """How units are erased, for reports (see `Capabilities.erasure`)."""
        return ""

    @property
    def names(self) -> tuple[str, str]:
        """What a unit and a row are, in the singular (see `Capabilities.unit_name` and `row_name`)."""
        return ("token", "text")

    def configuration(self, head: Head) -> str:
        """Return, as JSON, everything that determines the logits, apart from the parameters."""
        return configuration_text(self.model.config, self.text_encoder, head)

    # -- batches --------------------------------------------------------------------------------------------------

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        """Encode and pad instances (see `ModelAdapter.collate`)."""
        return self._collated(instances, self.device)

    def encode_on_cpu(self, instances: Sequence[Instance]) -> Inputs:
        """Encode and pad instances on the CPU (see `CpuEncodingAdapter.encode_on_cpu`)."""
        return self._collated(instances, torch.device("cpu"))

    def _collated(self, instances: Sequence[Instance], device: torch.device) -> Inputs:
        """Encode and pad instances on a device."""
        for one in instances:
            if one.file is not None:
                raise DataError(
                    f"{one.where or one.id}: the row names a file, but the model reads texts. Write the text itself "
                    "in the column 'text'."
                )
        texts = self.text_encoder.encode(instances)
        fields: dict[str, tuple[NDArray[Any], int | bool]] = {
            "ids": (texts.ids, self.pad_id),
            "words": (texts.words, -1),
            "special": (texts.special, False),
        }
        if self.text_encoder.takes_passages:
            fields["passages"] = (texts.passages, -1)
        if "token_type_ids" in self.accepted_arguments and texts.types.any():
            fields[TOKEN_TYPES] = (texts.types, 0)
        padded, mask = pad_flat(texts.counts, list(fields.values()), device=device)
        found = dict(zip(fields, padded, strict=True))
        extra = {"truncated": torch.from_numpy(texts.truncated).to(device)}
        extra |= {name: found[name] for name in found if name == TOKEN_TYPES}
        inputs = Inputs(
            ids={TEXT: found["ids"]},
            mask={TEXT: mask},
            special={TEXT: found["special"]},
            tokens={TEXT: texts.tokens},
            words={TEXT: found["words"]},
            passages={TEXT: found["passages"]} if "passages" in found else {},
            extra=extra,
        )
        if self.target is not None:
            inputs = replace(
                inputs, extra={**extra, **self.target.entries(self.text_encoder, texts, instances, device)}
            )
        if self.decoder is not None:
            self.decoder.require_end_tokens(inputs, [one.where or one.id for one in instances])
        inputs = self._padded(self.with_decoder(inputs))
        if self.target is None:
            return inputs
        if self.unpadded:
            inputs = self._marked_alone(self.target, inputs)
        return self.target.located(self.model, self.arguments(inputs), inputs)

    def _marked_alone(self, target: TargetInputs, inputs: Inputs) -> Inputs:
        """Return the batch with marks for all rows. The model finds the target of each row alone, without padding."""
        if MARKS not in inputs.extra:
            return inputs
        marks = inputs.extra[MARKS].clone()
        for row in range(len(marks)):
            alone = self.select_rows(inputs, [row])
            found = target.located(self.model, self.arguments(alone), alone).extra[MARKS]
            marks[row, : found.shape[1]] = found[0]
        return replace(inputs, extra={**inputs.extra, MARKS: marks})

    def select_rows(self, inputs: Inputs, rows: Sequence[int]) -> Inputs:
        """Select rows of a batch (see `RowSelectingAdapter.select_rows`)."""
        selected = select_rows(inputs, rows, per_token=_PER_TOKEN, left=(TEXT,) if self.pads_left else ())
        extra = dict(selected.extra)
        if TOKEN_TYPES in extra and not bool(extra[TOKEN_TYPES].any()):
            del extra[TOKEN_TYPES]
        if WRITTEN in extra:
            extra[WRITTEN] = extra[WRITTEN][:, :, : selected.ids[DECODER].shape[1]]
        return replace(selected, extra=extra)

    def synthetic(self) -> Inputs:
        """Build a batch of random tokens. Every call gives the same tokens.

        The rows have different lengths. Special tokens are where the tokenizer adds them.

        Raises:
            ModelError: The tokenizer encodes nine words as fewer than four tokens, or has only special tokens.
        """
        texts = [" ".join("abcdefghi"[:length]) for length in SYNTHETIC_LENGTHS]
        instances = [Instance(id=f"synthetic {len(text)}", text=text) for text in texts]
        if self.text_encoder.template is not None:
            instances = [replace(one, query="") for one in instances]
        if self.text_encoder.takes_passages:
            instances = [replace(one, text="a", passages=(one.text[:3], one.text[4:])) for one in instances]
        if self.target is not None:
            instances = [self.target.example(one, self.text_encoder) for one in instances]
        inputs = self.collate(instances)
        ids, real = inputs.ids[TEXT], inputs.real()
        if int(real[0].sum()) < 4:
            raise ModelError(
                f"The tokenizer encodes a test text of nine words as {int(real[0].sum())} tokens; expected at least 4. "
                "Save the model's own tokenizer to the folder."
            )
        reserved = set(self.tokenizer.all_special_ids) | {self.pad_id}
        size = min(int(self.model.config.get_text_config().vocab_size), len(self.tokenizer))
        candidates = torch.tensor([i for i in range(size) if i not in reserved])
        if not len(candidates):
            raise ModelError(
                "The vocabulary of the tokenizer contains only special tokens. Save the model's own tokenizer to the "
                "folder."
            )
        picked = torch.randint(len(candidates), ids.shape, generator=torch.Generator().manual_seed(0))
        random_ids = torch.where(real, candidates[picked].to(ids), ids)
        return self.with_decoder(replace(inputs, ids={**inputs.ids, TEXT: random_ids}))

    def perturbed(self, inputs: Inputs, positions: Collection[int]) -> Inputs:
        """Return a copy of a batch of one row, with other tokens at the given positions of the text."""
        ids = inputs.ids[TEXT].clone()
        reserved = {*self.tokenizer.all_special_ids, self.pad_id, *ids[0].tolist()}
        size = min(int(self.model.config.get_text_config().vocab_size), len(self.tokenizer))
        others = [token for token in range(size) if token not in reserved]
        for position in positions:
            ids[0, position] = others[position % len(others)]
        return self.with_decoder(replace(inputs, ids={**inputs.ids, TEXT: ids}))

    def with_decoder(self, inputs: Inputs) -> Inputs:
        """Return the batch with the decoder's tokens, which are computed from the text.

        For a model without a decoder, return the batch unchanged.
        """
        if self.decoder is None:
            return inputs
        ids, mask = self.decoder.build(self.model, inputs)
        tokens = dict(inputs.tokens)
        if tokens:
            tokens[DECODER] = [
                self.text_encoder.readable(row[real].tolist()) for row, real in zip(ids, mask, strict=True)
            ]
        return replace(
            inputs,
            ids={**inputs.ids, DECODER: ids},
            mask={**inputs.mask, DECODER: mask},
            special={**inputs.special, DECODER: mask.clone()},
            tokens=tokens,
        )

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        """Delete single tokens of the text (see `ModelAdapter.delete`)."""
        _require_text(stream)
        variants = delete_positions(inputs, stream, drop, pad_id=self.pad_id, per_token=_PER_TOKEN)
        return self._padded(self.with_decoder(variants))

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        """Keep only some tokens of the text (see `ModelAdapter.keep`)."""
        _require_text(stream)
        variants = keep_positions(inputs, stream, rows, keep, pad_id=self.pad_id, per_token=_PER_TOKEN)
        return self._padded(self.with_decoder(variants))

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        """Replace tokens of the text by the mask token (see `ModelAdapter.substitute`).

        The result has only as much padding as its longest row needs.
        """
        _require_text(stream)
        mask_id = self.tokenizer.mask_token_id
        if mask_id is None:
            raise AdapterError("substitute: the model's tokenizer has no mask token. Erase tokens by deletion instead.")
        variants = substitute_positions(inputs, stream, rows, replaced, mask_id=mask_id)
        return self.with_decoder(without_shared_padding(variants, stream, per_token=_PER_TOKEN))

    def substitute_draw(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, draw: int) -> Inputs:
        """Replace tokens by those of a draw (see `DrawingAdapter`). Models that read texts draw nothing."""
        return self.substitute(inputs, stream, rows, replaced)

    def single_tokens(self, inputs: Inputs, positions: Tensor, times: int) -> Inputs:
        """Return a batch that has only one token of each row, at the position given in `positions` (B,).

        Each row is repeated `times` times, with its copies next to each other.
        """

        def select(values: Tensor) -> Tensor:
            width = values.shape[1]
            return values.gather(1, positions.clamp(max=width - 1)[:, None]).repeat_interleave(times, dim=0)

        ids = {name: select(value) for name, value in inputs.ids.items()}
        mask = {name: torch.ones_like(value, dtype=torch.bool) for name, value in ids.items()}
        extra = {TOKEN_TYPES: select(self._token_types(inputs))} if TOKEN_TYPES in inputs.extra else {}
        return Inputs(ids=ids, mask=mask, special=mask, extra=extra)

    def _padded(self, inputs: Inputs) -> Inputs:
        return padded_left(inputs) if self.pads_left else inputs

    # -- arguments of forward() -----------------------------------------------------------------------------------

    def token_ids(self, inputs: Inputs) -> Tensor:
        """Return the ids (B, T) of the text, with `pad_id` on padding.

        Some models search for `pad_id` to find the last token of a row.
        """
        return inputs.ids[TEXT].masked_fill(~inputs.mask[TEXT], self.pad_id)

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """Return the arguments of the model's forward() for a batch."""
        mask = inputs.mask[TEXT]
        arguments: dict[str, Any] = {
            "input_ids": self.token_ids(inputs),
            "attention_mask": mask.long(),
            "return_dict": True,
        }
        if "use_cache" in self.accepted_arguments:
            arguments["use_cache"] = False
        if TOKEN_TYPES in inputs.extra:
            arguments["token_type_ids"] = self._token_types(inputs)
        elif isinstance(self.model, CustomModel) and self.model.read_logits is None:
            arguments["token_type_ids"] = torch.zeros_like(arguments["input_ids"])  # forward() may require them
        if "position_ids" in self.accepted_arguments and not bool(mask[:, 0].all()):
            # With padding on the left, positions must be counted from each row's first token.
            positions = mask.long().cumsum(1) - 1 + self.first_position
            arguments["position_ids"] = positions.masked_fill(~mask, max(0, self.first_position - 1))
        if self.decoder is not None:
            arguments.update(self.decoder.arguments(inputs))
        return {
            name: value for name, value in arguments.items() if self.accepts_others or name in self.accepted_arguments
        }

    def token_masks(self, inputs: Inputs) -> dict[str, Tensor]:
        """Return a dict: stream -> (B, T) mask, True on the tokens that the model runs on."""
        masks = {TEXT: inputs.mask[TEXT]}
        if self.decoder is not None:
            masks[DECODER] = self.decoder.mask(inputs)
        return masks

    def output_mask(self, inputs: Inputs) -> Tensor:
        """Return the mask (B, T) of the stream that the logits are read from."""
        return self.token_masks(inputs)[self.output_stream]

    def pooled_tokens(self, inputs: Inputs) -> Tensor:
        """Return a mask (B, T) for heads that pool all tokens. It is True on the tokens that such a head reads."""
        return self.output_mask(inputs)

    def _token_types(self, inputs: Inputs) -> Tensor:
        """Return the token types (B, T). If the ids have more padding than the token types, append zeros to these.

        Raises:
            AdapterError: The token types do not have one entry per token.
        """
        types, mask = inputs.extra[TOKEN_TYPES], inputs.mask[TEXT]
        missing = mask.shape[1] - types.shape[1]
        if missing > 0 and not bool(mask[:, -missing:].any()):
            return nn.functional.pad(types, (0, missing))
        if missing > 0 and not bool(mask[:, :missing].any()):
            return nn.functional.pad(types, (missing, 0))
        if missing != 0:
            raise AdapterError(
                f"Inputs.extra['{TOKEN_TYPES}'] has {types.shape[1]} entries per row, but there are {mask.shape[1]} "
                "token ids; expected one entry per token. Whenever you add, remove or move tokens, change these "
                "entries in the same way, as delete() and keep() do."
            )
        return types


def padded_left(inputs: Inputs) -> Inputs:
    """Return the inputs with the padding of the text on the left."""
    mask = inputs.mask[TEXT]
    width = mask.shape[1]
    positions = torch.arange(width, device=mask.device)
    source = (positions - (width - mask.sum(1, keepdim=True))) % width

    def move(values: Tensor) -> Tensor:
        return values.gather(1, source) if values.dim() == 2 and values.shape == mask.shape else values

    return replace(
        inputs,
        ids={**inputs.ids, TEXT: move(inputs.ids[TEXT])},
        mask={**inputs.mask, TEXT: move(mask)},
        special={**inputs.special, TEXT: move(inputs.special[TEXT])},
        words={name: move(value) for name, value in inputs.words.items()},
        passages={name: move(value) for name, value in inputs.passages.items()},
        extra={name: move(value) for name, value in inputs.extra.items()},
    )


def single_row(inputs: Inputs, row: int) -> Inputs:
    """Return a batch that has only one row of `inputs`, without padding.

    `Inputs.tokens` and `Inputs.words` of the result are empty.
    """
    keep = inputs.mask[TEXT][row]

    def cut(values: Tensor, keep: Tensor = keep) -> Tensor:
        return values[row : row + 1, keep] if values.shape[1:] == keep.shape else values[row : row + 1]

    return Inputs(
        ids={name: cut(value, inputs.mask[name][row]) for name, value in inputs.ids.items()},
        mask={name: cut(value, inputs.mask[name][row]) for name, value in inputs.mask.items()},
        special={name: cut(value, inputs.mask[name][row]) for name, value in inputs.special.items()},
        extra={name: cut(value) for name, value in inputs.extra.items()},
        tables=inputs.tables,
    )


def _require_text(stream: str) -> None:
    if stream != TEXT:
        raise AdapterError(
            f"stream '{stream}': only tokens of '{TEXT}' can be removed or replaced; the decoder's tokens are derived "
            "from them."
        )
