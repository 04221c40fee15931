"""Measure how many instances per second each measure computes on a device, and how much batching helps.

    python -m benchmarks.gpu [--device cuda] [--instances 2026] [--quick]

The models are the demo model, and a BERT of the size of MiniLM with random weights. The table has these columns:

* instances/s: the speed in the batches of the engine, in instances per second.
* of predicting: this speed divided by the speed of prediction alone.
* one at a time: the speed of a simple loop that measures one instance at a time, in instances per second.
* ratio: the speed in batches divided by the speed of the simple loop.

Each measure is run once before it is timed, and the clock waits until the device has finished. Nothing is written.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from attnaudit.adapters.loading import load_model
from attnaudit.data import load, sample
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset

NEEDS = {
    "prediction": ["prediction"],
    "gradient": ["gradient.meister.inputs"],
    "τ-b with the gradient": ["agreement.gradient.meister.inputs"],
    "100 permutations": ["permutation"],
    "leave-one-out": ["leave_one_out.inputs"],
    "input influence": ["influence.hidden"],
    "adversary, ε=.01": ["adversarial.0.01"],
}
#: The number of instances that are measured one at a time.
ALONE = 32


def seconds(adapter: Any, rows: Dataset, needs: list[str], device: str, batch_tokens: int | None) -> float:
    """Return the wall-clock time of measuring all instances, in seconds, until the device has finished."""
    _wait(device)
    started = time.perf_counter()
    measure(adapter, rows, needs, model="model", seed=0, device=device, batch_tokens=batch_tokens)
    _wait(device)
    return time.perf_counter() - started


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def minilm_sized(folder: Path) -> str:
    """Save a BERT with 6 layers, 12 heads, width 384 and random weights, and return its folder."""
    from transformers import BertConfig, BertForSequenceClassification

    from tests import architectures

    reader = architectures.tokenizer("wordpiece")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        pad_token_id=reader.pad_token_id,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    reader.save_pretrained(folder)
    return str(folder)


def table(name: str, model: str, device: str, instances: int) -> None:
    """Measure one model and print its table.

    Args:
        name: The name of the model in the table.
        model: The model, as `--model` takes it.
        device: The torch device.
        instances: The number of instances to measure.
    """
    adapter, reviews = load_model(model).adapter, load("movie-reviews")
    many, few = sample(reviews, instances, 0), sample(reviews, min(ALONE, instances), 0)
    print(f"\n{name}, {instances} instances, {device}")
    print(f"{'measure':24} {'instances/s':>12} {'of predicting':>14} {'one at a time':>14} {'ratio':>7}")
    predicting = 0.0
    for measure_name, needs in NEEDS.items():
        seconds(adapter, few, needs, device, None)
        rate = instances / seconds(adapter, many, needs, device, None)
        alone = len(few.instances) / seconds(adapter, few, needs, device, 1)
        predicting = predicting or rate
        print(
            f"{measure_name:24} {rate:12,.1f} {rate / predicting:14.3f} {alone:14,.1f} {rate / alone:7.1f}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how many instances per second each measure computes.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--instances", type=int, default=2026)
    parser.add_argument("--quick", action="store_true", help="measure only 8 instances")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device. Give --device cpu, or run this on a machine with a CUDA device.")
    count = 8 if options.quick else options.instances
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if options.device.startswith('cuda') else 'CPU'}")
    table("demo (BiLSTM, additive)", "demo", options.device, count)
    with tempfile.TemporaryDirectory(prefix="attnaudit-") as scratch:
        table("BERT of MiniLM's size", minilm_sized(Path(scratch)), options.device, count)


if __name__ == "__main__":
    main()
