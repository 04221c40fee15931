"""Instances and data sets, in the form that every other part of the package uses. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One input of the model.

    Attributes:
        id: name of the instance, unique within its data set.
        text: the text that the model reads.
        label: its class name; None if unlabelled.
        query: a second text, such as an NLI hypothesis or a question; None for a model that reads one text.
        source: what the text was taken from, such as a document or an author. Instances with the same source are
            resampled together; None if the instance is a source by itself. An audit merges sources that repeat each
            other (see `attnaudit.engine.merged_sources`).
        where: file and row, such as "dev.csv:12", for messages; "" if unknown.
    """

    id: str
    text: str
    label: str | None = None
    query: str | None = None
    source: str | None = None
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set: its instances and where they came from.

    Attributes:
        name: the name shown in reports.
        source: where the data came from, such as a path.
        description: one line about the data; may be empty.
        instances: the instances to measure.
        classes: the labels that occur, sorted; empty if nothing is labelled.
        sample_seed: the seed that the instances were sampled with; None if all of them are used.
        rows: number of rows of the whole data set before sampling; -1 if unknown.
    """

    name: str
    source: str
    description: str
    instances: tuple[Instance, ...]
    classes: tuple[str, ...] = ()
    sample_seed: int | None = None
    rows: int = field(default=-1)

    def sha256(self) -> str:
        """Hash ids, texts, queries and labels in the order of the ids, so that the row order does not matter."""
        digest = hashlib.sha256()
        for instance in sorted(self.instances, key=lambda i: i.id):
            for part in (instance.id, instance.text, instance.query or "", instance.label or ""):
                digest.update(part.encode())
                digest.update(b"\x1f")
            digest.update(b"\x1e")
        return digest.hexdigest()

    def audited_sha256(self) -> str:
        """Hash everything that decides the result of an audit: ids, texts, queries, labels and sources.

        `sha256` leaves out the sources, and checkpoints contain it. The row order does not matter here either.
        """
        digest = hashlib.sha256()
        for one in sorted(self.instances, key=lambda i: i.id):
            # As JSON, no character in one text can make it look like several fields or rows.
            digest.update(json.dumps([one.id, one.text, one.query, one.label, one.source]).encode() + b"\n")
        return digest.hexdigest()
