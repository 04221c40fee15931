"""The columns that a measure returns for one batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from attnaudit.engine.ragged_columns import Array


@dataclass(slots=True, kw_only=True)
class Columns:
    """Columns of one batch of B instances, padded to T tokens.

    Attributes:
        scalars: Column name -> (B,) one number per instance.
        tokens: Column name -> (B, T) one number per unit (a token or a word). Only the numbers of real units are kept.
        vectors: Column name -> (B, L) L numbers per instance.
        facts: Name -> a short text that says how something was measured, such as "adversarial.method" -> "exact".
        states: Name -> B arrays, one per instance, that `StatefulMeasure.finish` reads from `Measurements.states`. They
            are not results: no check sees them, and they are kept on disk only until `finish` reads them. The arrays
            must have the same data type, and their shapes may differ only in the first dimension.
    """

    scalars: dict[str, Tensor] = field(default_factory=dict)
    tokens: dict[str, Tensor] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    states: dict[str, list[Array]] = field(default_factory=dict)

    def update(self, other: Columns) -> None:
        """Add the columns of another measure for the same batch."""
        self.scalars.update(other.scalars)
        self.tokens.update(other.tokens)
        self.vectors.update(other.vectors)
        self.facts.update(other.facts)
