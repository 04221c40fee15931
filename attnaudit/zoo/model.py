"""A classifier that pools hidden states with attention: embedding, encoder, attention, linear decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.errors import ModelError, nearest
from attnaudit.zoo.alignments import ALIGNMENTS
from attnaudit.zoo.encoders import ENCODERS, STATES, Encoder, Joined
from attnaudit.zoo.projections import PROJECTIONS, project
from attnaudit.zoo.text import PAD, UNKNOWN

T = TypeVar("T")


class Planted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """States of known content (see `attnaudit.zoo.planted.states`).

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


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything needed to build the modules, except the vocabulary's and the classes' sizes.

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

    def check(self) -> None:
        """Raises ModelError when a part is unknown or a size is not positive."""
        _known("encoder", self.encoder, ENCODERS)
        _known("alignment", self.alignment, ALIGNMENTS)
        _known("projection", self.projection, PROJECTIONS)
        if self.states not in STATES:
            raise ModelError(f"Unknown states '{self.states}'. {nearest(self.states, STATES)}")
        if self.planted is not None:
            self.planted.check()
        for size in ("embedding_size", "hidden_size", "attention_size"):
            if getattr(self, size) < 1:
                raise ModelError(f"{size} is {getattr(self, size)}: expected a whole number of at least 1.")


def _known(kind: str, name: str, table: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
    if name not in table:
        raise ModelError(f"Unknown {kind} '{name}'. {nearest(name, table)}")
    return table[name]


class Attention(nn.Module):
    """Alignment, then projection over the allowed tokens: (hidden (B, T, m), allowed (B, T)) -> weights (B, T)."""

    def __init__(self, alignment: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.alignment = alignment
        self.projection = projection

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return project(self.projection, self.alignment(hidden), allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward pass: ids, mask, special, weights (B, T); embedded (B, T, d); hidden (B, T, m); logits (B, C)."""

    ids: Tensor
    mask: Tensor
    special: Tensor
    embedded: Tensor
    hidden: Tensor
    weights: Tensor
    logits: Tensor

    @property
    def real(self) -> Tensor:
        return self.mask & ~self.special


class PooledClassifier(nn.Module):
    """embedding (B, T) -> (B, T, d); encoder; attention; decoder (m) -> one sigmoid logit for two classes, else one
    logit per class.

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
        self.encoder, self.attention = _parts(architecture)
        width = self.encoder.width
        self.decoder = nn.Linear(width, 1 if classes == 2 else classes)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = word_dropout
        #: Gives the weights of a batch in place of `attention`: (ids, mask, special) -> (B, T).
        self.imposed: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def forward(self, ids: Tensor, mask: Tensor, special: Tensor) -> Tensor:
        """ids, mask (True on tokens) and special (True on tokens never attended), each (B, T) -> logits (B, C)."""
        return self.trace(ids, mask, special).logits

    def trace(self, ids: Tensor, mask: Tensor, special: Tensor) -> Pass:
        """As `forward`, with everything on the way."""
        imposed = self.imposed(ids, mask, special) if self.imposed is not None else None
        if self.training and self.word_dropout > 0:
            lost = torch.rand(ids.shape, device=ids.device) < self.word_dropout
            ids = ids.masked_fill(lost & mask & ~special, UNKNOWN)
        embedded = self.dropout(self.embedding(ids))
        hidden = self.encoder(embedded, mask)
        weights = self.attention(hidden, mask & ~special) if imposed is None else imposed
        context = torch.einsum("bt,btm->bm", weights, hidden)
        return Pass(
            ids=ids,
            mask=mask,
            special=special,
            embedded=embedded,
            hidden=hidden,
            weights=weights,
            logits=self.decoder(self.dropout(context)),
        )


def _parts(architecture: Architecture) -> tuple[Encoder, nn.Module]:
    """Encoder and attention."""
    projection = PROJECTIONS[architecture.projection]()
    if architecture.planted is not None:
        from attnaudit.zoo.planted.states import PlantedEncoder, ScoreColumn

        return PlantedEncoder(architecture), ScoreColumn(projection)
    encoder = ENCODERS[architecture.encoder](architecture.embedding_size, architecture.hidden_size)
    if architecture.states != "plain":
        encoder = Joined(encoder, architecture.embedding_size, architecture.states)
    alignment = ALIGNMENTS[architecture.alignment](encoder.width, architecture.attention_size)
    return encoder, Attention(alignment, projection)
