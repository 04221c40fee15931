"""The part that the adapters of pooled models share: tokenised texts, their embeddings, and the removal of tokens.

Shapes: B instances, T tokens of a stream, V variants, d features of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnaudit.adapters.padding import delete_positions, keep_positions, pad, select_rows, substitute_positions
from attnaudit.adapters.protocol import TEXT, Capabilities, Inputs, Site
from attnaudit.errors import AdapterError, DataError
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

    Raises:
        AdapterError: There are no modules.
    """

    #: Names of the entries of `Inputs.extra` with one value per token of the text.
    per_token: ClassVar[tuple[str, ...]] = ()

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
    ) -> None:
        if not modules:
            raise AdapterError(
                "None of the given parts of the model is an nn.Module. List the modules that hold the parameters, as "
                "in modules=(model,), so that they can be moved, hashed and put in evaluation mode."
            )
        for name, token in (("pad_id", pad_id), ("mask_id", mask_id)):
            if isinstance(embedding, nn.Embedding) and token is not None and not 0 <= token < embedding.num_embeddings:
                raise AdapterError(
                    f"{name} is {token}, but the embedding has {embedding.num_embeddings:,} rows. Give an id from 0 to "
                    f"{embedding.num_embeddings - 1:,}."
                )
        self.embedding, self.tokenize, self.streams = embedding, tokenize, tuple(streams)
        self.pad_id, self.mask_id, self.attend_special = pad_id, mask_id, attend_special
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
        self._capabilities, self._modules = capabilities, tuple(modules)

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
        lengths = {len(encoding.ids), len(encoding.tokens), len(encoding.special or encoding.ids)}
        if len(lengths) != 1:
            raise AdapterError(
                f"tokenize gave {len(encoding.ids)} ids, {len(encoding.tokens)} tokens and "
                f"{len(encoding.special or encoding.ids)} special flags for one text; expected the same number of each."
            )
        limit = self._capabilities.max_tokens
        if limit is not None and len(encoding.ids) > limit:
            raise DataError(
                f"{instance.where or instance.id}: the text has {len(encoding.ids)} tokens, but the model takes at "
                f"most {limit}. Shorten or split the text, or let tokenize truncate it."
            )
        return encoding

    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        return {stream: self.embedding(ids) for stream, ids in inputs.ids.items()}

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
        AdapterError: The encoder is an `nn.LSTM`, `nn.GRU` or `nn.RNN`.
    """
    if isinstance(encoder, nn.RNNBase):
        raise AdapterError(
            f"encoder is an nn.{type(encoder).__name__}, which accepts no mask and returns a pair. Give a function "
            "that calls it and returns the hidden states: encoder=lambda embedded, mask: model.encoder(embedded)[0]. "
            "Also give modules=(model,), because the parameters of a function are not found."
        )
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
