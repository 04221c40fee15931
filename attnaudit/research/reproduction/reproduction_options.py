"""What is asked of a reproduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnaudit.models.word_vectors import Vectors
from attnaudit.research.reproduction.paper_tables import Paper


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """tables: names, all where empty. only: patterns of row names such as "sst/*", all rows where empty. instances: at
    most so many of each test set. quick: small data, small models, one seed; its output is marked so and kept apart.
    vectors: word vectors that embeddings start from; such rows have a report of their own."""

    paper: Paper
    out: Path
    command: str
    data_root: Path | None = None
    tables: Sequence[str] = ()
    only: Sequence[str] = ()
    seeds: int = 3
    instances: int | None = None
    jobs: int = 1
    quick: bool = False
    vectors: Vectors | None = None

    @property
    def folder(self) -> Path:
        """Where everything goes: a quick run never mixes with a real one."""
        return self.out / "quick" if self.quick else self.out

    @property
    def report(self) -> str:
        """The stem of the report's files."""
        stem = self.random + (f"-{self.vectors.name}" if self.vectors else "")
        return f"{stem}-quick" if self.quick else stem

    @property
    def random(self) -> str:
        """The stem of the report from random embeddings."""
        return self.paper.name if self.data_root else f"{self.paper.name}-embedded"

    @property
    def embeddings(self) -> str:
        """What tables say of them."""
        if self.vectors is None:
            return self.paper.embeddings
        return (
            f"Embeddings start from {self.vectors.name} ({self.vectors.width} wide) and are trained further, but those "
            "of bAbI are random. Words without a vector start at random, as large as those with one; words seen once "
            "in training are read as unknown. Where the paper's hidden states are as wide as its embeddings, ours are."
        )
