"""Encode all instances before the first pass, to get their units as strings, numbers of tokens, and hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress, groupby
from operator import itemgetter

import numpy as np

from attnaudit.adapters.optional_methods import RowSelectingAdapter
from attnaudit.adapters.protocol import TEXT, Box, Inputs, ModelAdapter, TimeSpan
from attnaudit.engine.clean_pass import Unit
from attnaudit.engine.failures import with_its_row
from attnaudit.errors import AuditError, DataError
from attnaudit.instances import Instance

#: Number of instances that are encoded at once.
ENCODE_AT_ONCE = 512
#: The same number for instances that are files, whose contents need much more memory than a text.
FILES_AT_ONCE = 32


@dataclass(slots=True)
class EncodedInstances:
    """The units, lengths and hashes of n encoded instances, which the engine needs before the first pass.

    Attributes:
        units: the real units of each instance, as strings.
        widths: the number of tokens of each instance, including special tokens.
        sequences: a hash of the tokens of each instance. It is equal for instances that the model cannot distinguish.
        boxes: the box of each unit of each instance that is read from a file; an empty list for an instance whose units
            have no boxes.
        times: the time span of each unit, as in `boxes`.
        inputs: all instances in one batch, if the adapter can select rows of it; otherwise None.
    """

    units: list[list[str]] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    sequences: list[bytes] = field(default_factory=list)
    boxes: list[list[Box]] = field(default_factory=list)
    times: list[list[TimeSpan]] = field(default_factory=list)
    inputs: Inputs | None = None


def encode_instances(adapter: ModelAdapter, instances: Sequence[Instance], unit: Unit) -> EncodedInstances:
    """Encode every instance.

    Args:
        adapter: the model.
        instances: the n instances.
        unit: "tokens", "words" or "sources".

    Raises:
        DataError: an instance has no real tokens, or it has a query or passages but the model reads none.
        AuditError: the adapter raised an error for an instance. The message names the row.
    """
    encoded = EncodedInstances()
    reads_query = adapter.capabilities.query
    interned: dict[str, str] = {}  # one string object per distinct token
    at_once = FILES_AT_ONCE if any(one.file is not None for one in instances) else ENCODE_AT_ONCE
    for chunk in _chunks(instances, at_once):
        for instance in chunk:
            if instance.query is not None and not reads_query:
                raise DataError(
                    f"{instance.where or instance.id}: the row has a query, but the model reads a single text. "
                    "Remove the query column, or audit a model that declares query=True."
                )
            if instance.passages and not adapter.capabilities.passages:
                raise DataError(
                    f"{instance.where or instance.id}: the row has passages, but the model reads none. Remove the "
                    "column 'passages'; or, for a language model, write {passages} into its template (docs/sources.md)."
                )
        try:
            inputs = adapter.collate(chunk)
        except AuditError:
            raise
        except Exception as error:
            raise with_its_row(error, [(one, partial(adapter.collate, [one])) for one in chunk]) from error
        encoded.sequences.extend(_token_hashes(inputs))
        tokens = {
            stream: [list(map(interned.setdefault, row, row)) for row in rows] for stream, rows in inputs.tokens.items()
        }
        if len(chunk) == len(instances) and isinstance(adapter, RowSelectingAdapter) and not inputs.tables:
            encoded.inputs = replace(inputs, tokens=tokens)
        real, mask = inputs.real().cpu().numpy(), inputs.mask[TEXT].cpu().numpy()
        first, lengths = mask.argmax(1).tolist(), mask.sum(1).tolist()
        words = inputs.words[TEXT].cpu() if unit == "words" and TEXT in inputs.words else None
        for b, instance in enumerate(chunk):
            strings, offset = tokens[TEXT][b], first[b]
            is_real = real[b, offset : offset + len(strings)].tolist()
            row = list(compress(strings, is_real))
            if instance.file is not None:
                encoded.boxes.append(list(compress(inputs.boxes[TEXT][b], is_real)) if TEXT in inputs.boxes else [])
                encoded.times.append(list(compress(inputs.times[TEXT][b], is_real)) if TEXT in inputs.times else [])
            if not row:
                raise DataError(
                    f"{instance.where or instance.id}: the text {instance.text[:40]!r} has no real tokens after "
                    "tokenisation, so there is nothing to attend to. Remove the row or give it text."
                )
            if words is not None:
                numbers = compress(words[b, offset:].tolist(), is_real)
                grouped = groupby(zip(numbers, row), key=itemgetter(0))
                row = ["".join(string for _, string in members) for _, members in grouped]
            if unit == "sources":
                of_tokens = compress(inputs.passages[TEXT][b, offset:].tolist(), is_real)
                row = [instance.passages[number] for number in dict.fromkeys(of_tokens)]
            encoded.units.append(row)
            encoded.widths.append(lengths[b])
    return encoded


def _token_hashes(inputs: Inputs) -> list[bytes]:
    """Return a hash of each row's token ids in all streams, without padding."""
    hashes = [b""] * len(inputs.ids[TEXT])
    for stream in sorted(inputs.ids):
        ids, mask = inputs.ids[stream].cpu().numpy().astype(np.int64), inputs.mask[stream].bool().cpu().numpy()
        for row in range(len(hashes)):
            hashes[row] += hashlib.blake2b(ids[row, mask[row]].tobytes(), digest_size=16).digest()
    return hashes


def _chunks(items: Sequence[Instance], size: int) -> Iterator[Sequence[Instance]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
