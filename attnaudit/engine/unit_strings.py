"""Encode all instances before the first pass, to get their units as strings, numbers of tokens, and hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

import numpy as np

from attnaudit.adapters.protocol import TEXT, Inputs, ModelAdapter
from attnaudit.engine.clean_pass import Unit
from attnaudit.engine.failures import with_its_row
from attnaudit.errors import AuditError, DataError
from attnaudit.instances import Instance

#: Number of instances that are encoded at once.
ENCODE_AT_ONCE = 512
#: The same number for instances that are files, whose contents need much more memory than a text.
FILES_AT_ONCE = 32


def encode_instances(
    adapter: ModelAdapter, instances: Sequence[Instance], unit: Unit
) -> tuple[list[list[str]], list[int], list[bytes]]:
    """Encode every instance, and return what the engine must know before the first pass.

    Args:
        adapter: the model.
        instances: the n instances.
        unit: "tokens" or "words".

    Returns:
        Three lists with n entries: the real units of each instance as strings; its number of tokens, including special
        tokens; and a hash of its tokens. The hash is equal for instances that the model cannot distinguish.

    Raises:
        DataError: an instance has no real tokens, or it has a query but the model reads none.
        AuditError: the adapter raised an error for an instance. The message names the row.
    """
    units: list[list[str]] = []
    widths: list[int] = []
    sequences: list[bytes] = []
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
        try:
            inputs = adapter.collate(chunk)
        except AuditError:
            raise
        except Exception as error:
            raise with_its_row(error, [(one, partial(adapter.collate, [one])) for one in chunk]) from error
        sequences += _token_hashes(inputs)
        real = inputs.real().cpu()
        words = inputs.words[TEXT].cpu() if TEXT in inputs.words else None
        for b, instance in enumerate(chunk):
            strings = inputs.tokens[TEXT][b]
            offset = int(inputs.mask[TEXT][b].int().argmax())
            flags = real[b, offset : offset + len(strings)].tolist()
            positions = [position for position, is_real in enumerate(flags) if is_real]
            row = [interned.setdefault(strings[position], strings[position]) for position in positions]
            if not row:
                raise DataError(
                    f"{instance.where or instance.id}: the text {instance.text[:40]!r} has no real tokens after "
                    "tokenisation, so there is nothing to attend to. Remove the row or give it text."
                )
            if unit == "words" and words is not None:
                numbers = [int(words[b, offset + position]) for position in positions]
                grouped = groupby(zip(numbers, row), key=itemgetter(0))
                row = ["".join(string for _, string in members) for _, members in grouped]
            units.append(row)
            widths.append(int(inputs.mask[TEXT][b].sum()))
    return units, widths, sequences


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
