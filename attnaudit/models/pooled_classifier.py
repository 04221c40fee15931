"""A classifier that pools hidden states with attention: embedding, encoder, attention, linear decoder."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.adapters.pooled.pooled_adapter import CLOSED_LOGIT
from attnaudit.errors import ModelError, nearest
from attnaudit.models.alignments import ALIGNMENTS
from attnaudit.models.encoders import ENCODERS, STATES, Encoder, Joined, encoder
from attnaudit.models.projections import PROJECTIONS, project, projection
from attnaudit.models.vocabulary import PAD, UNKNOWN


class Planted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """States of known content (see `attnaudit.models.planted_states`).

    evidence: how a token's own evidence e_i comes about: "free" (any number), "unit" (one magnitude) or "scored"
    (unit evidence times a growing function of the attention score). label: which states carry the evidence of the
    whole text: "nowhere", "everywhere", or at the "first" or "last" real token, which then has most of the attention.
    """

    evidence: str = "free"
    label: str = "nowhere"

    def check(self) -> None:
        """Raises ModelError for an unknown word."""
        for name, known in (("evidence", EVIDENCE), ("label", LABEL)):
            if getattr(self, name) not in known:
                raise ModelError(f"Unknown {name} '{getattr(self, name)}'. {nearest(getattr(self, name), known)}")


EVIDENCE = ("free", "unit", "scored")
LABEL = ("nowhere", "everywhere", "first", "last")
#: what an instance is
FORMS = ("text", "pair", "question")
#: Most features of one layer.
WIDEST = 65_536


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything needed to build the modules, except the vocabulary's and the classes' sizes.

    layers: of an encoder that stacks them ("bilstm": 1 is usual, "transformer": 2); None for the usual number.
    form: "text" classifies one text. "pair" reads a text and a query (NLI: premise and hypothesis), "question" too (QA:
    paragraph and question), answered with one of the classes that the text mentions; attention is over the text.
    projection_parameter: λ of "sparsegen", α of "entmax", temperature of "gumbel"; None for the usual value.
    states: "plain", or "concat" or "residual" (each state keeps its token's embedding). planted: a model whose
    attention is known to be right or wrong, by construction.
    """

    encoder: str = "bilstm"
    alignment: str = "additive"
    projection: str = "softmax"
    embedding_size: int = 128
    hidden_size: int = 128
    attention_size: int = 128
    states: str = "plain"
    planted: Planted | None = None
    layers: int | None = None
    projection_parameter: float | None = None
    form: str = "text"

    def check(self) -> None:
        """Raises ModelError when a part is unknown, a size is not positive, or a part does not take its parameter."""
        _known("encoder", self.encoder, ENCODERS)
        _known("alignment", self.alignment, ALIGNMENTS)
        _known("projection", self.projection, PROJECTIONS)
        _known("states", self.states, STATES)
        _known("form", self.form, FORMS)
        if self.planted is not None:
            self.planted.check()
            if self.form != "text":
                raise ModelError(f"form is '{self.form}': planted states are those of one text.")
        for size in ("embedding_size", "hidden_size", "attention_size"):
            if not 1 <= getattr(self, size) <= WIDEST:
                raise ModelError(f"{size} is {getattr(self, size)}: expected a whole number from 1 to {WIDEST:,}.")
        projection(self.projection, self.projection_parameter)


def _known(kind: str, name: str, table: Collection[str]) -> None:
    if name not in table:
        raise ModelError(f"Unknown {kind} '{name}'. {nearest(name, table)}")


class Attention(nn.Module):
    """Alignment, then projection over the allowed tokens: (hidden (B, T, m), allowed (B, T), for models that read one
    the state of the query (B, q)) -> weights (B, T)."""

    def __init__(self, alignment: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.alignment = alignment
        self.projection = projection

    def forward(self, hidden: Tensor, allowed: Tensor, asked: Tensor | None = None) -> Tensor:
        return project(self.projection, self.alignment(hidden, asked), allowed)


class Joint(nn.Module):
    """tanh(W_c c + W_q q + b) of context (..., m) and query (..., q), half as wide as the context (as in Jain &
    Wallace's published code)."""

    def __init__(self, width: int, query: int) -> None:
        super().__init__()
        self.width = max(1, width // 2)
        self.context = nn.Linear(width, self.width)
        self.query = nn.Linear(query, self.width, bias=False)

    def forward(self, context: Tensor, asked: Tensor) -> Tensor:
        return torch.tanh(self.context(context) + self.query(asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """ids and mask (B, Q) of the queries; open (B, C): which classes a row may be answered with, None for all."""

    ids: Tensor
    mask: Tensor
    open: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward pass: ids, mask, special, weights (B, T); embedded (B, T, d); hidden (B, T, m); logits (B, C). query:
    as it was given."""

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
        return self.mask & ~self.special


class PooledClassifier(nn.Module):
    """embedding (B, T) -> (B, T, d); encoder; attention; decoder (m) -> one sigmoid logit for two classes, else (and
    for questions) one logit per class. Forms with a query have an encoder of the same kind for it, which shares the
    embedding, and a layer that joins context and query before the decoder.

    dropout: on embeddings and on the context; word_dropout: chance that a training token is read as unknown. Both act
    in training mode only. Raises ModelError for an unknown part.
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
        with torch.no_grad():  # N(0, 1) drowns what a small data set can teach
            self.embedding.weight.mul_(0.1)
        self.query_encoder = None if architecture.form == "text" else _encoder(architecture)
        asked = None if self.query_encoder is None else self.query_encoder.width
        self.encoder, self.attention = _parts(architecture, asked)
        width = self.encoder.width
        outputs = 1 if classes == 2 and architecture.form != "question" else classes
        self.joint = None if asked is None else Joint(width, asked)
        self.decoder = nn.Linear(width if self.joint is None else self.joint.width, outputs)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = word_dropout
        #: Gives the weights of a batch in place of `attention`: (ids, mask, special, query) -> (B, T).
        self.imposed: Callable[[Tensor, Tensor, Tensor, Query | None], Tensor] | None = None

    def forward(self, ids: Tensor, mask: Tensor, special: Tensor, query: Query | None = None) -> Tensor:
        """ids, mask (True on tokens) and special (True on tokens never attended), each (B, T) -> logits (B, C)."""
        return self.trace(ids, mask, special, query).logits

    def ask(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Embeddings (B, Q, d) and mask (B, Q) of the query -> its state (B, q): the last one of a BiLSTM, the largest
        features of a CNN, else the mean."""
        assert self.query_encoder is not None
        return self.query_encoder.summary(self.query_encoder(embedded, mask), mask)

    def decide(self, context: Tensor, *asked: Tensor) -> Tensor:
        """Context (..., m) and, for forms with a query, its state (..., q) -> logits (..., C)."""
        logits: Tensor = self.decoder(context if self.joint is None else self.joint(context, *asked))
        return logits

    def trace(self, ids: Tensor, mask: Tensor, special: Tensor, query: Query | None = None) -> Pass:
        """As `forward`, with everything on the way."""
        imposed = self.imposed(ids, mask, special, query) if self.imposed is not None else None
        if self.training and self.word_dropout > 0:
            lost = torch.rand(ids.shape, device=ids.device) < self.word_dropout
            ids = ids.masked_fill(lost & mask & ~special, UNKNOWN)
        embedded = self.dropout(self.embedding(ids))
        hidden = self.encoder(embedded, mask)
        asked = () if query is None else (self.ask(self.dropout(self.embedding(query.ids)), query.mask),)
        weights = self.attention(hidden, mask & ~special, *asked) if imposed is None else imposed
        context = torch.einsum("bt,btm->bm", weights, hidden)
        logits = self.decide(self.dropout(context), *asked)
        if query is not None and query.open is not None:
            logits = logits.masked_fill(~query.open, CLOSED_LOGIT)
        return Pass(
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


def _parts(architecture: Architecture, asked: int | None) -> tuple[Encoder, nn.Module]:
    """Encoder and attention. asked: width of the query's state."""
    projected = projection(architecture.projection, architecture.projection_parameter)
    if architecture.planted is not None:
        from attnaudit.models.planted_states import PlantedEncoder, ScoreColumn

        return PlantedEncoder(architecture), ScoreColumn(projected)
    states = _encoder(architecture)
    if architecture.states != "plain":
        states = Joined(states, architecture.embedding_size, architecture.states)
    alignment = ALIGNMENTS[architecture.alignment](states.width, architecture.attention_size, asked)
    return states, Attention(alignment, projected)
