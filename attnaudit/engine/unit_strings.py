"""Encode instances before they are measured, to get their units as strings, numbers of tokens, and hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, compress, groupby, pairwise
from operator import itemgetter
from typing import cast

import numpy as np
import torch

from attnaudit.adapters.optional_methods import CpuEncodingAdapter, RowSelectingAdapter
from attnaudit.adapters.padding import moved
from attnaudit.adapters.protocol import TEXT, Box, Inputs, ModelAdapter, TimeSpan
from attnaudit.arrays import Integers
from attnaudit.engine.batches.clean_pass import Unit
from attnaudit.engine.batches.failures import with_its_row
from attnaudit.errors import AdapterError, AuditError, DataError
from attnaudit.instances import Instance

#: Number of instances that are encoded at once.
ENCODE_AT_ONCE = 512
#: The same number for instances that are files, whose contents need much more memory than a text.
FILES_AT_ONCE = 32
_CPU = torch.device("cpu")


@dataclass(slots=True)
class EncodedInstances:
    """The units, lengths and hashes of n encoded instances, which the engine needs before their first pass.

    Attributes:
        units: The real units of each instance, as strings.
        widths: The number of tokens of each instance, including special tokens.
        sequences: A hash of the tokens of each instance. It is equal for instances that the model cannot distinguish.
        boxes: The box of each unit of each instance that is read from a file; an empty list for an instance whose units
            have no boxes.
        times: The time span of each unit, as in `boxes`.
        inputs: All instances in one batch on the CPU, if the adapter can select rows of it; otherwise None.
        device: The device that the adapter encodes instances for.
    """

    units: list[list[str]] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    sequences: list[bytes] = field(default_factory=list)
    boxes: list[list[Box]] = field(default_factory=list)
    times: list[list[TimeSpan]] = field(default_factory=list)
    inputs: Inputs | None = None
    device: torch.device = _CPU

    def selected(self, adapter: ModelAdapter, rows: Sequence[int]) -> Inputs | None:
        """Return the batch of some of the instances on the adapter's device; None without `inputs`."""
        if self.inputs is None:
            return None
        return moved(cast(RowSelectingAdapter, adapter).select_rows(self.inputs, rows), self.device)


def encode_instances(
    adapter: ModelAdapter, instances: Sequence[Instance], unit: Unit, *, strings: dict[str, str] | None = None
) -> EncodedInstances:
    """Encode every instance.

    Args:
        adapter: The model.
        instances: The n instances.
        unit: "tokens", "words" or "sources".
        strings: One string object for each distinct token of earlier instances. New ones are added, so that equal
            tokens share their memory. None if there are no earlier instances.

    Raises:
        DataError: An instance has no real tokens, or it has a query or passages but the model reads none.
        AdapterError: A row does not have one string per token.
        AuditError: The adapter raised an error for an instance. The message names the row.
    """
    encoded = EncodedInstances()
    reads_query = adapter.capabilities.query
    strings = {} if strings is None else strings
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
            inputs, device = _collated(adapter, chunk)
        except AuditError:
            raise
        except Exception as error:
            raise with_its_row(error, [(one, partial(_collated, adapter, [one])) for one in chunk]) from error
        tokens = {
            stream: [list(map(strings.setdefault, row, row)) for row in rows] for stream, rows in inputs.tokens.items()
        }
        on_cpu = replace(moved(inputs, _CPU), tokens=tokens)
        if len(chunk) == len(instances) and isinstance(adapter, RowSelectingAdapter) and not inputs.tables:
            encoded.inputs, encoded.device = on_cpu, device
        encoded.sequences.extend(_token_hashes(on_cpu))
        encoded.widths.extend(on_cpu.mask[TEXT].sum(1).tolist())
        _add_units(encoded, on_cpu, chunk, unit)
    return encoded


def encodes_on_cpu(adapter: ModelAdapter) -> bool:
    """Return whether an adapter encodes instances without the model, so that another thread can do it."""
    return isinstance(adapter, CpuEncodingAdapter) and adapter.encodes_on_cpu


def _collated(adapter: ModelAdapter, instances: Sequence[Instance]) -> tuple[Inputs, torch.device]:
    """Return the encoded instances, on the CPU if possible, and the device for which the adapter encodes them."""
    if encodes_on_cpu(adapter):
        able = cast(CpuEncodingAdapter, adapter)
        return able.encode_on_cpu(instances), able.input_device
    inputs = adapter.collate(instances)
    return inputs, inputs.ids[TEXT].device


def _add_units(encoded: EncodedInstances, inputs: Inputs, chunk: Sequence[Instance], unit: Unit) -> None:
    """Add the units of some instances, with their boxes and times.

    Args:
        encoded: The object to extend.
        inputs: The encoded instances, on the CPU.
        chunk: The instances.
        unit: "tokens", "words" or "sources".

    Raises:
        DataError: An instance has no real tokens.
        AdapterError: A row does not have one string per token.
    """
    mask, real = inputs.mask[TEXT].bool().numpy(), inputs.real().numpy()
    for instance, row, count in zip(chunk, inputs.tokens[TEXT], mask.sum(1).tolist(), strict=True):
        if len(row) != count:
            raise AdapterError(
                f"{instance.where or instance.id}: Inputs.tokens has {len(row)} strings, but the row has {count} "
                "tokens. Return one string for each token that is not padding."
            )
    is_real = real[mask].tolist()
    tokens = list(compress(chain.from_iterable(inputs.tokens[TEXT]), is_real))
    words = inputs.words[TEXT].numpy()[real].tolist() if unit == "words" and TEXT in inputs.words else None
    passages = inputs.passages[TEXT].numpy()[real].tolist() if unit == "sources" else None
    places = zip(chunk, _parts(real.sum(1)), _parts(mask.sum(1)), strict=True)
    for b, (instance, part, all_tokens) in enumerate(places):
        row = tokens[part]
        if instance.file is not None:
            of_units = is_real[all_tokens]
            encoded.boxes.append(list(compress(inputs.boxes[TEXT][b], of_units)) if TEXT in inputs.boxes else [])
            encoded.times.append(list(compress(inputs.times[TEXT][b], of_units)) if TEXT in inputs.times else [])
        if not row:
            raise DataError(
                f"{instance.where or instance.id}: the text {instance.text[:40]!r} has no real tokens after "
                "tokenisation, so there is nothing to attend to. Remove the row or give it text."
            )
        if words is not None:
            grouped = groupby(zip(words[part], row, strict=True), key=itemgetter(0))
            row = ["".join(string for _, string in members) for _, members in grouped]
        if passages is not None:
            row = [instance.passages[number] for number in dict.fromkeys(passages[part])]
        encoded.units.append(row)


def _token_hashes(inputs: Inputs) -> list[bytes]:
    """Return a hash of each row's token ids in all streams, without padding. The inputs must be on the CPU."""
    hashes = [b""] * len(inputs.ids[TEXT])
    for stream in sorted(inputs.ids):
        mask = inputs.mask[stream].bool().numpy()
        ids = inputs.ids[stream].numpy()[mask].astype(np.int64)
        for row, part in enumerate(_parts(mask.sum(1))):
            hashes[row] += hashlib.blake2b(ids[part].data, digest_size=16).digest()
    return hashes


def _parts(counts: Integers) -> list[slice]:
    """Return where the entries of each row are in a list of the entries of all rows.

    Args:
        counts: (n,) number of entries of each row.
    """
    return [slice(start, stop) for start, stop in pairwise([0, *counts.cumsum().tolist()])]


def _chunks(items: Sequence[Instance], size: int) -> Iterator[Sequence[Instance]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
