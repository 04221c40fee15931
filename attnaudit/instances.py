"""Instances and data sets, in the form that the whole package uses. Importing this module does not import torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One input of the model.

    Attributes:
        id: The name of the instance, unique within its data set.
        text: The text that the model reads. For an instance that is a file, a short name for reports and messages.
        label: The name of the class of the instance; None if it has no label.
        labels: The names of all labels that apply, for models that assign any number of labels; None if they are
            unknown. An empty tuple means that no label applies.
        query: A second text, such as the hypothesis in natural language inference or a question; None for a model that
            reads one text.
        file: The absolute path of the file that the model reads instead of a text, such as a picture or an array of
            features; None for a text.
        file_sha256: The SHA-256 hash of the contents of `file`, in hexadecimal; "" if there is no file.
        passages: The passages that the model reads next to the text, such as retrieved documents, in their order.
        answer: The string whose probability is explained; None if the target does not differ by row.
        position: The index of the word at which a tag is explained, counted from 0; None if the target is not a tag.
        source: The origin of the text, such as a document or an author. Instances with the same source are resampled
            together. None if the instance has no source in common with others. An audit also merges a source into
            another source that contains all of its texts (see `attnaudit.engine.merged_sources`).
        where: The file and the row, such as "dev.csv:12", for messages; "" if they are unknown.
        drawn: The position of the row in the random order in which rows were read, counted from 0. None if the order is
            derived from the ids (see `attnaudit.data.sample`).
    """

    id: str
    text: str
    label: str | None = None
    query: str | None = None
    labels: tuple[str, ...] | None = None
    file: str | None = None
    file_sha256: str = ""
    passages: tuple[str, ...] = ()
    answer: str | None = None
    position: int | None = None
    source: str | None = None
    where: str = ""
    drawn: int | None = None

    def further_fields(self) -> dict[str, object]:
        """Return the fields, other than text, query and label, that are set and affect the model's output or its score.

        The hashes of a data set include these fields. If none is set, the hash of an instance is the same as if the
        fields did not exist. The path of a file is left out, because only the contents of the file matter.
        """
        fields: dict[str, object] = {
            "labels": self.labels,
            "file": self.file_sha256 or None,
            "passages": self.passages or None,
            "answer": self.answer,
            "position": self.position,
        }
        return {name: value for name, value in fields.items() if value is not None}


def by_id(instances: Sequence[Instance]) -> Sequence[Instance]:
    """Return instances sorted by id. A sequence that is already sorted is not copied: it may not fit in memory."""
    return instances if getattr(instances, "sorted_by_id", False) else sorted(instances, key=lambda one: one.id)


def consecutive(instances: Sequence[Instance], start: int, stop: int) -> Sequence[Instance]:
    """Return `instances[start:stop]`. Instances that are not in memory are read when they are first used."""
    later: Callable[[int, int], Sequence[Instance]] | None = getattr(instances, "read_later", None)
    return instances[start:stop] if later is None else later(start, stop)


def ids_of(instances: Sequence[Instance]) -> Sequence[str]:
    """Return the ids of instances, without reading instances that are not in memory."""
    known: Sequence[str] | None = getattr(instances, "ids", None)
    return [one.id for one in instances] if known is None else known


def labels_of(instances: Sequence[Instance]) -> Sequence[str | None]:
    """Return the label of every instance, without reading instances that are not in memory."""
    known: Sequence[str | None] | None = getattr(instances, "labels", None)
    return [one.label for one in instances] if known is None else known


def have_label_lists(instances: Sequence[Instance]) -> bool:
    """Return whether any instance has a list of labels, without reading instances that are not in memory."""
    known: bool | None = getattr(instances, "have_label_lists", None)
    return any(one.labels is not None for one in instances) if known is None else known


def have_sources(instances: Sequence[Instance]) -> bool:
    """Return whether any instance has a source, without reading instances that are not in memory."""
    known: bool | None = getattr(instances, "have_sources", None)
    return any(one.source for one in instances) if known is None else known


class CodedSources(Protocol):
    """The source of each of n instances.

    Attributes:
        codes: (n,) array: the place of the source of each instance in `names`; negative for instances without a source.
        names: The names of the sources, in ascending order.
    """

    codes: Any
    names: Sequence[str]


def sources_of(instances: Sequence[Instance]) -> CodedSources | None:
    """Return the sources of instances that are not in memory; None for other instances, and if there are no sources."""
    known: CodedSources | None = getattr(instances, "sources", None)
    return known


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
    instances: Sequence[Instance]
    classes: tuple[str, ...] = ()
    sample_seed: int | None = None
    rows: int = field(default=-1)

    def sha256(self) -> str:
        """Return the SHA-256 hash, in hexadecimal, of the ids, texts, queries, labels and further fields.

        The hash does not depend on the order of the rows.
        """
        digest = hashlib.sha256()
        for instance in by_id(self.instances):
            for part in (instance.id, instance.text, instance.query or "", instance.label or ""):
                digest.update(part.encode())
                digest.update(b"\x1f")
            if further := instance.further_fields():
                digest.update(json.dumps(further, sort_keys=True).encode())
            digest.update(b"\x1e")
        return digest.hexdigest()

    def audited_sha256(self) -> str:
        """Hash everything that affects the result of an audit: all fields of the instances except `where` and paths.

        Checkpoints store the other hash, `sha256`, which covers neither the sources nor `drawn`. Neither hash
        depends on the order of `instances`.
        """
        digest = hashlib.sha256()
        for one in by_id(self.instances):
            # JSON escapes quotes and line breaks, so no text can look like several fields or rows.
            fields = [one.id, one.text, one.query, one.label, one.source]
            drawn = [] if one.drawn is None else [one.drawn]
            further = list(filter(None, [one.further_fields()]))
            digest.update(json.dumps([*fields, *drawn, *further], sort_keys=True).encode() + b"\n")
        return digest.hexdigest()
