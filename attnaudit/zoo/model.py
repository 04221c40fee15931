"""A classifier that pools hidden states with attention: embedding, encoder, attention, linear decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.errors import ModelError, nearest
from attnaudit.zoo.alignments import ALIGNMENTS
from attnaudit.zoo.encoders import ENCODERS
from attnaudit.zoo.projections import PROJECTIONS, project
from attnaudit.zoo.text import PAD, UNKNOWN

T = TypeVar("T")


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything needed to build the modules, except the vocabulary's and the classes' sizes."""

    encoder: str = "bilstm"
    alignment: str = "additive"
    projection: str = "softmax"
    embedding_size: int = 128
    hidden_size: int = 128
    attention_size: int = 128

    def check(self) -> None:
        """Raises ModelError when a part is unknown or a size is not positive."""
        _known("encoder", self.encoder, ENCODERS)
        _known("alignment", self.alignment, ALIGNMENTS)
        _known("projection", self.projection, PROJECTIONS)
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
        self.encoder = ENCODERS[architecture.encoder](architecture.embedding_size, architecture.hidden_size)
        width = self.encoder.width
        self.attention = Attention(
            ALIGNMENTS[architecture.alignment](width, architecture.attention_size),
            PROJECTIONS[architecture.projection](),
        )
        self.decoder = nn.Linear(width, 1 if classes == 2 else classes)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = word_dropout

    def forward(self, ids: Tensor, mask: Tensor, special: Tensor) -> Tensor:
        """ids, mask (True on tokens) and special (True on tokens never attended), each (B, T) -> logits (B, C)."""
        if self.training and self.word_dropout > 0:
            lost = torch.rand(ids.shape, device=ids.device) < self.word_dropout
            ids = ids.masked_fill(lost & mask & ~special, UNKNOWN)
        hidden = self.encoder(self.dropout(self.embedding(ids)), mask)
        weights = self.attention(hidden, mask & ~special)
        context = torch.einsum("bt,btm->bm", weights, hidden)
        logits: Tensor = self.decoder(self.dropout(context))
        return logits
