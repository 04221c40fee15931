"""Compute how far apart the attention weights of two models are on the same texts, from the files of two runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.errors import ReportError
from attnaudit.run.verification.stored_numbers import Case

BATCH = 4096


def attention_distances(base: tuple[Path, Case], candidate: tuple[Path, Case]) -> dict[str, float]:
    """Compute the total variation distance between the attention weights of two models for each text.

    The distance is half the sum of the absolute differences of the weights. It is between 0 and 1.

    Args:
        base: The measurements.parquet of the base run, and the case in it to compare.
        candidate: The measurements.parquet of the candidate run, and the case in it to compare.

    Returns:
        Id of an instance -> the distance. An instance is left out if only one of the runs measured it, if the models
        split it into different tokens, or if its attention is undefined.

    Raises:
        ReportError: A file cannot be read.
    """
    before = {instance: (tokens, weights) for instance, tokens, weights in _attention(*base)}
    distances = {}
    for instance, tokens, weights in _attention(*candidate):
        earlier = before.get(instance)
        if earlier is None or earlier[0] != tokens or len(earlier[1]) != len(weights) or not len(weights):
            continue
        distance = 0.5 * float(np.abs(earlier[1] - weights).sum())
        if np.isfinite(distance):
            distances[instance] = distance
    return distances


def _attention(path: Path, case: Case) -> Iterator[tuple[str, list[str], Floats]]:
    """Yield the id, the tokens and the attention weights of each instance."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    model, data, seed = case
    chosen = (ds.field("model") == model) & (ds.field("data") == data) & (ds.field("seed") == seed)
    chosen &= ds.field("measure") == "attention"
    try:
        for batch in ds.dataset(path, format="parquet").to_batches(
            columns=["instance", "tokens", "values"], filter=chosen, batch_size=BATCH
        ):
            columns = (batch.column(name).to_pylist() for name in ("instance", "tokens", "values"))
            for instance, tokens, weights in zip(*columns, strict=True):
                yield instance, tokens or [], np.array(weights or [], dtype=np.float64)
    except (pa.ArrowException, OSError) as error:
        raise ReportError(
            f"{path}: cannot be read as measurements: {error}. Run the audit again to write a new file."
        ) from error
