"""Pooled attention: an encoder gives a state per token, attention pools them, a decoder reads the context.

Any model of that shape is wrapped by naming its parts: (e = embedding(ids), h = encoder(e), a = attention(h),
logits = decoder(Σ a·h)). One that reads a text and a query has q = query(embedding(ids of the query)) as well, which
attention and decoder may read: a = attention(h, q), logits = decoder(Σ a·h, q).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from attnaudit.adapters.padding import delete_positions, keep_positions, pad, substitute_positions
from attnaudit.adapters.pooled import local_encoders, recurrent_encoders
from attnaudit.adapters.protocol import QUERY, TEXT, Capabilities, Inputs, Intervention, Site, Trace, decoded
from attnaudit.errors import AdapterError, DataError
from attnaudit.instances import Instance

SITE = Site(key="attention")
#: Name of the extra entry (B, 1, C) that says which classes a row may be answered with, and the logit of the others:
#: finite, so that probabilities are zero and gradients defined.
OPEN, CLOSED = "open", -1e4
#: States that are attended to at once where others are kept: they stay near the processor.
STATES_AT_ONCE = 8192
#: A batch read once, by whatever the encoder is known to be.
Shared = recurrent_encoders.SharedStates | local_encoders.SharedStates


@dataclass(frozen=True, slots=True)
class Encoding:
    """One tokenised text: ids, the tokens as people read them, and which are special (enter the encoder, but
    no statistic). special=None: none is."""

    ids: Sequence[int]
    tokens: Sequence[str]
    special: Sequence[bool] | None = None


class PooledAttentionAdapter:
    """A classifier with one pooled attention, as a model adapter.

    embedding: (B, T) ids -> (B, T, d).
    encoder: (embeddings (B, T, d), mask (B, T)) -> states (B, T, m); mask is True on tokens.
    attention: (states (B, T, m), allowed (B, T)) -> weights (B, T) that sum to one over allowed keys.
    decoder: context (..., m) -> logits (..., C); C = 1 is a sigmoid for classes[1]. An nn.Linear is known to be linear.
    tokenize: text -> Encoding.
    classes: names in the order of the logits.
    modules: what holds the parameters; by default those of the four parts that are modules.
    mask_id: what stands for a token that is taken away without moving the others: the mask or the unknown word. None:
    the model has none, and mask substitution is not measured.
    attend_special: whether special tokens may be attended to.
    max_tokens: longer inputs are refused.
    family: what models it is like, as the validated_on of a policy names them; "" is validated by none.
    query: (embeddings (B, Q, d), mask (B, Q)) of the query -> (B, q). Every instance must then have a query, which
    `tokenize` and `embedding` read too; attention is called with (states, allowed, q), and so is a decoder that is no
    nn.Linear: (context (..., m), q (..., q)). An nn.Linear reads the context alone.
    open_classes: instance -> one flag per class, False for those that this row cannot be answered with. Only with query
    and a logit for every class.
    lstm: the one LSTM layer that makes the states, where the encoder is nothing else: nn.LSTM, or a pair of them that
    read forwards and backwards. Taking tokens away then reads again only what comes after them in each direction, and
    input influence needs no backward passes.
    reach: how many tokens away, on either side, a state may depend on: 0 where the encoder reads each token alone, 7
    for a convolution 15 wide. Taking tokens away then encodes again only what is near them.
    """

    def __init__(
        self,
        *,
        embedding: Callable[[Tensor], Tensor],
        encoder: Callable[[Tensor, Tensor], Tensor],
        attention: Callable[..., Tensor],
        decoder: Callable[..., Tensor],
        tokenize: Callable[[str], Encoding],
        classes: Sequence[str],
        modules: Sequence[nn.Module] | None = None,
        pad_id: int = 0,
        mask_id: int | None = None,
        attend_special: bool = False,
        max_tokens: int | None = None,
        description: str = "",
        family: str = "",
        query: Callable[[Tensor, Tensor], Tensor] | None = None,
        open_classes: Callable[[Instance], Sequence[bool]] | None = None,
        lstm: recurrent_encoders.Layer | None = None,
        reach: int | None = None,
    ) -> None:
        if len(classes) < 2 or len(set(classes)) != len(classes):
            raise AdapterError(f"classes={list(classes)}: expected at least two different class names.")
        self.embedding, self.encoder, self.attention, self.decoder = embedding, encoder, attention, decoder
        if open_classes is not None and query is None:
            raise AdapterError("open_classes is given without query: name the function that reads the query as well.")
        self.query, self.open_classes = query, open_classes
        self.tokenize = tokenize
        self.pad_id = pad_id
        self.mask_id = mask_id
        self.attend_special = attend_special
        self.description = description
        self.family = family
        if lstm is not None:
            recurrent_encoders.refuse_other(lstm)
        if reach is not None and (lstm is not None or reach < 0):
            raise AdapterError(
                f"reach is {reach}{' beside lstm' if lstm is not None else ''}; expected 0 or more, of an encoder that "
                "is no LSTM. Leave it out: the audit gives the same numbers, more slowly."
            )
        self.lstm, self.reach = lstm, reach
        parts = (embedding, encoder, attention, decoder)
        self._modules = tuple(modules) if modules is not None else tuple(p for p in parts if isinstance(p, nn.Module))
        if not self._modules:
            raise AdapterError(
                "None of embedding, encoder, attention, decoder is an nn.Module: name the modules that hold the "
                "parameters, modules=(model,), so that they can be moved, hashed and put in evaluation mode."
            )
        self._capabilities = Capabilities(
            classes=tuple(classes),
            decodes=True,
            mask=mask_id is not None,
            linear_decoder=isinstance(decoder, nn.Linear) and open_classes is None,
            query=query is not None,
            shares_states=lstm is not None or reach is not None,
            influences=lstm is not None,
            max_tokens=max_tokens,
        )

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
        for stream in (TEXT,) if self.query is None else (TEXT, QUERY):
            encodings = [self._encode(one, stream) for one in instances]
            ids[stream], mask[stream] = pad([list(e.ids) for e in encodings], value=self.pad_id, device=device)
            flags = [list(e.special or [False] * len(e.ids)) for e in encodings]
            special[stream], _ = pad(flags, value=False, device=device)
            tokens[stream] = [list(e.tokens) for e in encodings]
        extra = {}
        if self.open_classes is not None:
            extra[OPEN] = torch.tensor([list(self.open_classes(one)) for one in instances], device=device)[:, None]
        return Inputs(ids=ids, mask=mask, special=special, tokens=tokens, extra=extra)

    def _encode(self, instance: Instance, stream: str) -> Encoding:
        text = instance.text if stream == TEXT else instance.query
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
                f"{len(encoding.special or encoding.ids)} special flags for one text; expected one of each per token."
            )
        limit = self._capabilities.max_tokens
        if limit is not None and len(encoding.ids) > limit:
            raise DataError(
                f"{instance.where or instance.id}: {len(encoding.ids)} tokens, but the model takes at most {limit}. "
                "Shorten or split the text, or let tokenize truncate it."
            )
        return encoding

    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        return {stream: self.embedding(ids) for stream, ids in inputs.ids.items()}

    def sites(self) -> tuple[Site, ...]:
        return (SITE,)

    def _allowed(self, inputs: Inputs) -> Tensor:
        return inputs.mask[TEXT] if self.attend_special else inputs.real()

    def _asked(self, inputs: Inputs, embeddings: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """What the query says, (B, q); nothing for a model of a single text."""
        return () if self.query is None else (self.query(embeddings[QUERY], inputs.mask[QUERY]),)

    @staticmethod
    def _beside(inputs: Inputs, asked: tuple[Tensor, ...]) -> Tensor | None:
        """(B, q), or (B, q + C) with which classes are open behind it."""
        flags = [inputs.extra[OPEN][:, 0].to(one.dtype) for one in asked if OPEN in inputs.extra]
        return torch.cat([*asked, *flags], dim=-1) if asked else None

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace:
        embedded = self.embed(inputs) if embeddings is None else embeddings
        states = self.encoder(embedded[TEXT], inputs.mask[TEXT])
        expected = (*inputs.ids[TEXT].shape,)
        if not isinstance(states, Tensor):
            raise AdapterError(
                f"encoder returned a {type(states).__name__}; expected hidden states alone, (B, T, m). An nn.GRU or "
                "nn.LSTM returns them first of two: encoder=lambda embedded, mask: model.encoder(embedded)[0]."
            )
        if states.dim() != 3 or tuple(states.shape[:2]) != expected:
            raise AdapterError(
                f"encoder returned shape {tuple(states.shape)}; expected (B, T, m) with (B, T) = {expected}."
            )
        allowed = self._allowed(inputs)
        asked = self._asked(inputs, embedded)
        weights = self.attention(states, allowed, *asked)
        if tuple(weights.shape) != expected:
            raise AdapterError(f"attention returned shape {tuple(weights.shape)}; expected (B, T) = {expected}.")
        if intervene is not None:
            replaced = intervene(SITE, weights[:, None, None, :], allowed[:, None, None, :])
            weights = weights if replaced is None else replaced[:, 0, 0, :]
        decoder_condition = self._beside(inputs, asked)
        logits = decoded(self, states, weights[:, None, :], decoder_condition)[:, 0, :]
        return Trace(
            logits=logits,
            attention={SITE.key: weights[:, None, None, :]},
            allowed={SITE.key: allowed[:, None, None, :]},
            hidden={SITE.key: states} if hidden else {},
            decoder_condition=decoder_condition,
        )

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        return delete_positions(inputs, stream, drop, pad_id=self.pad_id)

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        return keep_positions(inputs, stream, rows, keep, pad_id=self.pad_id)

    def share(self, inputs: Inputs) -> Shared:
        embeddings, mask = self.embed(inputs)[TEXT], inputs.mask[TEXT]
        if self.lstm is not None:
            return recurrent_encoders.share(self.lstm, embeddings, mask)
        if self.reach is not None:
            return local_encoders.share(self.encoder, embeddings, mask, self.reach)
        raise AdapterError("begin: nothing is known of how states are made. Give lstm or reach.")

    def variant_cost(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        return cast(Shared, shared).width(rows, keep)

    def logits_without(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        shared = cast(Shared, shared)
        states = shared.without(rows, keep)
        positions, inside = shared.positions(rows, keep)
        allowed = self._allowed(inputs)[rows].gather(1, positions) & inside
        asked = self._asked(inputs, self.embed(inputs))
        decoder_condition = self._beside(inputs, asked)
        step = max(1, STATES_AT_ONCE // states.shape[1])
        found = []
        for part in (slice(start, start + step) for start in range(0, len(states), step)):
            of = rows[part]
            weights = self.attention(states[part], allowed[part], *(one[of] for one in asked))
            its = None if decoder_condition is None else decoder_condition[of]
            found.append(decoded(self, states[part], weights[:, None, :], its)[:, 0, :])
        return torch.cat(found)

    def influence(self, inputs: Inputs, shared: object, positions: slice) -> Tensor:
        return recurrent_encoders.influence(cast(recurrent_encoders.SharedStates, shared), positions)

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        if self.mask_id is None:
            raise AdapterError(
                "substitute: the adapter has no mask token. Give mask_id, the id of the mask or unknown word."
            )
        return substitute_positions(inputs, stream, rows, replaced, mask_id=self.mask_id)

    def decode(self, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None = None) -> Tensor:
        context = weights @ hidden
        classes = 0 if self.open_classes is None else len(self._capabilities.classes)
        if decoder_condition is None or isinstance(self.decoder, nn.Linear):
            logits = self.decoder(context)
        else:
            asked = decoder_condition[:, None, : decoder_condition.shape[-1] - classes].expand(-1, context.shape[1], -1)
            logits = self.decoder(context, asked)
        if logits.dim() == 2:
            raise AdapterError(
                "decoder dropped a dimension: for a context of shape (B, V, m) it must return (B, V, C), "
                "with C = 1 for a sigmoid output."
            )
        if decoder_condition is None or not classes:
            return logits
        if logits.shape[-1] != classes:
            raise AdapterError(f"open_classes needs one logit for each of {classes} classes; got {logits.shape[-1]}.")
        return logits.masked_fill(decoder_condition[:, None, -classes:] == 0, CLOSED)

    def decoder_weights(self) -> tuple[Tensor, Tensor]:
        if not isinstance(self.decoder, nn.Linear):
            raise AdapterError("decoder_weights: the decoder is not an nn.Linear.")
        weight = self.decoder.weight
        bias = self.decoder.bias if self.decoder.bias is not None else weight.new_zeros(weight.shape[0])
        return weight, bias
