"""The options of one run of `attnaudit reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnaudit.models.word_vectors import Vectors
from attnaudit.research.reproduction.paper_tables import Paper


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproductionOptions:
    """The options of one run: what it measures, and where it writes.

    Attributes:
        paper: the paper.
        out: folder for data, models, measurements and reports.
        command: the shell command that measures the same rows again, printed in the report.
        data_root: folder with the paper's corpora; None for the embedded movie sentences.
        tables: names of tables; all tables if empty.
        only: patterns of row names, such as "sst/*"; all rows if empty.
        seeds: number of models per row.
        instances: largest number of test texts per corpus; None for all of them.
        jobs: number of processes.
        quick: use small data, small models and one seed; the output is marked, and written to a separate folder.
        vectors: word vectors that the embeddings start from; such rows go to a separate report. None for random ones.
    """

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
        """The folder for all output. A quick run has a separate one, so that its results never mix with real ones."""
        return self.out / "quick" if self.quick else self.out

    @property
    def reports(self) -> Path:
        """The folder for reports."""
        return self.folder / "papers"

    @property
    def stem(self) -> str:
        """The name of the report's files, without extension."""
        embedded = "" if self.data_root else "-embedded"
        vectors = f"-{self.vectors.name}" if self.vectors else ""
        return f"{self.paper.name}{embedded}{vectors}{'-quick' if self.quick else ''}"
