"""Fragility: how far the output moves when the weights are permuted or made uniform, states fixed (JW, T)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnaudit.attributions.prediction import no_argument
from attnaudit.measurement.columns import Columns, Measure, PerBatch
from attnaudit.measurement.passes import Passes, probabilities
from attnaudit.measurement.seeding import keyed_generator
from attnaudit.metrics import total_variation
from attnaudit.registry import measures

#: JW: permutations per instance.
PERMUTATIONS = 100


def permutation_index(passes: Passes, count: int) -> Tensor:
    """(B, count, T) positions: real tokens in an order drawn from the seed and the instance's id, others in place."""
    rows, width = passes.real.shape
    index = np.broadcast_to(np.arange(width), (rows, count, width)).copy()
    for b, row in enumerate(passes.real.cpu().numpy()):
        where = row.nonzero()[0]
        draws = keyed_generator(passes.seed, "permutation", passes.instances[b].id).random((count, len(where)))
        index[b][:, where] = where[draws.argsort(axis=1)]
    return torch.from_numpy(index).to(passes.device)


class Permutation(PerBatch):
    """tvd: median over the permutations of the total variation to the original output. predicted: class under each."""

    def compute(self, passes: Passes, columns: Columns) -> Columns:
        index = permutation_index(passes, PERMUTATIONS)
        clean = passes.probabilities[:, None, :]
        step = max(1, passes.budget * PERMUTATIONS // max(1, index.shape[0] * index.shape[2]))
        moved, predicted = [], []
        for start in range(0, PERMUTATIONS, step):
            part = index[:, start : start + step]
            reading = passes.reading[:, None, :].expand(-1, part.shape[1], -1).gather(2, part)
            found = probabilities(passes.decode(passes.full_weights(reading)))
            moved.append(total_variation(found, clean.expand_as(found)))
            predicted.append(found.argmax(-1))
        # torch.median takes the lower of the two middle values; the quantile is the mean of them, as in JW.
        median = torch.cat(moved, dim=1).quantile(0.5, dim=1)
        return Columns(
            scalars={"permutation.tvd": median},
            vectors={"permutation.predicted": torch.cat(predicted, dim=1)},
        )


class Uniform(PerBatch):
    """tvd to the original output, and the predicted class, under α = 1/n."""

    def compute(self, passes: Passes, columns: Columns) -> Columns:
        even = passes.real.double() / passes.lengths[:, None]
        found = probabilities(passes.decode(passes.full_weights(even[:, None, :])))[:, 0, :]
        return Columns(
            scalars={
                "uniform.tvd": total_variation(found, passes.probabilities),
                "uniform.predicted": found.argmax(-1),
            }
        )


@measures.register("permutation")
def permutation(argument: str) -> Measure:
    return Permutation(name=no_argument("permutation", argument))


@measures.register("uniform")
def uniform(argument: str) -> Measure:
    return Uniform(name=no_argument("uniform", argument))
