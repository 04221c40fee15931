"""Named features in the residual stream of a compiled Transformer.

Every feature is a direction of the stream. The directions are orthonormal, randomly rotated, and orthogonal to the
vector of ones. This gives the state of every token a mean of zero. The constant feature is chosen so that the state of
every token has the norm √d before the first layer. Layer normalisation therefore changes nothing in the first layer,
and little in later ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

#: Feature name -> value or coefficient.
Features = Mapping[str, float]

#: Features that are single numbers.
SCALARS = (
    "constant", "read", "sink", "first", "cue", "weak", "group", "decoy", "content", "trigger", "chosen", "after",
    "marker", "flag", "junk",
)  # fmt: skip
#: Features with one number per class.
PER_CLASS = ("evidence", "neighbour", "shared", "moved")
#: Frequencies of the position code, in turns per 64 positions, and the amplitude of each wave.
FREQUENCIES, AMPLITUDE = (1, 5, 11, 23), 0.5
POSITIONS = 64


class FeatureSpace:
    """The features of one compiled model, and their directions.

    Args:
        width: The width d of the residual stream.
        classes: The number of classes C.
        seed: The seed of the rotation.

    Attributes:
        width: The width d of the residual stream.
        classes: The number of classes C.
        names: The names of the features. Features per class are named like "evidence.0".
        basis: (d, d - 1) directions. The first directions are those of the features.
    """

    def __init__(self, width: int, classes: int, seed: int) -> None:
        self.width, self.classes = width, classes
        waves = [f"{wave}.{turns}" for turns in FREQUENCIES for wave in ("cosine", "sine")]
        self.names = (*SCALARS, *(f"{name}.{c}" for name in PER_CLASS for c in range(classes)), *waves)
        if len(self.names) > width - 9:
            raise ValueError(f"{len(self.names)} features need a width of at least {len(self.names) + 9}; got {width}")
        noise = torch.randn(width, width - 1, generator=torch.Generator().manual_seed(seed))
        columns = torch.cat([torch.ones(width, 1), noise], dim=1)
        self.basis = torch.linalg.qr(columns.double()).Q[:, 1:].float()

    @cached_property
    def constant(self) -> float:
        """The approximate value of the constant feature in every token."""
        return math.sqrt(self.width - 4.0)

    def each(self, name: str) -> list[str]:
        """Return the features that a name stands for: one per class for names in PER_CLASS, else the name alone."""
        return [f"{name}.{c}" for c in range(self.classes)] if name in PER_CLASS else [name]

    def row(self, features: Features) -> Tensor:
        """Return coefficients as a vector (F,) over all features."""
        vector = torch.zeros(len(self.names))
        for name, value in features.items():
            vector[self.names.index(name)] = value
        return vector

    def read(self, rows: Tensor) -> Tensor:
        """Return a matrix (n, d) that reads combinations (n, F) of features from the stream."""
        weights: Tensor = rows @ self.basis[:, : len(self.names)].T
        return weights

    def write(self, columns: Tensor) -> Tensor:
        """Return a matrix (d, n) that writes combinations (F, n) of features into the stream."""
        weights: Tensor = self.basis[:, : len(self.names)] @ columns
        return weights

    def embed(self, tokens: Sequence[Features], *, with_positions: bool, seed: int) -> Tensor:
        """Return the embeddings (V, d) of tokens with some features and a random component that identifies the token.

        The constant feature is chosen so that the embedding of a token plus that of its position has the norm √d.

        Args:
            tokens: The features of each token.
            with_positions: Whether embeddings of positions are added to the embeddings.
            seed: The seed of the random components.
        """
        extra = self.basis.shape[1] - len(self.names)
        identity = torch.randn(len(tokens), extra, generator=torch.Generator().manual_seed(seed))
        identity *= 0.7 / identity.norm(dim=1, keepdim=True)
        values = torch.cat([torch.stack([self.row(features) for features in tokens]), identity], dim=1)
        used = values.square().sum(1) + (self._position_square if with_positions else 0.0)
        values[:, self.names.index("constant")] = (self.width - used).sqrt()
        embeddings: Tensor = values @ self.basis.T
        return embeddings

    @property
    def _position_square(self) -> float:
        return len(FREQUENCIES) * AMPLITUDE**2

    def embed_positions(self) -> Tensor:
        """Return the embeddings (64, d) of the positions. Position 1, after [CLS], has the feature "first"."""
        rows = []
        for position in range(POSITIONS):
            features = {"first": 1.0} if position == 1 else {}
            for turns in FREQUENCIES:
                angle = 2 * math.pi * turns * position / POSITIONS
                features |= {
                    f"cosine.{turns}": AMPLITUDE * math.cos(angle),
                    f"sine.{turns}": AMPLITUDE * math.sin(angle),
                }
            rows.append(self.row(features))
        return self.write(torch.stack(rows).T).T

    def previous_token(self) -> tuple[Tensor, Tensor]:
        """Return query and key rows (8, F) whose product has its largest value, 4, at the token before the query."""
        queries, keys = [], []
        for turns in FREQUENCIES:
            angle = 2 * math.pi * turns / POSITIONS
            cosine, sine = f"cosine.{turns}", f"sine.{turns}"
            queries += [
                self.row({cosine: math.cos(angle) / AMPLITUDE, sine: math.sin(angle) / AMPLITUDE}),
                self.row({cosine: -math.sin(angle) / AMPLITUDE, sine: math.cos(angle) / AMPLITUDE}),
            ]
            keys += [self.row({cosine: 1 / AMPLITUDE}), self.row({sine: 1 / AMPLITUDE})]
        return torch.stack(queries), torch.stack(keys)
