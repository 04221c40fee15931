"""The adapter for hierarchical attention networks: attention over the words of each sentence, and over the sentences.

The explanation is the product of both levels (Yang et al. 2016): the weight of word i in sentence k is α_i · β_k, where
α_i is its weight within the sentence and β_k the weight of the sentence. The products sum to one over all words of a
text. Conversely, weights p_i over all words determine both levels: β_k is the sum of p_i over the words of the
sentence, and α_i = p_i / β_k. When the audit replaces the products, the model therefore runs with these two levels. In
a sentence without weight, the words keep the weights that the model computes.

Shapes: B instances, T tokens of the text, S sentences of the longest text, R sentences of all texts, W words of the
longest sentence, V variants, C logits, d features of an embedding, m and k features of a word's and a sentence's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from attnaudit.adapters.padding import pad
from attnaudit.adapters.pooled.target_decoder import decoder_of
from attnaudit.adapters.pooled.token_streams import Encoding, TokenStreams, modules_among, require_states
from attnaudit.adapters.protocol import TEXT, Capabilities, Inputs, Intervention, Site, Trace
from attnaudit.adapters.sums_by_index import added_at
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from attnaudit.targets import CLASS, Target

SITE = Site(key="words and sentences")
#: The family of these models, unless the adapter names another one.
TWO_LEVELS = "two-level attention"
#: Key in `Inputs.extra` of the number of the sentence (B, T) that each token belongs to.
SENTENCES = "sentences"


@dataclass(frozen=True, slots=True)
class _Layout:
    """The sentences of a batch.

    Attributes:
        slot: (B, T) index of the sentence that a token belongs to, among all sentences of the batch; 0 on padding.
        place: (B, T) position of a token in its sentence.
        row: (R,) the instance that each sentence belongs to.
        column: (R,) the number of each sentence among the sentences of its text.
    """

    slot: Tensor
    place: Tensor
    row: Tensor
    column: Tensor


@dataclass(frozen=True, slots=True)
class _Encoded:
    """What a pass computes before the audit may replace weights.

    Attributes:
        words: (B, T, m) states of the words.
        own: (B, T) weights of the words within their sentences.
        mask: (B, T) True on tokens.
        layout: The sentences.
    """

    words: Tensor
    own: Tensor
    mask: Tensor
    layout: _Layout


class HierarchicalAttentionAdapter(TokenStreams):
    """A model adapter for a hierarchical attention network."""

    per_token: ClassVar[tuple[str, ...]] = (SENTENCES,)
    original_gets: ClassVar[str] = "the sentences of one text at a time, with padding after shorter sentences"

    def __init__(
        self,
        *,
        embedding: Callable[[Tensor], Tensor],
        word_encoder: Callable[[Tensor, Tensor], Tensor],
        word_attention: Callable[[Tensor, Tensor], Tensor],
        sentence_encoder: Callable[[Tensor, Tensor], Tensor],
        sentence_attention: Callable[[Tensor, Tensor], Tensor],
        decoder: Callable[[Tensor], Tensor],
        tokenize: Callable[[str], Sequence[Encoding]],
        classes: Sequence[str],
        modules: Sequence[nn.Module] | None = None,
        pad_id: int = 0,
        mask_id: int | None = None,
        max_tokens: int | None = None,
        description: str = "",
        family: str = TWO_LEVELS,
        configuration: str = "",
        target: Target = CLASS,
        original: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Build an adapter from the parts of a model.

        Args:
            embedding: (R, W) ids -> (R, W, d) embeddings.
            word_encoder: (embeddings (R, W, d), mask (R, W)) -> states (R, W, m), for each sentence alone.
            word_attention: (states (R, W, m), allowed (R, W)) -> weights (R, W) that sum to one in each sentence.
            sentence_encoder: (vectors (B, S, m), mask (B, S)) -> states (B, S, k). The vector of a sentence is the
                weighted sum of the states of its words.
            sentence_attention: (states (B, S, k), allowed (B, S)) -> weights (B, S) that sum to one in each text.
            decoder: Context (B, k) -> logits (B, C).
            tokenize: Text -> one Encoding per sentence. Special tokens are not supported.
            classes: As for `PooledAttentionAdapter`.
            modules: As for `PooledAttentionAdapter`.
            pad_id: As for `PooledAttentionAdapter`.
            mask_id: As for `PooledAttentionAdapter`.
            max_tokens: As for `PooledAttentionAdapter`.
            description: As for `PooledAttentionAdapter`.
            family: The family of the model.
            configuration: As for `PooledAttentionAdapter`.
            target: As for `PooledAttentionAdapter`.
            original: Your model's own forward pass, as for `PooledAttentionAdapter`: ids (S, W) of the sentences of one
                text -> logits (1, C). Shorter sentences are padded with `pad_id`.

        Raises:
            AdapterError: An option is invalid.
        """
        self.word_encoder, self.word_attention = word_encoder, word_attention
        self.sentence_encoder, self.sentence_attention = sentence_encoder, sentence_attention
        self.decoder = decoder_of(target, decoder, classes)
        self._sentences_of = tokenize
        parts = (embedding, word_encoder, word_attention, sentence_encoder, sentence_attention, decoder)
        super().__init__(
            embedding=embedding,
            tokenize=self._joined,
            modules=modules_among(parts) if modules is None else modules,
            streams=(TEXT,),
            pad_id=pad_id,
            mask_id=mask_id,
            attend_special=False,
            description=description,
            family=family,
            configuration=configuration,
            target=target,
            original=original,
            capabilities=Capabilities(
                classes=tuple(classes), replays=True, mask=mask_id is not None, max_tokens=max_tokens
            ),
        )

    def _joined(self, text: str) -> Encoding:
        """Return the sentences of a text as one sequence of tokens."""
        sentences = self._checked_sentences(text)
        return Encoding([i for one in sentences for i in one.ids], [token for one in sentences for token in one.tokens])

    def _checked_sentences(self, text: str) -> list[Encoding]:
        sentences = self._sentences_of(text)
        if isinstance(sentences, Encoding) or not all(isinstance(one, Encoding) for one in sentences):
            raise AdapterError("tokenize must return one attnaudit.adapters.Encoding(ids, tokens) per sentence.")
        if any(any(one.special or ()) for one in sentences):
            raise AdapterError(
                "tokenize marks special tokens, which two-level attention does not support. Leave `special` out of "
                "each Encoding."
            )
        return [one for one in sentences if len(one.ids)]

    def _extra(self, instances: Sequence[Instance], device: torch.device) -> dict[str, Tensor]:
        numbers = [
            [number for number, one in enumerate(self._checked_sentences(instance.text)) for _ in one.ids]
            for instance in instances
        ]
        return {SENTENCES: pad(numbers, value=0, device=device)[0]}

    def _original_arguments(self, inputs: Inputs, row: int) -> tuple[Tensor, ...]:
        mask = inputs.mask[TEXT][row]
        numbers, ids = inputs.extra[SENTENCES][row][mask], inputs.ids[TEXT][row][mask]
        _, lengths = torch.unique_consecutive(numbers, return_counts=True)
        sentences = torch.split(ids, lengths.tolist())
        return (nn.utils.rnn.pad_sequence(list(sentences), batch_first=True, padding_value=self.pad_id),)

    def sites(self) -> tuple[Site, ...]:
        return (SITE,)

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace:
        embedded = (self.embed(inputs) if embeddings is None else embeddings)[TEXT]
        mask = inputs.mask[TEXT]
        layout = _layout(inputs.extra[SENTENCES], mask)
        count, width = len(layout.row), int(layout.place.max()) + 1
        rows, columns = mask.nonzero(as_tuple=True)
        slot, place = layout.slot[rows, columns], layout.place[rows, columns]
        by_sentence = embedded.new_zeros((count, width, embedded.shape[-1])).index_put((slot, place), embedded[mask])
        in_sentence = mask.new_zeros((count, width)).index_put((slot, place), mask.new_ones(()))
        states = require_states(self.word_encoder(by_sentence, in_sentence), (count, width))
        weights = self.word_attention(states, in_sentence)
        if tuple(weights.shape) != (count, width):
            raise AdapterError(
                f"word_attention returned shape {tuple(weights.shape)}; expected (sentences, words) = {(count, width)}."
            )
        words = states[layout.slot, layout.place] * mask[..., None]
        own = weights[layout.slot, layout.place] * mask
        encoded = _Encoded(words, own, mask, layout)
        vectors, present = self._vectors(encoded, own)
        of_sentences = self._sentence_weights(self.sentence_encoder(vectors, present), present)
        product = own * of_sentences[layout.row, layout.column][layout.slot]
        if intervene is not None:
            replaced = intervene(SITE, product[:, None, None, :], mask[:, None, None, :])
            product = product if replaced is None else replaced[:, 0, 0, :]
        return Trace(
            logits=self._logits(encoded, product),
            attention={SITE.key: product[:, None, None, :]},
            allowed={SITE.key: mask[:, None, None, :]},
            hidden={SITE.key: words} if hidden else {},
            cache=encoded,
        )

    def _sentence_weights(self, states: Tensor, present: Tensor) -> Tensor:
        weights = self.sentence_attention(states, present)
        if weights.shape != present.shape:
            raise AdapterError(
                f"sentence_attention returned shape {tuple(weights.shape)}; expected (B, S) = {tuple(present.shape)}."
            )
        return weights

    @staticmethod
    def _vectors(encoded: _Encoded, within: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors (B, S, m) of the sentences, and a mask (B, S) of the sentences that exist.

        Args:
            encoded: The states of the words.
            within: (B, T) weights of the words within their sentences.
        """
        layout, words = encoded.layout, encoded.words
        sums = words.new_zeros((len(layout.row), words.shape[-1]))
        sums = added_at(sums, layout.slot[encoded.mask], (within[..., None] * words)[encoded.mask])
        shape = (len(words), int(layout.column.max()) + 1)
        present = torch.zeros(shape, dtype=torch.bool, device=words.device)
        present[layout.row, layout.column] = True
        return words.new_zeros((*shape, words.shape[-1])).index_put((layout.row, layout.column), sums), present

    def _logits(self, encoded: _Encoded, product: Tensor) -> Tensor:
        """Return the logits (B, C), given the products (B, T) of the weights of both levels."""
        layout, mask = encoded.layout, encoded.mask
        totals = added_at(product.new_zeros(len(layout.row)), layout.slot[mask], product[mask])
        has_weight = totals > 0
        share = product / torch.where(has_weight, totals, 1.0)[layout.slot]
        within = torch.where(has_weight[layout.slot], share, encoded.own)
        vectors, present = self._vectors(encoded, within)
        states = self.sentence_encoder(vectors, present)
        weights = product.new_zeros(present.shape).index_put((layout.row, layout.column), totals)
        return self.decoder((weights[:, None, :] @ states)[:, 0])

    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        count, variants, _, width = weights.shape
        encoded = _repeated(cast(_Encoded, trace.cache), variants)
        return self._logits(encoded, weights.reshape(count * variants, width)).reshape(count, variants, -1)

    def replay_cost(self, inputs: Inputs, site: Site, queries: Tensor) -> int:
        return int(inputs.mask[TEXT].shape[1])


def _layout(numbers: Tensor, mask: Tensor) -> _Layout:
    """Return the sentences of a batch, given the number (B, T) of each token's sentence. Numbers may be missing."""
    position = torch.arange(mask.shape[1], device=mask.device)
    previous = torch.cat([torch.full_like(numbers[:, :1], -1), numbers[:, :-1]], dim=1)
    begins = mask & ((numbers != previous) | (position == 0))
    column = begins.cumsum(1) - 1
    slot = (begins.flatten().cumsum(0) - 1).reshape(mask.shape)
    place = position - torch.where(begins, position, 0).cummax(1).values
    rows, starts = begins.nonzero(as_tuple=True)
    return _Layout(
        slot=torch.where(mask, slot, 0),
        place=torch.where(mask, place, 0),
        row=rows,
        column=column[rows, starts],
    )


def _repeated(encoded: _Encoded, times: int) -> _Encoded:
    """Return detached states in which each instance is repeated, with its copies next to each other."""
    words, own, mask = (t.detach().repeat_interleave(times, dim=0) for t in (encoded.words, encoded.own, encoded.mask))
    layout = encoded.layout
    numbers = torch.zeros_like(layout.slot)
    numbers[encoded.mask] = layout.column[layout.slot[encoded.mask]]
    return replace(encoded, words=words, own=own, mask=mask, layout=_layout(numbers.repeat_interleave(times, 0), mask))
