"""Instances and data sets, in the form that all other parts of the package use. Importing this imports no torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One input of the model.

    Attributes:
        id: The name of the instance, unique within its data set.
        text: The text that the model reads.
        label: The name of the class of the instance; None if it has no label.
        query: A second text, such as the hypothesis in natural language inference or a question; None for a model that
            reads one text.
        source: The origin of the text, such as a document or an author. Instances with the same source are resampled
            together. None if the instance is a source by itself. An audit merges sources that repeat each other (see
            `attnaudit.engine.merged_sources`).
        where: The file and the row, such as "dev.csv:12", for messages; "" if they are unknown.
        drawn: The position of the row in the random order in which the rows were read, from 0. None if the order
            follows from the ids (see `attnaudit.data.sample`).
    """

    id: str
    text: str
    label: str | None = None
    query: str | None = None
    source: str | None = None
    where: str = ""
    drawn: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A data set: its instances and where they came from.

    Attributes:
        name: The name that reports show.
        source: The origin of the data, such as a path.
        description: One line about the data; may be empty.
        instances: The instances to audit.
        classes: The labels that occur in the whole data set, sorted; empty if there are no labels.
        sample_seed: The seed of the sample; None if the instances are not a sample.
        rows: The number of rows of the whole data set, before sampling; -1 if it is unknown.
    """

    name: str
    source: str
    description: str
    instances: tuple[Instance, ...]
    classes: tuple[str, ...] = ()
    sample_seed: int | None = None
    rows: int = field(default=-1)

    def sha256(self) -> str:
        """Return the SHA-256 hash, in hexadecimal, of the ids, texts, queries and labels.

        It does not depend on the order of the rows.
        """
        digest = hashlib.sha256()
        for instance in sorted(self.instances, key=lambda i: i.id):
            for part in (instance.id, instance.text, instance.query or "", instance.label or ""):
                digest.update(part.encode())
                digest.update(b"\x1f")
            digest.update(b"\x1e")
        return digest.hexdigest()

    def audited_sha256(self) -> str:
        """Hash everything that decides the result of an audit: ids, texts, queries, labels and sources.

        `sha256`, which checkpoints store, leaves out the sources. Like it, this hash does not depend on the order of
        the rows. It does depend on the random order in which they were drawn, if this does not follow from the ids.
        """
        digest = hashlib.sha256()
        for one in sorted(self.instances, key=lambda i: i.id):
            # As JSON, no character in one text can make it look like several fields or rows.
            fields = [one.id, one.text, one.query, one.label, one.source]
            drawn = [] if one.drawn is None else [one.drawn]
            digest.update(json.dumps([*fields, *drawn]).encode() + b"\n")
        return digest.hexdigest()
