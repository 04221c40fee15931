"""What a measure returns for one batch, before it is laid out per instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.measurements import Measurements


@dataclass(slots=True, kw_only=True)
class Columns:
    """scalars: name -> (B,). tokens: name -> (B, T), read at real tokens only. vectors: name -> (B, L).
    facts: name -> a word about how it was measured."""

    scalars: dict[str, Tensor] = field(default_factory=dict)
    tokens: dict[str, Tensor] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)

    def update(self, other: Columns) -> None:
        self.scalars.update(other.scalars)
        self.tokens.update(other.tokens)
        self.vectors.update(other.vectors)
        self.facts.update(other.facts)


class Measure(Protocol):
    """One measure. requires: names of measures whose columns it reads. gradients: whether it differentiates through the
    clean pass. reads: whether it depends on the reading; if not, it is measured once for all of them. A measure over
    the whole data set gathers in `compute` and adds tables in `finish`."""

    @property
    def name(self) -> str: ...

    @property
    def requires(self) -> tuple[str, ...]: ...

    @property
    def gradients(self) -> bool: ...

    @property
    def depends_on_reading(self) -> bool: ...

    def start(self, lengths: Sequence[int]) -> None:
        """Called once, with the number of real tokens of every instance."""

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        """The columns of one batch; `columns` holds those of `requires`. May be called again after a lack of memory."""
        ...

    def finish(self, measurements: Measurements) -> None:
        """Called once, after the last batch."""


@dataclass(frozen=True, kw_only=True)
class PerBatch:
    """Base of measures that need nothing but the batch."""

    name: str
    requires: tuple[str, ...] = ()
    gradients: bool = False

    @property
    def depends_on_reading(self) -> bool:
        return True

    def start(self, lengths: Sequence[int]) -> None:
        return None

    def finish(self, measurements: Measurements) -> None:
        return None
