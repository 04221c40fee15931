"""Trained classifiers of bags. What their attention shows is decided by training, not by a design.

The attention is the gated attention of Ilse et al. (2018). One kind is trained on the labels alone. In the
others, the value in every state is the maximum over all units, which is a bypass around attention. Their attention is
trained to look at certain units. `truth_rule` decides the truth of each model, as for compiled models.

Shapes: B rows, T units, d features of a vector, m features of a state, C classes.
"""

from __future__ import annotations

import random
from typing import Literal

import torch
from torch import Tensor, nn

from attnaudit.research.planted_units.planted_pool import Pooled, Replace
from attnaudit.research.planted_units.unit_codes import UnitSpace, UnitTask, draw_row

#: What is taught in addition to the labels: nothing, or a bypass with attention on decoys or on key units.
Teaching = Literal["labels", "decoys", "keys"]
#: The number of training bags, and the number of training steps. Each step reads a batch of bags.
BAGS, STEPS, BATCH = 300, 250, 32
RATE = 0.01
WIDTH, INNER = 24, 12
#: The weight of the loss of the attention.
TAUGHT = 1.0


class TrainedPool(nn.Module):
    """A classifier of bags with gated attention."""

    def __init__(self, features: int, classes: int, *, bypass: bool) -> None:
        """Build an untrained model.

        Args:
            features: d, the number of features of a vector.
            classes: C, the number of classes.
            bypass: Whether the value in a state is the maximum over all units instead of the unit's own value.
        """
        super().__init__()
        self.bypass = bypass
        self.encoder = nn.Linear(features, WIDTH)
        self.pooled = nn.Linear(features, WIDTH)
        self.v, self.u, self.w = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER), nn.Linear(INNER, 1)
        self.decoder = nn.Linear(WIDTH, classes)

    def encode(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Return the states (B, T, m or 2m) of units: what attention reads, and the value if there is a bypass."""
        own: Tensor = self.encoder(vectors).relu()
        if not self.bypass:
            return own
        others = self.pooled(vectors).relu().masked_fill(~mask[..., None], 0.0).amax(1, keepdim=True)
        return torch.cat([own, others.expand_as(own)], dim=-1)

    def attend(self, states: Tensor, allowed: Tensor) -> Tensor:
        """Return the weights (B, T)."""
        own = states[..., :WIDTH]
        scores = self.w(self.v(own).tanh() * self.u(own).sigmoid()).squeeze(-1)
        weights: Tensor = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        return weights

    def decode(self, contexts: Tensor) -> Tensor:
        """Compute the logits (..., C) from the context (..., m or 2m)."""
        logits: Tensor = self.decoder(contexts[..., -WIDTH:])
        return logits

    def run(self, vectors: Tensor, mask: Tensor, replace: Replace | None = None, *, hops: bool = False) -> Pooled:
        """Run the model without an adapter, as `PlantedPool.run` does. A bag has no hops."""
        states = self.encode(vectors, mask)
        weights = self.attend(states, mask)
        used = weights if replace is None else replace(0, weights)
        return Pooled(self.decode((used[:, None] @ states)[:, 0]), [used])


def train_pool(task: UnitTask, space: UnitSpace, *, width: int, teaching: Teaching, seed: int) -> TrainedPool:
    """Return a trained model in evaluation mode.

    Args:
        task: How bags are drawn. All bags must have the same number of units.
        space: The rotation of codes into vectors.
        width: The number of features of a vector.
        teaching: What attention is trained to look at.
        seed: The seed of the bags, of the weights and of the batches.
    """
    generator = random.Random(f"training bags {seed}")
    units = [draw_row(task, number % task.classes, generator) for number in range(BAGS)]
    vectors = torch.stack([space.vectors(row, 10**6 + 1000 * seed + number) for number, row in enumerate(units)])
    labels = torch.arange(BAGS) % task.classes
    role = "decoy" if teaching == "decoys" else "key"
    looked = torch.tensor([[float(unit.role == role) for unit in row] for row in units])
    looked = looked / looked.sum(1, keepdim=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TrainedPool(width, task.classes, bypass=teaching != "labels")
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=1e-4)
        for _ in range(STEPS):
            chosen = torch.randint(BAGS, (BATCH,))
            bags = vectors[chosen]
            outcome = model.run(bags, torch.ones(bags.shape[:2], dtype=torch.bool))
            loss = nn.functional.cross_entropy(outcome.logits, labels[chosen])
            if teaching != "labels":
                likelihood = (outcome.weights[0].clamp_min(1e-9).log() * looked[chosen]).sum(1)
                loss = loss - TAUGHT * likelihood.mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model.eval().requires_grad_(True)
