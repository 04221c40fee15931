"""The adapter for classifiers with pooled attention.

In such a model, an encoder computes a state for each token, attention computes a weight for each state, and a decoder
computes the logits from the weighted sum of the states, called the context. The adapter is built from the parts of the
model: e = embedding(ids), h = encoder(e), a = attention(h), logits = decoder(Σ a·h).

Attention may have several heads, also called hops (Lin et al. 2017). Each head has its own weights over the same states
and therefore its own context.

A model may also read a query, with the state q = query(embedding(ids of the query)). The attention and the decoder may
then read q: a = attention(h, q), logits = decoder(Σ a·h, q).

Shapes: B instances, T tokens of the text, Q tokens of the query, H heads, V variants, C logits, d features of an
embedding, m features of a hidden state, q features of the query's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from attnaudit.adapters.pooled import local_encoders, lstm_layers, lstm_passes, masked_recurrence, recurrent_encoders
from attnaudit.adapters.pooled.part_options import require_callable
from attnaudit.adapters.pooled.row_groups import encode_in_groups
from attnaudit.adapters.pooled.target_decoder import decoder_of
from attnaudit.adapters.pooled.token_streams import (
    Encoding,
    TokenStreams,
    modules_among,
    require_encoder,
    require_reading,
    require_states,
)
from attnaudit.adapters.protocol import (
    OPEN_CLASSES,
    QUERY,
    TEXT,
    Capabilities,
    Inputs,
    Intervention,
    Site,
    Trace,
    decode_logits,
)
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from attnaudit.targets import CLASS, Target

SITE = Site(key="attention")
#: The family of models with several heads, unless the adapter names another one.
SEVERAL_HEADS = "several-head attention"
#: Logit of a class that is not a possible answer. If another logit is below half of it, twice the lowest logit is used
#: instead, so that the probability always rounds to zero. The logit is finite, so that gradients are defined. Measures
#: of logits leave such classes out.
CLOSED_LOGIT = -1e4
#: Largest number of states per call of the attention in `logits_without`. They all fit in the processor's cache.
STATES_AT_ONCE = 8192
#: The result of `PooledAttentionAdapter.share`: the states of a recurrent encoder or of a local encoder.
SharedStates = recurrent_encoders.SharedStates | local_encoders.SharedStates


class PooledAttentionAdapter(TokenStreams):
    """A model adapter for a classifier with pooled attention, which may have several heads."""

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
        configuration: str = "",
        query: Callable[[Tensor, Tensor], Tensor] | None = None,
        open_classes: Callable[[Instance], Sequence[bool]] | None = None,
        lstm: lstm_layers.Layer | None = None,
        reach: int | None = None,
        target: Target = CLASS,
        heads: int = 1,
        reading: str = "",
        contexts: Callable[[Tensor], Tensor] | None = None,
        original: Callable[..., Tensor] | None = None,
    ) -> None:
        """Build an adapter from the parts of a model.

        Args:
            embedding: (B, T) ids -> (B, T, d) embeddings.
            encoder: (embeddings (B, T, d), mask (B, T)) -> states (B, T, m); the mask is True on tokens.
            attention: (states (B, T, m), allowed (B, T)) -> weights (B, T) that sum to one over the allowed tokens.
            decoder: Context (..., m) -> logits (..., C). If C = 1, the sigmoid of the logit is the probability of
                `classes[1]`. A decoder that is an `nn.Linear` is called with the context only, and the adapter declares
                `linear_decoder` unless `open_classes` is given.
            tokenize: Text -> Encoding.
            classes: Class names in the order of the logits. If the target is a label or a score, give the names of all
                labels or scores.
            modules: The modules that own the parameters. By default, every part among `embedding`, `encoder`,
                `attention` and `decoder` that is an `nn.Module`.
            pad_id: Id that fills padding.
            mask_id: Id of the mask token, or of the token for unknown words. The audit uses it to replace tokens
                without moving other tokens. If None, the audit does not measure the effect of mask substitution.
            attend_special: Whether special tokens may be attended to.
            max_tokens: Length of the longest text or query, in tokens. `collate` raises DataError if a text or query is
                longer. None if the length is unlimited.
            description: One line that reports show.
            family: The family of the model, such as "pooled attention, gru encoder". The key `validated_on` of policies
                lists families. "" stands for "pooled attention". If `heads` is more than 1, the name begins with
                "several-head attention", because policies for a single row of weights were not validated on it.
            configuration: A text that describes what determines the outputs of the model apart from its parameters,
                such as the vocabulary as JSON. The hash of the model includes this text, so `attnaudit verify` can
                distinguish models with equal parameters.
            query: Function that encodes the query: (embeddings (B, Q, d), mask (B, Q)) -> state (B, q). If given, every
                instance must have a query, which `tokenize` and `embedding` also process. The attention is then called
                with (states, allowed, state of the query). A decoder that is not an `nn.Linear` is called with
                (context (..., m), state of the query (..., q)).
            open_classes: Instance -> one flag per class, False for classes that are not possible answers. It requires
                `query` and one logit per class.
            lstm: The encoder's LSTM, if the outputs of the LSTM are the hidden states. Give an `nn.LSTM` with one
                layer, or a pair (forward, backward). The audit is then faster: when tokens are removed, it recomputes
                only the states that each direction reads after them, it computes input influence without autograd, and
                its first pass over the texts may run the LSTM itself (see `fast_passes`). Rows that run a second time
                are read by `encoder`, so an audit fails if its states are not those of the LSTM.
            reach: Largest distance in tokens at which a state depends on a token: 0 if the encoder reads each token
                alone, 7 for a convolution of width 15. The audit is then faster: when tokens are removed, it recomputes
                only the states near them. Give at most one of `lstm` and `reach`.
            target: What is explained: the class, one label of a model that assigns any number of labels, or a score.
            heads: H, the number of heads. If it is larger than 1, the attention returns weights (B, H, T), `reading` is
                required, and the decoder is not declared to be linear in one context.
            reading: The attention that is shown as the explanation (see `attnaudit.readings`), such as
                "own@heads=mean", "own@heads=0", or, with one head per class, "own@heads=predicted". It is required if
                `heads` is larger than 1, and invalid otherwise.
            contexts: Function from the contexts (..., H, m) of the heads to the input of the decoder. By default, it
                concatenates the contexts to (..., H·m). Give it only if `heads` is larger than 1.
            original: Your model's own forward pass: ids (1, T) -> logits (1, C), or (ids (1, T), ids of the query
                (1, Q)) -> logits (1, C) if `query` is given. The logits are those of all `classes`, before the softmax
                or sigmoid. It is called for one text at a time, so no id is padding. Before an audit, the conformance
                check `original_model` compares these logits with those of the adapter. If None, they are not compared,
                and the report says so.

        Raises:
            AdapterError: There are fewer than two class names, two class names are equal, no part is a module, or an
                option is invalid.
        """
        if open_classes is not None and query is None:
            raise AdapterError(
                "open_classes is given without query. Also pass the function that encodes the query: query=..."
            )
        reads = () if query is None else ("query_state",)
        require_callable("attention", attention, ("states", "allowed", *reads))
        require_callable("decoder", decoder, ("context",) if isinstance(decoder, nn.Linear) else ("context", *reads))
        decoder = decoder_of(target, decoder, classes)
        self.encoder, self.attention, self.decoder = require_encoder(encoder), attention, decoder
        self.query, self.open_classes = query, open_classes
        if heads < 1 or (heads == 1 and contexts is not None):
            wrong = "contexts is given, but heads is 1" if heads == 1 else f"heads is {heads}"
            raise AdapterError(f"{wrong}; expected heads=H, the number of weights per token that attention returns.")
        if heads > 1 and not family.startswith(SEVERAL_HEADS):  # policies for a single row of weights do not cover it
            family = f"{SEVERAL_HEADS}, {family}" if family else SEVERAL_HEADS
        self.contexts = contexts
        self._site = SITE if heads == 1 else replace(SITE, heads=heads)
        require_reading([self._site], reading)
        if lstm is not None:
            lstm_layers.refuse_unsupported(lstm)
        if reach is not None and lstm is not None:
            raise AdapterError(
                "both reach and lstm are given; expected at most one of them. For an LSTM, leave reach out."
            )
        if reach is not None and reach < 0:
            raise AdapterError(
                f"reach is {reach}; expected 0 or more. If you leave reach out, the audit gives the same numbers, but "
                "takes longer."
            )
        self.lstm, self.reach = lstm, reach
        self._runs_lstm = False
        parts = (embedding, encoder, attention, decoder)
        super().__init__(
            embedding=embedding,
            tokenize=tokenize,
            modules=modules_among(parts) if modules is None else modules,
            streams=(TEXT,) if query is None else (TEXT, QUERY),
            pad_id=pad_id,
            mask_id=mask_id,
            attend_special=attend_special,
            description=description,
            family=family,
            configuration=configuration,
            target=target,
            original=original,
            capabilities=Capabilities(
                classes=tuple(classes),
                decodes=True,
                mask=mask_id is not None,
                linear_decoder=isinstance(decoder, nn.Linear) and open_classes is None and heads == 1,
                query=query is not None,
                shares_states=lstm is not None or reach is not None,
                shares_masked=lstm is not None and mask_id is not None,
                influences=lstm is not None,
                max_tokens=max_tokens,
                reading=reading,
            ),
        )

    def _extra(self, instances: Sequence[Instance], device: torch.device) -> dict[str, Tensor]:
        if self.open_classes is None:
            return {}
        flags = [list(self.open_classes(instance)) for instance in instances]
        return {OPEN_CLASSES: torch.tensor(flags, device=device)[:, None]}

    # -- passes ---------------------------------------------------------------------------------------------------

    def sites(self) -> tuple[Site, ...]:
        return (self._site,)

    def _query_state(self, inputs: Inputs, embeddings: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Return a tuple with the state (B, q) of the query, or an empty tuple if the model reads no query."""
        return () if self.query is None else (self.query(embeddings[QUERY], inputs.mask[QUERY]),)

    @staticmethod
    def _decoder_condition(inputs: Inputs, query_state: tuple[Tensor, ...]) -> Tensor | None:
        """Return the state (B, q) of the query, or None if the model reads no query.

        If `open_classes` is given, the C flags of each row are appended to its state. The result is then (B, q + C).
        """
        flags = [inputs.extra[OPEN_CLASSES][:, 0].to(s.dtype) for s in query_state if OPEN_CLASSES in inputs.extra]
        return torch.cat([*query_state, *flags], dim=-1) if query_state else None

    def _encode_text(self, embedded: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states, and the states before a final normalisation layer if the encoder ends with one."""
        return encode_in_groups(self.encoder, embedded, mask), None

    @contextmanager
    def fast_passes(self) -> Iterator[None]:
        before, self._runs_lstm = self._runs_lstm, True
        try:
            yield
        finally:
            self._runs_lstm = before

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace:
        embedded = self.embed(inputs) if embeddings is None else embeddings
        count, width = inputs.ids[TEXT].shape
        unnormalised = None
        read = (embedded[TEXT], inputs.mask[TEXT], inputs.ids[TEXT])
        if self._runs_lstm and self.lstm is not None and lstm_passes.can_run(self.lstm, *read):
            states = lstm_passes.packed_states(self.lstm, *read)
        else:
            encoded, unnormalised = self._encode_text(embedded[TEXT], inputs.mask[TEXT])
            states = require_states(encoded, (count, width))
        allowed = self._allowed(inputs)
        query_state = self._query_state(inputs, embedded)
        weights = self._weights(states, allowed, query_state)
        if intervene is not None:
            replaced = intervene(self._site, weights[:, :, None, :], allowed[:, None, None, :])
            weights = weights if replaced is None else replaced[:, :, 0, :]
        decoder_condition = self._decoder_condition(inputs, query_state)
        logits = decode_logits(self, states, weights[:, None], decoder_condition)[:, 0, :]
        return Trace(
            logits=logits,
            attention={SITE.key: weights[:, :, None, :]},
            allowed={SITE.key: allowed[:, None, None, :]},
            hidden={SITE.key: states} if hidden else {},
            before_norm={SITE.key: unnormalised} if hidden and unnormalised is not None else {},
            decoder_condition=decoder_condition,
        )

    def _weights(self, states: Tensor, allowed: Tensor, query_state: tuple[Tensor, ...]) -> Tensor:
        """Return the attention weights (B, H, T).

        Raises:
            AdapterError: The attention returned another shape.
        """
        weights = self.attention(states, allowed, *query_state)
        heads = self._site.heads
        expected = tuple(allowed.shape) if heads == 1 else (len(allowed), heads, allowed.shape[1])
        if tuple(weights.shape) != expected:
            shape = "(B, T)" if heads == 1 else "(B, H, T)"
            several = weights.dim() == 3 and weights.shape[::2] == allowed.shape and heads == 1
            hint = f" For several heads, pass heads={weights.shape[1]} and a reading." if several else ""
            raise AdapterError(f"attention returned shape {tuple(weights.shape)}; expected {shape} = {expected}.{hint}")
        return weights.reshape(len(allowed), heads, -1)

    def decode(self, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None = None) -> Tensor:
        if self._site.heads == 1:
            context = weights @ hidden
        else:
            contexts = weights @ hidden[:, None]
            context = contexts.flatten(2) if self.contexts is None else self.contexts(contexts)
        classes = 0 if self.open_classes is None else len(self._capabilities.classes)
        if decoder_condition is None or isinstance(self.decoder, nn.Linear):
            logits = self.decoder(context)
        else:
            query_state = decoder_condition[:, None, : decoder_condition.shape[-1] - classes]
            logits = self.decoder(context, query_state.expand(-1, context.shape[1], -1))
        if logits.dim() == 2:
            raise AdapterError(
                "decoder() dropped a dimension: for a context of shape (B, V, m) it must return (B, V, C), with C = 1 "
                "for a sigmoid output."
            )
        if decoder_condition is None or not classes:
            return logits
        if logits.shape[-1] != classes:
            raise AdapterError(
                f"open_classes requires one logit for each of the {classes} classes; got {logits.shape[-1]}."
            )
        is_open = decoder_condition[:, None, -classes:] != 0
        lowest = torch.where(is_open, logits.detach(), 0.0).amin(-1, keepdim=True)
        closed = (2 * lowest).clamp(min=torch.finfo(logits.dtype).min, max=CLOSED_LOGIT)
        return torch.where(is_open, logits, closed)

    def decoder_weights(self) -> tuple[Tensor, Tensor]:
        if not isinstance(self.decoder, nn.Linear):
            raise AdapterError(
                "decoder_weights(): the decoder is not an nn.Linear. Call it only if capabilities.linear_decoder is "
                "True."
            )
        weight = self.decoder.weight
        bias = self.decoder.bias if self.decoder.bias is not None else weight.new_zeros(weight.shape[0])
        return weight, bias

    # -- variants without some tokens ------------------------------------------------------------------------------

    def share(self, inputs: Inputs) -> SharedStates:
        embeddings, mask = self.embed(inputs)[TEXT], inputs.mask[TEXT]
        if self.lstm is not None:
            return recurrent_encoders.share(self.lstm, embeddings, mask)
        if self.reach is not None:
            return local_encoders.share(self.encoder, embeddings, mask, self.reach)
        raise AdapterError(
            "share(): the adapter does not know which states change when tokens are removed. Pass "
            "`lstm=...` or `reach=...` to PooledAttentionAdapter."
        )

    def variant_cost(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        return cast(SharedStates, shared).variant_cost(rows, keep)

    def logits_without(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        shared = cast(SharedStates, shared)
        return self._logits_of(inputs, rows, shared.states_without(rows, keep), *shared.positions(rows, keep))

    def logits_masked(
        self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        whole = cast(recurrent_encoders.SharedStates, shared)
        masked = whole.later.get("masked")
        if masked is None:
            real = inputs.real()
            everything = torch.arange(len(real), device=real.device)
            of_masked = cast(
                recurrent_encoders.SharedStates, self.share(self.substitute(inputs, TEXT, everything, real))
            )
            masked = whole.later["masked"] = masked_recurrence.share_masked(whole, of_masked, real)
        masked = cast(masked_recurrence.MaskedStates, masked)
        positions = whole.positions(rows, inputs.mask[TEXT][rows])
        return self._logits_of(inputs, rows, masked.states_with_masks(rows, keep), *positions, weights)

    def _logits_of(
        self,
        inputs: Inputs,
        rows: Tensor,
        states: Tensor,
        positions: Tensor,
        real: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return the logits (V, C) of variants from their states.

        Args:
            inputs: The batch.
            rows: (V,) index of the row that each variant is made from.
            states: (V, W, m) states of the tokens of each variant.
            positions: (V, W) positions of these tokens in the batch.
            real: (V, W) True on these tokens, False on padding.
            weights: (V, H, T) attention weights at the positions of the batch; None for those that the model computes.
        """
        allowed = self._allowed(inputs)[rows].gather(1, positions) & real
        query_state = () if self.query is None else self._query_state(inputs, self.embed(inputs))
        decoder_condition = self._decoder_condition(inputs, query_state)
        if weights is not None:
            weights = weights.gather(2, positions[:, None].expand(-1, weights.shape[1], -1)) * real[:, None]
        step = max(1, STATES_AT_ONCE // states.shape[1])
        logits = []
        for part in (slice(start, start + step) for start in range(0, len(states), step)):
            its_rows = rows[part]
            its_query = tuple(state[its_rows] for state in query_state)
            used = self._weights(states[part], allowed[part], its_query) if weights is None else weights[part]
            condition = None if decoder_condition is None else decoder_condition[its_rows]
            logits.append(decode_logits(self, states[part], used[:, None], condition)[:, 0, :])
        return torch.cat(logits)

    def influence(self, inputs: Inputs, shared: object, positions: slice) -> Tensor:
        return recurrent_encoders.influence(cast(recurrent_encoders.SharedStates, shared), positions)
