"""The options of one run of `attnaudit reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnaudit.models.word_vectors import Vectors
from attnaudit.research.reproduction.paper_tables import Paper

DEFAULT_SEEDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproductionOptions:
    """The options of one run: what it measures, and where it writes.

    Attributes:
        paper: The paper.
        out: The folder for data, models, measurements and reports.
        command: The shell command that measures the same rows again. The report shows it.
        data_root: The folder with the paper's corpora. None for the packaged movie sentences.
        tables: The names of the tables to measure. An empty list selects all tables.
        only: Patterns of row names, such as "sst/*". An empty list selects all rows.
        seeds: The number of seeds per row. One model is trained for each seed and each role of the row. None for the
            planned number, or DEFAULT_SEEDS where there is no plan.
        instances: The largest number of test texts per corpus. None for all of them.
        jobs: The number of processes.
        quick: Whether to use small data, small models and one seed. Reports of quick runs are marked, and they are
            written to a separate folder.
        vectors: The word vectors that the embeddings start from. The rows are then written to a separate report. None
            for random embeddings.
    """

    paper: Paper
    out: Path
    command: str
    data_root: Path | None = None
    tables: Sequence[str] = ()
    only: Sequence[str] = ()
    seeds: int | None = None
    instances: int | None = None
    jobs: int = 1
    quick: bool = False
    vectors: Vectors | None = None

    @property
    def folder(self) -> Path:
        """The folder for all output.

        A quick run has a separate folder, so that its results are not mixed with those of full runs.
        """
        return self.out / "quick" if self.quick else self.out

    @property
    def reports(self) -> Path:
        """The folder for reports."""
        return self.folder / "papers"

    @property
    def stem(self) -> str:
        """The name of the report's files, without their extension."""
        embedded = "" if self.data_root else "-embedded"
        vectors = f"-{self.vectors.name}" if self.vectors else ""
        return f"{self.paper.name}{embedded}{vectors}{'-quick' if self.quick else ''}"
