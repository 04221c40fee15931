"""Time leave-one-out on encoders that read each token alone or with a few neighbours.

If one token is left out, most hidden states of such an encoder stay the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from benchmarks.speed.plain import Rows, encoded, real_tokens
from benchmarks.speed.pooled import audited, passes_of, rows_apart
from benchmarks.speed.subjects import in_order, long_texts, pooled, short_texts, trained
from benchmarks.speed.timing import Comparison

DELETION = "leave_one_out.inputs"
ENCODERS = {"cnn": "CNN", "average": "average"}


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Yield the comparisons of this module. If `quick` is True, they use fewer instances."""
    lengths = [("n≈20", short_texts(24 if quick else 64)), ("n≈124", long_texts(3 if quick else 8))]
    for encoder in ENCODERS:
        for name, data in lengths:
            yield _leave_one_out(encoder, name, data)


def _leave_one_out(encoder: str, name: str, data: Any) -> Comparison:
    _, vocabulary = trained()
    torch.manual_seed(0)
    model = PooledClassifier(
        Architecture(encoder=encoder, embedding_size=300), vocabulary_size=len(vocabulary), classes=2
    )
    subject = pooled(name, data, model.eval().requires_grad_(False), vocabulary, reach=model.encoder.reach)
    instances = in_order(data)
    passes: Counter[str] = Counter()

    def theirs() -> Any:
        passes.clear()
        return _one_by_one(model, encoded(subject.adapter, instances), passes)

    return Comparison(
        name=f"{ENCODERS[encoder]}: leave-one-out by deletion, {name}",
        rival="plain PyTorch, one by one",
        instances=len(instances),
        ours=lambda: audited(subject, DELETION),
        theirs=theirs,
        difference=lambda ours, found: rows_apart(ours[0].vectors[f"{DELETION}.change"], found),
        tolerance=1e-5,
        our_passes=passes_of,
        their_passes=lambda: dict(passes),
    )


@torch.no_grad()
def _one_by_one(model: PooledClassifier, texts: Sequence[list[int]], passes: Counter[str]) -> Rows:
    """Return leave-one-out, computed with one forward pass per token of each text."""

    def probability(ids: Tensor) -> Tensor:
        passes["forward"] += 1
        passes["forward_rows"] += 1
        return torch.sigmoid(model(ids, torch.ones_like(ids, dtype=torch.bool), ~real_tokens(ids)))[0].double()

    found = []
    for ids in texts:
        full = torch.tensor([ids])
        clean = probability(full)
        changed = [probability(torch.cat([full[:, :i], full[:, i + 1 :]], 1)) for i in range(1, len(ids) - 1)]
        found.append(np.abs((torch.cat(changed) - clean).numpy()))
    return found
