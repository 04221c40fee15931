"""Instances and data sets, in the form that the whole package uses. Importing this module imports no torch."""

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
            together. None if the instance is a source by itself. An audit also merges a source into another source that
            contains all of its texts (see `attnaudit.engine.merged_sources`).
        where: The file and the row, such as "dev.csv:12", for messages; "" if they are unknown.
        drawn: The position of the row in the random order in which rows were read, counted from 0. None if the order is
            derived from the ids (see `attnaudit.data.sample`).
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
    """A data set: its instances and their origin.

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

        The hash does not depend on the order of the rows.
        """
        digest = hashlib.sha256()
        for instance in sorted(self.instances, key=lambda i: i.id):
            for part in (instance.id, instance.text, instance.query or "", instance.label or ""):
                digest.update(part.encode())
                digest.update(b"\x1f")
            digest.update(b"\x1e")
        return digest.hexdigest()

    def audited_sha256(self) -> str:
        """Hash everything that affects the result of an audit: ids, texts, queries, labels, sources and `drawn`.

        Checkpoints store the other hash, `sha256`, which covers neither the sources nor `drawn`. Neither hash
        depends on the order of `instances`.
        """
        digest = hashlib.sha256()
        for one in sorted(self.instances, key=lambda i: i.id):
            # JSON escapes quotes and line breaks, so no text can look like several fields or rows.
            fields = [one.id, one.text, one.query, one.label, one.source]
            drawn = [] if one.drawn is None else [one.drawn]
            digest.update(json.dumps([*fields, *drawn]).encode() + b"\n")
        return digest.hexdigest()
