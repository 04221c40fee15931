"""Join the measurements of different instances. This module does not import torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.merged_sources import merged_sources


def joined(first: Measurements, second: Measurements) -> Measurements:
    """Combine the measurements of different instances. Model, data set and columns must be the same.

    Tables are left out, because they are computed from a whole data set. The sources are merged again (see
    `merged_sources`). For this, two token sequences count as equal if their tokens are the same strings.
    """
    instances = [*first.instances, *second.instances]
    order = sorted(range(len(instances)), key=lambda i: instances[i].id)
    tokens = [*first.tokens, *second.tokens]
    instances, tokens = [instances[i] for i in order], [tokens[i] for i in order]
    vectors = {name: [*column, *second.vectors[name]] for name, column in first.vectors.items()}
    sequences = [(one.query, *row) for one, row in zip(instances, tokens, strict=True)]
    return dataclasses.replace(
        first,
        instances=instances,
        sources=merged_sources(instances, sequences),
        tokens=tokens,
        boxes=_places(first, second, "boxes", 4, order),
        times=_places(first, second, "times", 2, order),
        labels=np.concatenate([first.labels, second.labels])[order],
        predicted=np.concatenate([first.predicted, second.predicted])[order],
        scalars={name: np.concatenate([one, second.scalars[name]])[order] for name, one in first.scalars.items()},
        vectors={name: [column[i] for i in order] for name, column in vectors.items()},
        tables={},
    )


def _places(first: Measurements, second: Measurements, name: str, width: int, order: Sequence[int]) -> Sequence[Floats]:
    """Return the boxes or times of all instances, in this order; nothing if no instance has any."""
    both: list[Floats] = []
    for one in (first, second):
        both.extend(getattr(one, name) or [np.empty((0, width))] * len(one))
    return [both[i] for i in order] if any(map(len, both)) else ()
