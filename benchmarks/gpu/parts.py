"""Time the parts of a forward pass that every program needs, and what attnaudit does with the tokenizer's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from attnaudit.engine.unit_strings import encode_instances
from attnaudit.instances import Dataset
from benchmarks.speed import device
from benchmarks.speed.minilm import LONGEST, Rival, batch_size
from benchmarks.speed.subjects import long_texts, minilm, minilm_as_it_ships, short_texts

REPEATS = 3


def measured(quick: bool) -> Iterator[dict[str, Any]]:
    """Time the parts of forward passes of a BERT of the size of MiniLM, and yield the shortest of several times.

    Yields:
        texts: the lengths of the texts. instances, tokens: how many there are. batch: the number of texts in a batch.
        tokenizer: the time of the tokenizer's call. encoding: the time in which the engine encodes the instances,
        without that call. passes: the time of the passes of the unmodified model. All times are in seconds.
    """
    yield _parts("n≈20", short_texts(32 if quick else 2026))
    if not quick:
        yield _parts("n≈124", long_texts(256))
        yield _parts("n≈1,024", long_texts(64, 1024))


def _parts(texts: str, data: Dataset) -> dict[str, Any]:
    subject = minilm(texts, data, max_position_embeddings=LONGEST)
    rival = Rival(minilm_as_it_ships(max_position_embeddings=LONGEST))
    read = rival.reader(subject)
    ids = read()
    batches = [{"input_ids": tokens, **others} for _, tokens, others in rival.batches(ids)]

    def passes() -> None:
        with torch.no_grad():
            for batch in batches:
                rival.model(**batch)

    tokenizer = _shortest(read)
    encoding = _shortest(lambda: encode_instances(subject.adapter, data.instances, "tokens"))
    return {
        "texts": texts,
        "instances": len(ids),
        "tokens": sum(map(len, ids)),
        "batch": batch_size(),
        "tokenizer": tokenizer,
        "encoding": max(0.0, encoding - tokenizer),
        "passes": _shortest(passes),
    }


def _shortest(work: Callable[[], object]) -> float:
    """Return the shortest time of several calls, in seconds."""
    times = []
    for _ in range(REPEATS):
        started = device.now()
        work()
        times.append(device.now() - started)
    return min(times)
