"""The adapter for models that compare two texts by attention in both directions, such as decomposable attention.

Each token of one text attends to the tokens of the other text, and the logits are computed from the tokens and the
contexts that they get (Parikh et al. 2016). The audit explains one of the two texts: it shows the attention to its
tokens, averaged over the tokens of the other text.

Shapes: B instances, T tokens of the text, Q tokens of the query, C logits, d features of an embedding, m features of a
state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from torch import Tensor, nn

from attnaudit.adapters.pooled.target_decoder import decoder_of
from attnaudit.adapters.pooled.token_streams import (
    Encoding,
    TokenStreams,
    modules_among,
    require_encoder,
    require_states,
)
from attnaudit.adapters.protocol import QUERY, TEXT, Capabilities, Inputs, Intervention, Site, Trace
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from attnaudit.targets import CLASS, Target

#: The family of these models, unless the adapter names another one.
PAIRS = "attention between two texts"
#: The mean, over the tokens of the other text, of their attention to the tokens of the explained text.
READING = "mean@layer=0,heads=mean,stack=cross"


class PairAttentionAdapter(TokenStreams):
    """A model adapter for a classifier of two texts, in which the tokens of each text attend to the other text."""

    def __init__(
        self,
        *,
        embedding: Callable[[Tensor], Tensor],
        encoder: Callable[[Tensor, Tensor], Tensor],
        attention: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
        decoder: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor],
        tokenize: Callable[[str], Encoding],
        classes: Sequence[str],
        explained: Literal["text", "query"] = "text",
        reading: str = READING,
        modules: Sequence[nn.Module] | None = None,
        pad_id: int = 0,
        mask_id: int | None = None,
        max_tokens: int | None = None,
        description: str = "",
        family: str = PAIRS,
        configuration: str = "",
        target: Target = CLASS,
        original: Callable[..., Tensor] | None = None,
    ) -> None:
        """Build an adapter from the parts of a model.

        Args:
            embedding: (B, T) ids -> (B, T, d) embeddings. It serves both texts.
            encoder: (embeddings (B, T, d), mask (B, T)) -> states (B, T, m). It serves both texts.
            attention: (states of the text (B, T, m), states of the query (B, Q, m), mask of the text (B, T), mask of
                the query (B, Q)) -> weights (B, T, Q) and weights (B, Q, T). With the first weights, tokens of the text
                attend to the query. With the second weights, tokens of the query attend to the text. Each row sums to
                one over the tokens of the other text.
            decoder: (states of the text, states of the query, contexts of the text (B, T, m), contexts of the query
                (B, Q, m), mask of the text, mask of the query) -> logits (B, C). The contexts of the text are weighted
                sums of the states of the query, and those of the query are weighted sums of the states of the text.
            tokenize: Text -> Encoding. It serves both texts.
            classes: As for `PooledAttentionAdapter`.
            explained: The text whose tokens are explained and erased: "text" or "query".
            reading: The attention that is shown. Its layer 0 is the attention to the explained text.
            modules: As for `PooledAttentionAdapter`.
            pad_id: As for `PooledAttentionAdapter`.
            mask_id: As for `PooledAttentionAdapter`.
            max_tokens: As for `PooledAttentionAdapter`.
            description: As for `PooledAttentionAdapter`.
            family: The family of the model.
            configuration: As for `PooledAttentionAdapter`.
            target: As for `PooledAttentionAdapter`.
            original: As for `PooledAttentionAdapter`: (ids of the text (1, T), ids of the query (1, Q)) -> logits
                (1, C), whichever text is explained.

        Raises:
            AdapterError: An option is invalid.
        """
        if explained not in ("text", "query"):
            raise AdapterError(f"explained is {explained!r}; expected 'text' or 'query'.")
        self.encoder, self.attention, self.explained = require_encoder(encoder), attention, explained
        self.decoder = decoder_of(target, decoder, classes)
        other = "query" if explained == "text" else "text"
        # The stream TEXT holds the explained text, whichever of the two it is.
        self._to_explained = Site(key=f"to {explained}", layer=0, kind="cross", query=QUERY, keys=TEXT)
        self._to_other = Site(key=f"to {other}", layer=1, kind="cross", query=TEXT, keys=QUERY)
        super().__init__(
            embedding=embedding,
            tokenize=tokenize,
            modules=modules_among((embedding, encoder, attention, decoder)) if modules is None else modules,
            streams=(TEXT, QUERY),
            pad_id=pad_id,
            mask_id=mask_id,
            attend_special=True,
            description=description,
            family=family,
            configuration=configuration,
            target=target,
            original=original,
            capabilities=Capabilities(
                classes=tuple(classes), query=True, mask=mask_id is not None, max_tokens=max_tokens, reading=reading
            ),
        )

    def _text_of(self, instance: Instance, stream: str) -> str | None:
        return instance.text if (stream == TEXT) == (self.explained == "text") else instance.query

    def _original_arguments(self, inputs: Inputs, row: int) -> tuple[Tensor, ...]:
        explained, other = super()._original_arguments(inputs, row)
        return (explained, other) if self.explained == "text" else (other, explained)

    def sites(self) -> tuple[Site, ...]:
        return (self._to_explained, self._to_other)

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace:
        embedded = self.embed(inputs) if embeddings is None else embeddings
        states, mask = {}, inputs.mask
        for stream, ids in inputs.ids.items():
            expected = (ids.shape[0], ids.shape[1])
            states[stream] = require_states(self.encoder(embedded[stream], mask[stream]), expected)
        # The parts of the model get the two texts in the order in which they were trained to read them.
        first, second = (TEXT, QUERY) if self.explained == "text" else (QUERY, TEXT)
        of_first, of_second = self.attention(states[first], states[second], mask[first], mask[second])
        weights = {second: of_first, first: of_second}  # by the stream that is attended to
        attention, allowed = {}, {}
        for site in self.sites():
            asking = mask[str(site.query)]
            can = asking[:, :, None] & mask[site.keys][:, None, :]
            if weights[site.keys].shape != can.shape:
                raise AdapterError(
                    f"attention returned weights of the shape {tuple(weights[site.keys].shape)} at '{site.key}'; "
                    f"expected {tuple(can.shape)}."
                )
            own = (weights[site.keys] * asking[:, :, None])[:, None]  # no weights at padding
            replaced = None if intervene is None else intervene(site, own, can[:, None])
            attention[site.key], allowed[site.key] = own if replaced is None else replaced, can[:, None]
            weights[site.keys] = attention[site.key][:, 0]
        logits = self.decoder(
            states[first],
            states[second],
            weights[second] @ states[second],
            weights[first] @ states[first],
            mask[first],
            mask[second],
        )
        return Trace(
            logits=logits,
            attention=attention,
            allowed=allowed,
            hidden={site.key: states[site.keys] for site in self.sites()} if hidden else {},
        )
