"""Encoders: functions that turn embeddings into hidden states.

An encoder maps embeddings (B, T, d) and a mask (B, T), True on tokens, to hidden states (B, T, m). Hidden states are
zero on padding. The hidden states of a row must depend neither on its padding, left or right, nor on the other rows of
the batch.

To add an encoder, write a subclass of `Encoder` and add it to `ENCODERS`. It needs `__init__(embedding_size,
hidden_size)` and the attribute `width`, the number of features m. An encoder that stacks layers also sets `depth` to
the default number of layers, and takes the number of layers as a third argument.
"""

from __future__ import annotations

import contextlib
import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnaudit.adapters.pooled.ordered_tokens import in_order, reordered, select_positions
from attnaudit.errors import ModelError


class Encoder(nn.Module):
    """The base class of all encoders.

    Attributes:
        width: Number of features of a hidden state (m).
        depth: Default number of layers of an encoder that stacks layers; None for other encoders.
        reach: Largest distance, in tokens, at which a token can affect a hidden state; None if there is no limit.
    """

    width: int
    depth: ClassVar[int | None] = None
    reach: int | None = None

    def __init__(self, *_sizes: int) -> None:
        super().__init__()

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return one state per row, as a representation of its query. By default, it is the mean over the tokens'
        states.

        Args:
            hidden: (B, T, m) hidden states, zero on padding.
            mask: (B, T) mask, True on tokens.

        Returns:
            (B, m) states.
        """
        return hidden.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp_min(1)


class BiLSTM(Encoder):
    """A bidirectional LSTM. Its `width` is 2 * hidden_size.

    Jain & Wallace 2019 use one layer with 128 units per direction. Tutek & Šnajder 2020, appendix, use up to three
    layers. One LSTM reads the tokens in order, and another reads them in reverse. For both, the tokens are moved to the
    left, so padding follows them and affects no hidden state. Packed sequences are not used because their gradients are
    slow.
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
        """The forward and the backward LSTM, for the argument `lstm` of `PooledAttentionAdapter`.

        None if there are several layers.
        """
        return (self.forwards, self.backwards) if self.above is None else None

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        lengths = mask.sum(1, keepdim=True)
        mirrored = torch.where(places < lengths, lengths - 1 - places, places)
        if torch.equal(mask, places < lengths):  # all padding is on the right
            forwards = self._hidden(self.forwards, embeddings)
            backwards = self._hidden_in_reverse(embeddings, mirrored)
        else:
            ordered, _ = in_order(mask)
            forwards = select_positions(
                self._hidden(self.forwards, select_positions(embeddings, ordered)), torch.argsort(ordered, dim=1)
            )
            mirrored = ordered.gather(1, mirrored)
            backwards = self._hidden(self.backwards, select_positions(embeddings, mirrored))
            backwards = select_positions(backwards, torch.argsort(mirrored, dim=1))
        hidden = torch.cat([forwards, backwards], dim=-1).mul_(mask.unsqueeze(-1))
        return hidden if self.above is None else torch.as_tensor(self.above(hidden, mask))

    def _hidden_in_reverse(self, embeddings: Tensor, mirrored: Tensor) -> Tensor:
        """Return the (B, T, h) hidden states of the backward LSTM at every position.

        PyTorch's LSTM copies its inputs so that the rows of one position are neighbours in memory. The embeddings are
        selected in this layout, and the states are selected from it, so that nothing is copied twice.

        Args:
            embeddings: (B, T, d) embeddings.
            mirrored: (B, T) for each position, the position that the LSTM reads instead. It is its own inverse.
        """
        count, width = mirrored.shape
        rows = torch.arange(count, device=mirrored.device).unsqueeze(1)
        by_position, by_row = (mirrored + rows * width).T.flatten(), (mirrored * count + rows).flatten()
        read = reordered(embeddings.flatten(0, 1), by_position, by_row)
        hidden = self._hidden(self.backwards, read.view(width, count, -1).transpose(0, 1)).transpose(0, 1)
        return reordered(hidden.flatten(0, 1), by_row, by_position).view(count, width, -1)

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the (B, m) concatenation of the final states of both directions."""
        rows = torch.arange(len(mask), device=mask.device)
        first = mask.int().argmax(dim=1)
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(dim=1)
        forwards, backwards = hidden.chunk(2, dim=-1)
        return torch.cat([forwards[rows, last], backwards[rows, first]], dim=-1)

    @staticmethod
    def _hidden(lstm: nn.LSTM, inputs: Tensor) -> Tensor:
        """Return the (B, T, h) hidden states of one direction, which reads the inputs in order."""
        with _differentiable_in_evaluation(lstm, inputs):
            hidden: Tensor = lstm(inputs)[0]
        return hidden


def _differentiable_in_evaluation(layer: nn.RNNBase, embeddings: Tensor) -> contextlib.AbstractContextManager[None]:
    """Return a context in which gradients through a recurrent layer can be computed in evaluation mode.

    cuDNN has no backward pass in evaluation mode, so the context disables it on CUDA if gradients are enabled.
    """
    if embeddings.is_cuda and not layer.training and torch.is_grad_enabled():
        flags: contextlib.AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=False)
        return flags
    return contextlib.nullcontext()


class GRU(Encoder):
    """A gated recurrent unit that reads from left to right (Cho et al. 2014). Its `width` is hidden_size.

    A state depends on its token and on the tokens before it. The tokens are moved to the left, so padding follows them
    and affects no hidden state.
    """

    def __init__(self, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        self.width = hidden_size
        self.layer = nn.GRU(embedding_size, hidden_size, batch_first=True)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        order, _ = in_order(mask)
        with _differentiable_in_evaluation(self.layer, embeddings):
            hidden, _ = self.layer(select_positions(embeddings, order))
        return select_positions(hidden, torch.argsort(order, dim=1)) * mask.unsqueeze(-1)

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the (B, m) states of the last tokens."""
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(dim=1)
        return hidden[torch.arange(len(mask), device=mask.device), last]


class CNN(Encoder):
    """Convolutions with filters of several widths. Their features are concatenated, and ReLU is applied to them.

    This is the encoder of Jain & Wallace 2019, with the filter widths of Wen et al. 2022, appendix A. Its `width` is
    hidden_size. The features are divided equally among the filter widths, and the narrowest filters get the remainder.
    The text is padded with zeros on both sides.

    Raises:
        ModelError: hidden_size is smaller than the number of filter widths.
    """

    FILTERS: ClassVar[tuple[int, ...]] = (1, 3, 5, 7, 15)
    reach = 7

    def __init__(self, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        count = len(self.FILTERS)
        if hidden_size < count:
            raise ModelError(
                f"hidden_size is {hidden_size}, but the encoder has {count} filters. Use --hidden-size {count} or more."
            )
        self.width = hidden_size
        self.filters = nn.ModuleList(
            nn.Conv1d(embedding_size, hidden_size // count + (index < hidden_size % count), size, padding=size // 2)
            for index, size in enumerate(self.FILTERS)
        )

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        features = (embeddings * mask.unsqueeze(-1)).transpose(1, 2)
        hidden = torch.cat([convolution(features) for convolution in self.filters], dim=1).transpose(1, 2)
        return torch.relu(hidden) * mask.unsqueeze(-1)

    def summary(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the (B, m) maximum of each feature. Zeros on padding do not matter, as features are never negative."""
        return hidden.amax(dim=1)


class NarrowCNN(CNN):
    """A `CNN` with the filter widths 1, 3, 5 and 7 of the published code of Jain & Wallace 2019."""

    FILTERS: ClassVar[tuple[int, ...]] = (1, 3, 5, 7)
    reach = 3


class SelfAttention(nn.Module):
    """A Transformer layer with one head (Vaswani et al. 2017).

    It consists of self-attention and a feed-forward layer with ReLU. Each is followed by a residual connection and
    layer normalisation.

    Args:
        size: Number of features of the states and of every inner layer.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.feed = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))
        self.after_attention, self.after_feed = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        output: Tensor = self.after_feed(self.unnormalised(states, mask))
        return output

    def unnormalised(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the (B, T, m) states before the layer normalisation that ends the layer."""
        scores = self.query(states) @ self.key(states).transpose(1, 2) / math.sqrt(states.shape[-1])
        lowest = torch.finfo(scores.dtype).min  # with -inf, a row without any token would become NaN
        weights = scores.masked_fill(~mask.unsqueeze(1), lowest).softmax(dim=-1)
        states = self.after_attention(states + self.out(weights @ self.value(states)))
        return torch.as_tensor(states + self.feed(states))


class Transformer(Encoder):
    """Self-attention layers over embeddings with sinusoidal positions. Its `width` is hidden_size.

    Meister et al. 2021 use two layers with one head and 128 features throughout. Embeddings of another size are first
    mapped to hidden_size features. Positions count tokens only, so padding on the left does not shift them.
    """

    depth = 2

    def __init__(self, embedding_size: int, hidden_size: int, layers: int = 2) -> None:
        super().__init__()
        self.width = hidden_size
        same_size = embedding_size == hidden_size
        self.enter: nn.Module = nn.Identity() if same_size else nn.Linear(embedding_size, hidden_size)
        self.stack = nn.ModuleList(SelfAttention(hidden_size) for _ in range(layers))

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        return self.with_unnormalised(embeddings, mask)[0]

    def with_unnormalised(self, embeddings: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states (B, T, m), and the states before the normalisation that ends the last layer."""
        places = (mask.long().cumsum(dim=1) - 1).clamp_min(0)
        states = self.enter(embeddings) * math.sqrt(self.width) + sinusoids(places, self.width).to(embeddings.dtype)
        unnormalised = states
        for layer in self.stack:
            assert isinstance(layer, SelfAttention)
            unnormalised = layer.unnormalised(states, mask)
            states = layer.after_feed(unnormalised)
        tokens = mask.unsqueeze(-1)
        return torch.as_tensor(states * tokens), torch.as_tensor(unnormalised * tokens)


def sinusoids(places: Tensor, width: int) -> Tensor:
    """Return sinusoidal position encodings (Vaswani et al. 2017, §3.5).

    Args:
        places: (..., T) positions, counted from 0.
        width: Number of features.

    Returns:
        (..., T, width) encodings. Feature i of a position p is the sine (even i) or cosine (odd i) of p /
        10000^(2⌊i/2⌋/width).
    """
    feature = torch.arange(width, device=places.device)
    angles = places.unsqueeze(-1) / 10000 ** (feature // 2 * 2 / width)
    return torch.where(feature % 2 == 0, angles.sin(), angles.cos())


class MLP(Encoder):
    """Two linear layers with ReLU, applied to each token separately, without context. Its `width` is hidden_size."""

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
    """A linear layer with tanh, applied to each token separately, without context. Its `width` is hidden_size.

    Jain & Wallace 2019 call this encoder "average".
    """

    reach = 0

    def __init__(self, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        self.width = hidden_size
        self.linear = nn.Linear(embedding_size, hidden_size)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(self.linear(embeddings)) * mask.unsqueeze(-1)


class Joined(Encoder):
    """A wrapper that concatenates or adds each token's embedding to its hidden state (Tutek & Šnajder 2020, §4).

    Args:
        encoder: The encoder to wrap.
        embedding_size: Number of features of an embedding.
        states: "concat" for the hidden state h = [encoder(e); e], or "residual" for h = encoder(e) + e, where e is the
            embedding.

    Raises:
        ModelError: `states` is "residual", and the encoder's states do not have the size of an embedding.
    """

    def __init__(self, encoder: Encoder, embedding_size: int, states: str) -> None:
        super().__init__()
        if states == "residual" and encoder.width != embedding_size:
            raise ModelError(
                f"residual states add the embedding ({embedding_size} features) to the encoder's hidden state "
                f"({encoder.width} features), so both must have the same size. Use --embedding-size {encoder.width}, "
                "or change --hidden-size."
            )
        self.inner = encoder
        self.reach = encoder.reach
        self.states = states
        self.width = encoder.width + (embedding_size if states == "concat" else 0)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.inner(embeddings, mask)
        own_embedding = embeddings * mask.unsqueeze(-1)
        return torch.cat([hidden, own_embedding], dim=-1) if self.states == "concat" else hidden + own_embedding


#: Values of `Architecture.states`.
STATES = ("plain", "concat", "residual")

#: Name -> encoder class.
ENCODERS: dict[str, type[Encoder]] = {
    "bilstm": BiLSTM,
    "gru": GRU,
    "cnn": CNN,
    "narrow_cnn": NarrowCNN,
    "transformer": Transformer,
    "mlp": MLP,
    "average": Average,
}


def encoder(name: str, embedding_size: int, hidden_size: int, layers: int | None = None) -> Encoder:
    """Build an encoder with random weights.

    Args:
        name: A name in `ENCODERS`.
        embedding_size: Number of features of an embedding.
        hidden_size: Number of features of a hidden state; for "bilstm", of each direction.
        layers: Number of stacked layers; None for the default.

    Raises:
        ModelError: `layers` is below 1, or the encoder does not stack layers although `layers` is given, or the sizes
            are invalid for the encoder.
    """
    encoder_class = ENCODERS[name]
    if layers is None:
        return encoder_class(embedding_size, hidden_size)
    if encoder_class.depth is None:
        stacking = " or ".join(f"'{other}'" for other, item in ENCODERS.items() if item.depth is not None)
        raise ModelError(
            f"layers is {layers}, but the encoder '{name}' does not stack layers. Remove --layers, or use "
            f"--encoder {stacking}."
        )
    if layers < 1:
        raise ModelError(f"layers is {layers}: expected a whole number of at least 1.")
    return encoder_class(embedding_size, hidden_size, layers)
