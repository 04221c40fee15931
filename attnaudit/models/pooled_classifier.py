"""A classifier with pooled attention. It consists of an embedding, an encoder, attention and a decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnaudit.adapters.pooled.pooled_adapter import CLOSED_LOGIT
from attnaudit.models.alignments import ALIGNMENTS
from attnaudit.models.architecture import Architecture
from attnaudit.models.encoders import Encoder, Joined, encoder
from attnaudit.models.planted_states import PlantedEncoder, ScoreColumn
from attnaudit.models.planted_tables import TableEncoder
from attnaudit.models.projections import project, projection
from attnaudit.models.vocabulary import PAD, UNKNOWN


class Attention(nn.Module):
    """Attention: an alignment scores the tokens, and a projection turns the scores of allowed tokens into weights.

    Args:
        alignment: A module that maps hidden states (B, T, m), and the query's state if there is one, to scores (B, T).
        projection: A module that maps scores (B, T) to weights (B, T).
    """

    def __init__(self, alignment: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.alignment = alignment
        self.projection = projection

    def forward(self, hidden: Tensor, allowed: Tensor, query_state: Tensor | None = None) -> Tensor:
        """Return attention weights.

        Args:
            hidden: (B, T, m) hidden states.
            allowed: (B, T) mask, True on tokens that may receive attention.
            query_state: (B, q) state of the query; None in models that read no query.

        Returns:
            (B, T) weights.
        """
        return project(self.projection, self.alignment(hidden, query_state), allowed)


class ContextQueryLayer(nn.Module):
    """A layer that combines a context c (..., m) and the state q (..., q) of a query: tanh(W_c c + W_q q + b).

    The output has half as many features as the context, as in the published code of Jain & Wallace 2019.

    Args:
        width: Number of features of the context (m).
        query: Number of features of the query's state (q).
    """

    def __init__(self, width: int, query: int) -> None:
        super().__init__()
        self.width = max(1, width // 2)
        self.context = nn.Linear(width, self.width)
        self.query = nn.Linear(query, self.width, bias=False)

    def forward(self, context: Tensor, query_state: Tensor) -> Tensor:
        return torch.tanh(self.context(context) + self.query(query_state))


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A batch of queries.

    Attributes:
        ids: (B, Q) token ids.
        mask: (B, Q) mask, True on tokens.
        open_classes: (B, C) mask, True on the classes that are possible answers for a row; None if all classes are.
    """

    ids: Tensor
    mask: Tensor
    open_classes: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """The inputs, intermediate results and outputs of one forward pass.

    Attributes:
        ids: (B, T) token ids, after word dropout.
        mask: (B, T) mask, True on tokens.
        special: (B, T) mask, True on special tokens, which never receive attention.
        embedded: (B, T, d) embeddings.
        hidden: (B, T, m) hidden states.
        weights: (B, T) attention weights.
        logits: (B, C) logits.
        query: The queries; None in models that read no query.
    """

    ids: Tensor
    mask: Tensor
    special: Tensor
    embedded: Tensor
    hidden: Tensor
    weights: Tensor
    logits: Tensor
    query: Query | None = None

    @property
    def real(self) -> Tensor:
        """(B, T) mask, True on real tokens, which are neither padding nor special."""
        return self.mask & ~self.special


#: Computes the attention weights of another model on a batch: (ids, mask, special, query) -> (B, T).
AttentionSource = Callable[[Tensor, Tensor, Tensor, Query | None], Tensor]


class PooledClassifier(nn.Module):
    """A reference model: an embedding, an encoder, attention and a decoder.

    With two classes and a form other than "question", the decoder returns one sigmoid logit. Otherwise it returns one
    logit per class. Models that read a query encode it with the same embedding and a second encoder of the same kind.
    In these models, a layer combines the context and the query's state before the decoder.

    Args:
        architecture: The architecture of the model.
        vocabulary_size: Number of entries of the vocabulary, including special tokens.
        classes: Number of classes.
        dropout: Dropout rate on the embeddings and the context, in training mode only.
        word_dropout: Probability that a token is replaced by the unknown word, in training mode only.

    Attributes:
        imposed_attention: A function that computes the attention weights of another model. They replace the weights of
            this model. None for no replacement.

    Raises:
        ModelError: The architecture is invalid, or it needs a package that is not installed.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        vocabulary_size: int,
        classes: int,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        architecture.check()
        self.architecture = architecture
        self.embedding = nn.Embedding(vocabulary_size, architecture.embedding_size, padding_idx=PAD)
        with torch.no_grad():  # training on small data sets hardly changes the large initial values from N(0, 1)
            self.embedding.weight.mul_(0.1)
        self.query_encoder = None if architecture.form == "text" else _encoder(architecture)
        query_width = None if self.query_encoder is None else self.query_encoder.width
        self.encoder, self.attention = _encoder_and_attention(architecture, query_width)
        width = self.encoder.width
        outputs = 1 if classes == 2 and architecture.form != "question" else classes
        self.joint = None if query_width is None else ContextQueryLayer(width, query_width)
        self.decoder = nn.Linear(width if self.joint is None else self.joint.width, outputs)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = word_dropout
        self.imposed_attention: AttentionSource | None = None

    def forward(self, ids: Tensor, mask: Tensor, special: Tensor, query: Query | None = None) -> Tensor:
        """Return the logits.

        Args:
            ids: (B, T) token ids.
            mask: (B, T) mask, True on tokens.
            special: (B, T) mask, True on tokens that never receive attention.
            query: The queries; None for models that read no query.

        Returns:
            (B, C) logits, or (B, 1) if the decoder returns a single sigmoid logit.
        """
        return self.trace(ids, mask, special, query).logits

    def encode_query(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Return the state of each query.

        A BiLSTM or a GRU gives its final state, a CNN gives the maximum of each feature, and other encoders give the
        mean of their states.

        Args:
            embedded: (B, Q, d) embeddings of the query.
            mask: (B, Q) mask, True on tokens.

        Returns:
            (B, q) states.
        """
        assert self.query_encoder is not None
        return self.query_encoder.summary(self.query_encoder(embedded, mask), mask)

    def decode(self, context: Tensor, *query_state: Tensor) -> Tensor:
        """Map a context (..., m) to logits (..., C). Models that read a query also need its state (..., q)."""
        logits: Tensor = self.decoder(context if self.joint is None else self.joint(context, *query_state))
        return logits

    def trace(self, ids: Tensor, mask: Tensor, special: Tensor, query: Query | None = None) -> ForwardPass:
        """Run the model with the arguments of `forward`, and return everything that it computes."""
        imposed = None if self.imposed_attention is None else self.imposed_attention(ids, mask, special, query)
        if self.training and self.word_dropout > 0:
            dropped = torch.rand(ids.shape, device=ids.device) < self.word_dropout
            ids = ids.masked_fill(dropped & mask & ~special, UNKNOWN)
        embedded = self.dropout(self.embedding(ids))
        hidden = self.encoder(embedded, mask)
        query_state = () if query is None else (self.encode_query(self.dropout(self.embedding(query.ids)), query.mask),)
        weights = self.attention(hidden, mask & ~special, *query_state) if imposed is None else imposed
        context = torch.einsum("bt,btm->bm", weights, hidden)
        logits = self.decode(self.dropout(context), *query_state)
        if query is not None and query.open_classes is not None:
            logits = logits.masked_fill(~query.open_classes, CLOSED_LOGIT)
        return ForwardPass(
            ids=ids,
            mask=mask,
            special=special,
            embedded=embedded,
            hidden=hidden,
            weights=weights,
            logits=logits,
            query=query,
        )


def _encoder(architecture: Architecture) -> Encoder:
    return encoder(architecture.encoder, architecture.embedding_size, architecture.hidden_size, architecture.layers)


def _encoder_and_attention(architecture: Architecture, query_width: int | None) -> tuple[Encoder, nn.Module]:
    """Build the encoder and the attention.

    Args:
        architecture: The architecture of the model.
        query_width: Number of features of the query's state; None for models that read no query.
    """
    chosen_projection = projection(architecture.projection, architecture.projection_parameter)
    if architecture.planted is not None:
        planted = PlantedEncoder if architecture.planted.tables is None else TableEncoder
        return planted(architecture), ScoreColumn(chosen_projection)
    states = _encoder(architecture)
    if architecture.states != "plain":
        states = Joined(states, architecture.embedding_size, architecture.states)
    alignment = ALIGNMENTS[architecture.alignment](states.width, architecture.attention_size, query_width)
    return states, Attention(alignment, chosen_projection)
