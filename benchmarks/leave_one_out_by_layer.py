"""Compare attention with leave-one-out at each layer of a reproduced Transformer (Meister et al. 2021, table 6).

`attnaudit reproduce meister` leaves out the hidden states that attention reads. This script also leaves out the states
of the layer below, and whole embeddings. docs/reproduction.md quotes the printed numbers.

    python -m benchmarks.leave_one_out_by_layer --data reproduction/data/sst/test.jsonl MODEL …
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

import torch
from scipy.stats import kendalltau
from torch import Tensor

from attnaudit.data.sources import load_file
from attnaudit.models.checkpoint_folder import load_model
from attnaudit.models.encoders import SelfAttention, Transformer, sinusoids
from attnaudit.models.pooled_classifier import PooledClassifier

ATTENDED, FIRST_LAYER, EMBEDDINGS = "states that attention reads", "states of the first layer", "embeddings"


def outputs_without_each(
    model: PooledClassifier, ids: Tensor, special: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Run a model of one text with each token left out at one place.

    As in an audit, a state that attention reads gets the weight 0, and the other weights are renormalised; the context
    is zero if the token had all the weight. A state of the first layer, or an embedding, is hidden from all later
    layers and from attention, whose weights are computed again. Positions of the other tokens stay the same.

    Args:
        model: A model with a `Transformer` of two layers and a single output.
        ids: (1, T) token ids, without padding.
        special: (1, T) flags of special tokens.

    Returns:
        (n,) attention on the n real tokens, the probability () of the whole text, and place -> (n,) probabilities, each
        without one real token.
    """
    encoder = model.encoder
    assert isinstance(encoder, Transformer)
    first, second = encoder.stack
    assert isinstance(first, SelfAttention)
    assert isinstance(second, SelfAttention)
    mask = torch.ones_like(ids, dtype=torch.bool)
    real = (~special)[0].nonzero().squeeze(1)
    n = len(real)
    whole = model.trace(ids, mask, special)
    left = mask.expand(n, -1).clone()
    left[torch.arange(n), real] = False
    attended = left & ~special

    def probabilities(hidden: Tensor) -> Tensor:
        context = torch.einsum("bt,btm->bm", model.attention(hidden, attended), hidden)
        return model.decode(context).sigmoid().squeeze(1)

    places = torch.arange(ids.shape[1]).unsqueeze(0)
    start = encoder.enter(whole.embedded) * math.sqrt(encoder.width) + sinusoids(places, encoder.width)
    everywhere = start.expand(n, -1, -1)
    weights = whole.weights.expand(n, -1) * left
    weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    found = {
        ATTENDED: model.decode(weights @ whole.hidden[0]).sigmoid().squeeze(1),
        FIRST_LAYER: probabilities(second(first(start, mask).expand(n, -1, -1), left)),
        EMBEDDINGS: probabilities(second(first(everywhere, left), left)),
    }
    return whole.weights[0, real], whole.logits.sigmoid().squeeze(), found


@torch.no_grad()
def main() -> None:
    """Print the mean τ-b over texts for each model and place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    instances = load_file(arguments.data).instances
    for folder in arguments.models:
        model, vocabulary, _ = load_model(folder)
        model.eval()
        taus: dict[str, list[float]] = {}
        for instance in instances:
            encoding = vocabulary.encode(instance.text)
            special = torch.tensor([encoding.special or [False] * len(encoding.ids)], dtype=torch.bool)
            attention, whole, found = outputs_without_each(model, torch.tensor([encoding.ids]), special)
            for place, probabilities in found.items():
                # Rounding errors must not order tokens without an effect. An audit treats them as ties, too.
                changes = (probabilities - whole).abs().round(decimals=6)
                tau = float(kendalltau(attention.numpy(), changes.numpy()).statistic)
                if math.isfinite(tau):
                    taus.setdefault(place, []).append(tau)
        numbers = ", ".join(
            f"{place} {statistics.fmean(known):.3f} ± {statistics.stdev(known):.3f} ({len(known)} texts)"
            for place, known in taus.items()
        )
        print(f"{folder.name}: {numbers}", flush=True)


if __name__ == "__main__":
    main()
