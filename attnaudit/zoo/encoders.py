"""Encoders: embeddings (B, T, d) and mask (B, T) -> hidden states (B, T, m), zero on padding.

A new encoder is a class with `__init__(embedding_size, hidden_size)`, an attribute `width` (its m)
and one entry in `ENCODERS`.
Every row must come out the same whatever it is padded with, on either side, and whoever shares its batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnaudit.errors import ModelError


class Encoder(nn.Module):
    """Base of the encoders. width: features of one hidden state (m)."""

    width: int


class BiLSTM(Encoder):
    """One bidirectional LSTM layer (Jain & Wallace 2019: 128 per direction); width is 2 * hidden_size.

    Two one-directional LSTMs run over tokens gathered to the left, in order and reversed. Padding then always
    follows the tokens, so it reaches no hidden state, and no packing is needed: gradients and `vmap`-ed gradients
    stay fast.
    """

    def __init__(self, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        self.width = 2 * hidden_size
        self.forwards = nn.LSTM(embedding_size, hidden_size, batch_first=True)
        self.backwards = nn.LSTM(embedding_size, hidden_size, batch_first=True)

    @property
    def layer(self) -> tuple[nn.LSTM, nn.LSTM]:
        """Forwards and backwards, as a PooledAttentionAdapter takes them."""
        return self.forwards, self.backwards

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        ordered = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
        lengths = mask.sum(dim=1, keepdim=True)
        places = torch.arange(mask.shape[1], device=mask.device).expand_as(ordered)
        mirrored = torch.where(places < lengths, lengths - 1 - places, places)
        reverse = ordered.gather(1, mirrored)
        both = [self._run(self.forwards, embeddings, ordered), self._run(self.backwards, embeddings, reverse)]
        return torch.cat(both, dim=-1) * mask.unsqueeze(-1)

    @staticmethod
    def _run(lstm: nn.LSTM, embeddings: Tensor, order: Tensor) -> Tensor:
        taken = embeddings.gather(1, order.unsqueeze(-1).expand(-1, -1, embeddings.shape[-1]))
        with _differentiable_in_evaluation(lstm, embeddings):
            hidden, _ = lstm(taken)
        back = torch.argsort(order, dim=1)
        result: Tensor = hidden.gather(1, back.unsqueeze(-1).expand_as(hidden))
        return result


def _differentiable_in_evaluation(lstm: nn.LSTM, embeddings: Tensor) -> contextlib.AbstractContextManager[None]:
    """cuDNN has no backward pass in evaluation mode: leave it out when gradients are wanted there."""
    if embeddings.is_cuda and not lstm.training and torch.is_grad_enabled():
        flags: contextlib.AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=False)
        return flags
    return contextlib.nullcontext()


class MLP(Encoder):
    """Two ReLU layers applied to each token alone; width is hidden_size. Context-free."""

    def __init__(self, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        self.width = hidden_size
        self.layers = nn.Sequential(
            nn.Linear(embedding_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, hidden_size), nn.ReLU()
        )

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.layers(embeddings)
        return hidden * mask.unsqueeze(-1)


class Average(Encoder):
    """A linear map and tanh applied to each token alone (Jain & Wallace 2019, "average"); width is hidden_size."""

    def __init__(self, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        self.width = hidden_size
        self.linear = nn.Linear(embedding_size, hidden_size)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(self.linear(embeddings)) * mask.unsqueeze(-1)


class Joined(Encoder):
    """Hidden states that keep their own token in view (Tutek & Šnajder 2020, §4): `concat` is h = [encoder(e); e],
    `residual` is h = encoder(e) + e, which needs an encoder as wide as the embedding. Raises ModelError otherwise."""

    def __init__(self, encoder: Encoder, embedding_size: int, states: str) -> None:
        super().__init__()
        if states == "residual" and encoder.width != embedding_size:
            raise ModelError(
                f"residual states add the embedding ({embedding_size} wide) to the encoder's state ({encoder.width} "
                f"wide): give --embedding-size {encoder.width}, or another --hidden-size."
            )
        self.inner = encoder
        self.states = states
        self.width = encoder.width + (embedding_size if states == "concat" else 0)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.inner(embeddings, mask)
        kept = embeddings * mask.unsqueeze(-1)
        return torch.cat([hidden, kept], dim=-1) if self.states == "concat" else hidden + kept


#: what a hidden state is made of
STATES = ("plain", "concat", "residual")

#: name -> (embedding_size, hidden_size) -> encoder
ENCODERS: dict[str, Callable[[int, int], Encoder]] = {"bilstm": BiLSTM, "mlp": MLP, "average": Average}
