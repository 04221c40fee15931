"""The part that the adapters of pooled models share: tokenised texts, their embeddings, and the removal of tokens.

Shapes: B instances, T tokens of a stream, V variants, d features of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from attnaudit.adapters.padding import delete_positions, keep_positions, pad, select_rows, substitute_positions
from attnaudit.adapters.pooled.original_forward import compare_logits
from attnaudit.adapters.pooled.part_options import (
    require_callable,
    require_equal_numbers,
    require_known_ids,
    require_modules,
)
from attnaudit.adapters.pooled.target_decoder import decoder_of
from attnaudit.adapters.protocol import OPEN_CLASSES, TEXT, Capabilities, Inputs, ModelAdapter, Site
from attnaudit.errors import AdapterError, DataError, raised_at
from attnaudit.formatting import listed
from attnaudit.instances import Instance
from attnaudit.model_families import POOLED
from attnaudit.targets import Target


@dataclass(frozen=True, slots=True)
class Encoding:
    """One tokenised text.

    Attributes:
        ids: Token ids.
        tokens: The tokens as readable strings.
        special: One flag per token, True for special tokens such as [CLS]. The encoder reads these tokens, but no
            statistic includes them. None if there are no special tokens.
    """

    ids: Sequence[int]
    tokens: Sequence[str]
    special: Sequence[bool] | None = None


class TokenStreams:
    """Base class of adapters that get the token ids of a text, and possibly of a query, from a function `tokenize`.

    Args:
        embedding: (B, T) ids -> (B, T, d) embeddings.
        tokenize: Text -> Encoding.
        capabilities: The capabilities of the adapter. Their classes are the names of all outputs of the model. If the
            target is a label or a score, the classes of the target replace these names.
        target: What is explained: the class, one label or a score.
        modules: The modules that own the parameters.
        streams: The streams that the model reads: the text, or the text and the query.
        pad_id: Id that fills padding.
        mask_id: Id of the mask token, or of the token for unknown words; None if there is none.
        attend_special: Whether special tokens may be attended to.
        description: One line that reports show.
        family: The family of the model. Words that name the target are appended (see `Target.family`).
        configuration: A text that describes what determines the outputs of the model apart from its parameters.
        original: The forward pass of the model (see `_original_arguments`); None if the adapter is not compared with
            it.

    Raises:
        AdapterError: There are no modules, or an option is invalid.
    """

    #: Names of the entries of `Inputs.extra` with one value per token of the text.
    per_token: ClassVar[tuple[str, ...]] = ()
    #: What `original` gets in one call, for error messages.
    original_gets: ClassVar[str] = "one text at a time, without padding"
    #: Compares the logits with those of `original` (see `ConvertedModelAdapter`). Only set if `original` is given.
    compare_with_original: Callable[[Inputs], str]

    def __init__(
        self,
        *,
        embedding: Callable[[Tensor], Tensor],
        tokenize: Callable[[str], Encoding],
        capabilities: Capabilities,
        target: Target,
        modules: Sequence[nn.Module],
        streams: Sequence[str],
        pad_id: int,
        mask_id: int | None,
        attend_special: bool,
        description: str,
        family: str,
        configuration: str,
        original: Callable[..., Tensor] | None = None,
    ) -> None:
        modules = require_modules(modules)
        require_callable("embedding", embedding, ("ids",))
        require_callable("tokenize", tokenize, ("text",))
        if mask_id is not None and mask_id == pad_id:
            raise AdapterError(
                f"mask_id and pad_id are both {mask_id}. Padding replaces no word while a model is trained, so its "
                "embedding does not show what the model does without a word. Give mask_id the id of the mask token or "
                f"of the unknown word. If id {mask_id} did replace words in training, give padding any other id: "
                "pad_id=..."
            )
        for name, token in (("pad_id", pad_id), ("mask_id", mask_id)):
            if isinstance(embedding, nn.Embedding) and token is not None and not 0 <= token < embedding.num_embeddings:
                raise AdapterError(
                    f"{name} is {token}, but the embedding has {embedding.num_embeddings:,} rows. Give an id from 0 to "
                    f"{embedding.num_embeddings - 1:,}."
                )
        self.embedding, self.tokenize, self.streams = embedding, tokenize, tuple(streams)
        self.pad_id, self.mask_id, self.attend_special = pad_id, mask_id, attend_special
        if original is not None:
            require_callable("original", original, ("ids", "query_ids")[: len(streams)])
            self._one_output = decoder_of(target, lambda outputs: outputs, capabilities.classes)
            self.compare_with_original = self._compare_with_original
        self.original = original
        if target.kind != "class":
            outputs = capabilities.classes
            family = f"{family or POOLED}, {target.family}"
            capabilities = replace(
                capabilities,
                classes=target.classes,
                target=target,
                labels=outputs if target.kind == "label" else (),
                decides=target.decides,
            )
        self.description, self.family, self.configuration = description, family, configuration
        self._capabilities, self._modules = capabilities, modules

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def modules(self) -> Sequence[nn.Module]:
        return self._modules

    @property
    def _device(self) -> torch.device:
        for module in self._modules:
            for tensor in (*module.parameters(), *module.buffers()):
                return tensor.device
        return torch.device("cpu")

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        device = self._device
        ids: dict[str, Tensor] = {}
        mask: dict[str, Tensor] = {}
        special: dict[str, Tensor] = {}
        tokens: dict[str, list[list[str]]] = {}
        for stream in self.streams:
            encodings = [self._encode(instance, stream) for instance in instances]
            ids[stream], mask[stream] = pad([list(e.ids) for e in encodings], value=self.pad_id, device=device)
            flags = [list(e.special or [False] * len(e.ids)) for e in encodings]
            special[stream], _ = pad(flags, value=False, device=device)
            tokens[stream] = [list(e.tokens) for e in encodings]
        return Inputs(ids=ids, mask=mask, special=special, tokens=tokens, extra=self._extra(instances, device))

    def select_rows(self, inputs: Inputs, rows: Sequence[int]) -> Inputs:
        return select_rows(inputs, rows, per_token=self.per_token)

    def _extra(self, instances: Sequence[Instance], device: torch.device) -> dict[str, Tensor]:
        """Return the entries of `Inputs.extra` for a batch."""
        return {}

    def _text_of(self, instance: Instance, stream: str) -> str | None:
        """Return the text of an instance that a stream reads; None if the instance has no such text."""
        return instance.text if stream == TEXT else instance.query

    def _encode(self, instance: Instance, stream: str) -> Encoding:
        if instance.file is not None:
            raise DataError(
                f"{instance.where or instance.id}: the row names a file, but the model reads texts. Write the text "
                "itself in the column 'text'."
            )
        text = self._text_of(instance, stream)
        if text is None:
            raise DataError(
                f"{instance.where or instance.id}: the row has no query, but the model reads a text and a query. Fill "
                "the column 'query', or audit a model that reads a single text."
            )
        encoding = self.tokenize(text)
        if not isinstance(encoding, Encoding):
            raise AdapterError(
                f"tokenize returned {type(encoding).__name__}; expected attnaudit.adapters.Encoding(ids, tokens)."
            )
        where = f"{instance.where or instance.id}, {text[:40]!r}"
        require_equal_numbers(encoding.ids, encoding.tokens, encoding.special, where)
        if isinstance(self.embedding, nn.Embedding):
            require_known_ids(encoding.ids, encoding.tokens, self.embedding.num_embeddings, where)
        limit = self._capabilities.max_tokens
        if limit is not None and len(encoding.ids) > limit:
            raise DataError(
                f"{instance.where or instance.id}: the text has {len(encoding.ids)} tokens, but the model takes at "
                f"most {limit}. Shorten or split the text, or let tokenize truncate it."
            )
        return encoding

    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        return {stream: self._embedded(ids) for stream, ids in inputs.ids.items()}

    def _embedded(self, ids: Tensor) -> Tensor:
        try:
            return self.embedding(ids)
        except IndexError as error:  # ids are tested before only if the embedding is an nn.Embedding
            raise AdapterError(
                f"embedding raised IndexError{raised_at(error)}: {error}. The ids of the texts are from "
                f"{int(ids.min()):,} to {int(ids.max()):,}. Probably tokenize gives a word outside the vocabulary an "
                "id without a row of the embedding. Give it the id of the unknown word."
            ) from error

    def _original_arguments(self, inputs: Inputs, row: int) -> tuple[Tensor, ...]:
        """Return the arguments of `original` for one row: the ids (1, T) of its text, and those of its query if any."""
        return tuple(ids[row : row + 1, inputs.mask[stream][row]] for stream, ids in inputs.ids.items())

    def _compare_with_original(self, inputs: Inputs) -> str:
        assert self.original is not None
        with torch.no_grad():
            return compare_logits(
                self.original,
                [self._original_arguments(inputs, row) for row in range(len(inputs.ids[TEXT]))],
                cast(ModelAdapter, self).run(inputs).logits,
                list(map(" ".join, inputs.tokens[TEXT])),
                gets=self.original_gets,
                of_target=self._one_output,
                is_open=inputs.extra[OPEN_CLASSES][:, 0] if OPEN_CLASSES in inputs.extra else None,
            )

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        return delete_positions(inputs, stream, drop, pad_id=self.pad_id, per_token=self.per_token)

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        return keep_positions(inputs, stream, rows, keep, pad_id=self.pad_id, per_token=self.per_token)

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        if self.mask_id is None:
            raise AdapterError(
                "substitute: the adapter has no mask token. Pass mask_id, the id of the mask token or of the unknown "
                "word."
            )
        return substitute_positions(inputs, stream, rows, replaced, mask_id=self.mask_id)

    def _allowed(self, inputs: Inputs) -> Tensor:
        return inputs.mask[TEXT] if self.attend_special else inputs.real()


def require_reading(sites: Sequence[Site], reading: str) -> None:
    """Check that a reading is given if the sites have more than one row of weights per text, and only then.

    Raises:
        AdapterError: A reading is missing although there are several rows, or given although there is only one.
    """
    several = len(sites) > 1 or sites[0].heads > 1
    if reading and not several:
        raise AdapterError(
            f"reading {reading!r} is given, but the attention has a single row of weights per text, so there is "
            "nothing to choose. Leave the reading out."
        )
    if several and not reading:
        named = ", ".join(f"{site.key} with {site.heads} head{'s' * (site.heads > 1)}" for site in sites)
        raise AdapterError(
            f"The attention has several rows of weights per text ({named}), but no reading is given. The reading says "
            f"which of them is shown as the explanation. Choose one, and pass it as the argument reading: "
            f"{listed([reading for site in sites for reading in _readings(site, len(sites))], most=6)}. "
            "docs/pooling.md describes the readings."
        )


def _readings(site: Site, number_of_sites: int) -> list[str]:
    """Return the readings of a site, each in quotation marks and, if the site has several heads, with its meaning."""
    place = f"site={site.key}" if number_of_sites > 1 else ""
    if site.heads == 1:
        return [f"'own@{place}'"]
    heads = {"mean": "the mean over the heads", "0": f"one head, from 0 to {site.heads - 1}"}
    return [f"'own@{','.join(filter(None, (place, f'heads={one}')))}' ({words})" for one, words in heads.items()]


def modules_among(parts: Sequence[object]) -> tuple[nn.Module, ...]:
    """Return the parts of a model that are modules."""
    return tuple(part for part in parts if isinstance(part, nn.Module))


def require_encoder(encoder: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Refuse a recurrent module of PyTorch as the encoder, because it accepts no mask. Return any other encoder.

    Raises:
        AdapterError: The encoder is an `nn.LSTM`, `nn.GRU` or `nn.RNN`, or cannot be called with two arguments.
    """
    if isinstance(encoder, nn.RNNBase):
        raise AdapterError(
            f"encoder is an nn.{type(encoder).__name__}, which accepts no mask and returns a pair. Give a function "
            "that calls it and returns the hidden states: encoder=lambda embedded, mask: model.encoder(embedded)[0]. "
            "Also give modules=(model,), because the parameters of a function are not found."
        )
    require_callable("encoder", encoder, ("embeddings", "mask"))
    return encoder


def require_states(states: object, expected: tuple[int, int]) -> Tensor:
    """Check that an encoder returned hidden states (B, T, m) with (B, T) = `expected`, and return them.

    Raises:
        AdapterError: The encoder returned something other than a tensor, or a tensor of another shape.
    """
    if not isinstance(states, Tensor):
        raise AdapterError(
            f"encoder returned a {type(states).__name__}; expected only the hidden states, a tensor (B, T, m). An "
            "nn.GRU or nn.LSTM returns a pair; the hidden states are its first item: encoder=lambda embedded, "
            "mask: model.encoder(embedded)[0]."
        )
    if states.dim() != 3 or tuple(states.shape[:2]) != expected:
        raise AdapterError(
            f"encoder returned shape {tuple(states.shape)}; expected (B, T, m) with (B, T) = {expected}."
        )
    return states
