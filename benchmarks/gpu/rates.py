"""Measure how many instances per second each measure computes on a device, and how much batching helps.

The models are the demo model, and a BERT of the size of MiniLM with random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnaudit.adapters.loading import load_model
from attnaudit.data import load, sample
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset
from benchmarks.speed import device
from benchmarks.speed.subjects import minilm

NEEDS = {
    "prediction": ["prediction"],
    "gradient": ["gradient.meister.inputs"],
    "τ-b with the gradient": ["agreement.gradient.meister.inputs"],
    "100 permutations": ["permutation"],
    "leave-one-out": ["leave_one_out.inputs"],
    "input influence": ["influence.hidden"],
    "adversary, ε=.01": ["adversarial.0.01"],
}
#: The number of instances that are measured, and how many of them are also measured one at a time.
INSTANCES, ALONE = 2026, 8


def seconds(adapter: Any, rows: Dataset, needs: list[str], batch_tokens: int | None) -> float:
    """Return the time of measuring all instances, in seconds."""
    started = device.now()
    measure(adapter, rows, needs, model="model", seed=0, device=device.name(), batch_tokens=batch_tokens)
    return device.now() - started


def measured(quick: bool) -> Iterator[dict[str, Any]]:
    """Measure each measure on both models, and yield its numbers. Each measure is run once before it is timed.

    Yields:
        model: the name of the model. measure: the name of the measure. instances: the number of instances. rate: the
        speed in the batches of the engine, in instances per second. alone: the speed of a simple loop that measures one
        instance at a time. of_predicting: `rate` divided by that of prediction alone.
    """
    reviews = load("movie-reviews")
    models = {
        "demo (BiLSTM, additive)": load_model("demo").adapter,
        "BERT of MiniLM's size": minilm("n≈20", reviews).adapter,
    }
    instances = 8 if quick else INSTANCES
    many, few = sample(reviews, instances, 0), sample(reviews, min(ALONE, instances), 0)
    for model, adapter in models.items():
        predicting = 0.0
        for name, needs in NEEDS.items():
            seconds(adapter, few, needs, None)
            rate = instances / seconds(adapter, many, needs, None)
            alone = len(few.instances) / seconds(adapter, few, needs, 1)
            predicting = predicting or rate
            yield {
                "model": model,
                "measure": name,
                "instances": instances,
                "rate": rate,
                "alone": alone,
                "of_predicting": rate / predicting,
            }
