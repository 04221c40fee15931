"""Encoders: embeddings (B, T, d) and mask (B, T) -> hidden states (B, T, m), zero on padding.

A new encoder is a class with `__init__(embedding_size, hidden_size)`, an attribute `width` (its m) and one entry in
`ENCODERS`. One that stacks layers says in `depth` how many are usual, and takes their number as a third argument.
Every row must come out the same whatever it is padded with, on either side, and whoever shares its batch.
"""

from __future__ import annotations

import contextlib
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnaudit.adapters.pooled.ordered_tokens import in_order, select_positions
from attnaudit.errors import ModelError


class Encoder(nn.Module):
    """Base of the encoders. width: features of one hidden state (m). depth: how many layers are usual, for an
    encoder that stacks them. reach: how many tokens away a state may depend on, None for any number."""

    width: int
    depth: ClassVar[int | None] = None
    reach: int | None = None

    def __init__(self, *_sizes: int) -> None:
        super().__init__()

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Hidden states (B, T, m) -> one state for the whole text (B, m), as a query is read: the mean over its tokens
        where nothing else suits."""
        return hidden.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp_min(1)


class BiLSTM(Encoder):
    """Bidirectional LSTM (Jain & Wallace 2019: one layer, 128 per direction; Tutek & Šnajder 2020, appendix: up to
    three layers); width is 2 * hidden_size.

    Two one-directional LSTMs run over tokens gathered to the left, in order and reversed. Padding then always
    follows the tokens, so it reaches no hidden state, and no packing is needed, whose gradients are slow.
    """

    depth = 1

    def __init__(self, embedding_size: int, hidden_size: int, layers: int = 1) -> None:
        super().__init__()
        self.width = 2 * hidden_size
        self.forwards = nn.LSTM(embedding_size, hidden_size, batch_first=True)
        self.backwards = nn.LSTM(embedding_size, hidden_size, batch_first=True)
        self.above = BiLSTM(self.width, hidden_size, layers - 1) if layers > 1 else None

    @property
    def layer(self) -> tuple[nn.LSTM, nn.LSTM] | None:
        """Forwards and backwards, as a PooledAttentionAdapter takes them; None where there are several layers."""
        return (self.forwards, self.backwards) if self.above is None else None

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        ordered, lengths = in_order(mask)
        places = torch.arange(mask.shape[1], device=mask.device).expand_as(ordered)
        mirrored = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)
        reverse = ordered.gather(1, mirrored)
        both = [self._run(self.forwards, embeddings, ordered), self._run(self.backwards, embeddings, reverse)]
        hidden = torch.cat(both, dim=-1) * mask.unsqueeze(-1)
        return hidden if self.above is None else torch.as_tensor(self.above(hidden, mask))

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The last state of each direction."""
        rows = torch.arange(len(mask), device=mask.device)
        first = mask.int().argmax(dim=1)
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(dim=1)
        forwards, backwards = hidden.chunk(2, dim=-1)
        return torch.cat([forwards[rows, last], backwards[rows, first]], dim=-1)

    @staticmethod
    def _run(lstm: nn.LSTM, embeddings: Tensor, order: Tensor) -> Tensor:
        with _differentiable_in_evaluation(lstm, embeddings):
            hidden, _ = lstm(select_positions(embeddings, order))
        return select_positions(hidden, torch.argsort(order, dim=1))


def _differentiable_in_evaluation(lstm: nn.LSTM, embeddings: Tensor) -> contextlib.AbstractContextManager[None]:
    """cuDNN has no backward pass in evaluation mode: leave it out when gradients are wanted there."""
    if embeddings.is_cuda and not lstm.training and torch.is_grad_enabled():
        flags: contextlib.AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=False)
        return flags
    return contextlib.nullcontext()


class CNN(Encoder):
    """Convolutions of several widths over the same text, ReLU, end to end (Jain & Wallace 2019; the widths are those of
    Wen et al. 2022, appendix); width is hidden_size, shared out among the filters, the narrowest first to get one more.
    Zeros stand before and after the text. Raises ModelError for fewer features than filters."""

    FILTERS: ClassVar = (1, 3, 5, 7, 15)
    reach = max(FILTERS) // 2

    def __init__(self, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        count = len(self.FILTERS)
        if hidden_size < count:
            raise ModelError(
                f"hidden_size is {hidden_size}, but the encoder 'cnn' has {count} filters: give --hidden-size {count} "
                "or more."
            )
        self.width = hidden_size
        self.filters = nn.ModuleList(
            nn.Conv1d(embedding_size, hidden_size // count + (place < hidden_size % count), size, padding=size // 2)
            for place, size in enumerate(self.FILTERS)
        )

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        features = (embeddings * mask.unsqueeze(-1)).transpose(1, 2)
        hidden = torch.cat([one(features) for one in self.filters], dim=1).transpose(1, 2)
        return torch.relu(hidden) * mask.unsqueeze(-1)

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The largest of each feature; they are not negative, so that padding is never larger."""
        return hidden.amax(dim=1)


class SelfAttention(nn.Module):
    """A Transformer layer with one head (Vaswani et al. 2017): self-attention and a ReLU layer, each added to what it
    reads and normalised. All sizes are `size`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.feed = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))
        self.after_attention, self.after_feed = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        scores = self.query(states) @ self.key(states).transpose(1, 2) / math.sqrt(states.shape[-1])
        lowest = torch.finfo(scores.dtype).min  # finite: a row without any token stays free of NaN
        weights = scores.masked_fill(~mask.unsqueeze(1), lowest).softmax(dim=-1)
        states = self.after_attention(states + self.out(weights @ self.value(states)))
        result: Tensor = self.after_feed(states + self.feed(states))
        return result


class Transformer(Encoder):
    """Self-attention layers over embeddings with sinusoidal positions (Meister et al. 2021: two layers, one head, all
    sizes 128); width is hidden_size. Embeddings of another size are first mapped to it. Positions count the tokens, so
    that padding on the left moves none."""

    depth = 2

    def __init__(self, embedding_size: int, hidden_size: int, layers: int = 2) -> None:
        super().__init__()
        self.width = hidden_size
        same = embedding_size == hidden_size
        self.enter: nn.Module = nn.Identity() if same else nn.Linear(embedding_size, hidden_size)
        self.stack = nn.ModuleList(SelfAttention(hidden_size) for _ in range(layers))

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        places = (mask.long().cumsum(dim=1) - 1).clamp_min(0)
        states = self.enter(embeddings) * math.sqrt(self.width) + sinusoids(places, self.width).to(embeddings.dtype)
        for layer in self.stack:
            states = layer(states, mask)
        return torch.as_tensor(states * mask.unsqueeze(-1))


def sinusoids(places: Tensor, width: int) -> Tensor:
    """(..., T) places -> (..., T, width) sines (even features) and cosines (odd) of place / 10000^(2⌊i/2⌋/width)
    (Vaswani et al. 2017, §3.5)."""
    feature = torch.arange(width, device=places.device)
    angles = places.unsqueeze(-1) / 10000 ** (feature // 2 * 2 / width)
    return torch.where(feature % 2 == 0, angles.sin(), angles.cos())


class MLP(Encoder):
    """Two ReLU layers applied to each token alone; width is hidden_size. Context-free."""

    reach = 0

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

    reach = 0

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
        self.reach = encoder.reach
        self.states = states
        self.width = encoder.width + (embedding_size if states == "concat" else 0)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.inner(embeddings, mask)
        kept = embeddings * mask.unsqueeze(-1)
        return torch.cat([hidden, kept], dim=-1) if self.states == "concat" else hidden + kept


#: what a hidden state is made of
STATES = ("plain", "concat", "residual")

#: name -> encoder
ENCODERS: dict[str, type[Encoder]] = {
    "bilstm": BiLSTM,
    "cnn": CNN,
    "transformer": Transformer,
    "mlp": MLP,
    "average": Average,
}


def encoder(name: str, embedding_size: int, hidden_size: int, layers: int | None = None) -> Encoder:
    """A new encoder of that name in ENCODERS. layers: None for the usual number. Raises ModelError for layers of an
    encoder that does not stack them, and for fewer than one."""
    kind = ENCODERS[name]
    if layers is None:
        return kind(embedding_size, hidden_size)
    if kind.depth is None:
        stacking = " or ".join(f"'{other}'" for other, one in ENCODERS.items() if one.depth is not None)
        raise ModelError(
            f"layers is {layers}, but the encoder '{name}' does not stack layers: leave --layers out, or give "
            f"--encoder {stacking}."
        )
    if layers < 1:
        raise ModelError(f"layers is {layers}: expected a whole number of at least 1.")
    return kind(embedding_size, hidden_size, layers)
