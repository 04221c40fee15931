"""Instances and data sets as every other part sees them. Imports no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One input.

    id: unique within its data set. label: a class name, or None. query: a second text (NLI, QA), or None.
    source: rows that share a source (a document, an author) are resampled together; without one, rows of one text are.
    where: "file:row", for messages.
    """

    id: str
    text: str
    label: str | None = None
    query: str | None = None
    source: str | None = None
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A named tuple of instances. classes: the labels that occur, sorted; empty when nothing is labelled."""

    name: str
    source: str
    description: str
    instances: tuple[Instance, ...]
    classes: tuple[str, ...] = ()
    sample_seed: int | None = None
    rows: int = field(default=-1)

    def sha256(self) -> str:
        """Hash of ids, texts, queries and labels in the order of the ids: independent of the file's order."""
        digest = hashlib.sha256()
        for one in sorted(self.instances, key=lambda i: i.id):
            for part in (one.id, one.text, one.query or "", one.label or ""):
                digest.update(part.encode())
                digest.update(b"\x1f")
            digest.update(b"\x1e")
        return digest.hexdigest()


def sources_of(instances: Sequence[Instance]) -> list[str]:
    """What each instance is resampled with: its source, else the rows without one that have its text and query, since
    rows that are given twice say no more than once. A row's id is no source of that name."""
    first: dict[tuple[str, str | None], str] = {}
    for one in sorted(instances, key=lambda one: one.id):
        first.setdefault((one.text, one.query), one.id)
    return [f"source {one.source}" if one.source else f"row {first[one.text, one.query]}" for one in instances]
