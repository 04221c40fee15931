"""Compare audits of a public model with several hops with its own forward pass: `python -m benchmarks.public_hops`.

The model is `StructuredSelfAttention` of kaushalshetty/Structured-Self-Attention (Lin et al. 2017), unchanged. Its
weights are not trained. Its file imports Keras without using it, so an empty module replaces Keras here.

Clone the repository first, and give its folder:

    git clone https://github.com/kaushalshetty/Structured-Self-Attention
    git -C Structured-Self-Attention checkout 84ed64f9cee75f84a5d871a46508a308182e4a6d
    python -m benchmarks.public_hops Structured-Self-Attention
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters import Encoding, PooledAttentionAdapter
from attnaudit.conformance import full
from attnaudit.data import load
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset

HOPS, WORDS = 4, 500


def model_of(folder: Path) -> Any:
    """Return the untrained model, with a fixed seed."""
    specification = importlib.util.spec_from_file_location("structured", folder / "attention" / "model.py")
    if specification is None or specification.loader is None:
        raise SystemExit(f"{folder / 'attention' / 'model.py'} cannot be imported. Give the folder of the clone.")
    module = importlib.util.module_from_spec(specification)
    sys.modules.setdefault("keras", ModuleType("keras"))
    specification.loader.exec_module(module)
    torch.manual_seed(0)
    return module.StructuredSelfAttention(1, 50, 30, HOPS, 1, 50, WORDS).eval()


def tokenize(text: str) -> Encoding:
    words = text.lower().split()
    return Encoding([2 + sum(word.encode()) % (WORDS - 2) for word in words], words)


def adapter_of(model: Any) -> PooledAttentionAdapter:
    def attend(states: Tensor, allowed: Tensor) -> Tensor:
        scores = model.linear_second(torch.tanh(model.linear_first(states))).transpose(1, 2)
        return scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)

    return PooledAttentionAdapter(
        embedding=model.embeddings,
        encoder=lambda embedded, _mask: model.lstm(embedded)[0],
        attention=attend,
        contexts=lambda contexts: contexts.mean(-2),
        decoder=model.linear_final,
        tokenize=tokenize,
        classes=("negative", "positive"),
        modules=(model,),
        mask_id=1,
        heads=HOPS,
        reading="own@heads=mean",
    )


def forward(model: Any, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Return the probability (1, 1) and the attention (1, H, T) of the model's own forward pass on one text."""
    model.max_len, model.hidden_state = len(ids), model.init_hidden()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model calls softmax without a dimension, which is deprecated
        output, weights = model(torch.tensor([ids]))
    return output.double(), weights.double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="folder of the clone of Structured-Self-Attention")
    model = model_of(parser.parse_args().clone)
    adapter = adapter_of(model)
    started = time.process_time()
    rows = tuple(one for one in load("movie-reviews").instances if 3 <= len(one.text.split()) <= 12)[:8]
    outcomes = [one.outcome for one in full(adapter, rows)]
    print(f"conformance: {outcomes.count('pass')} pass, {outcomes.count('fail')} fail")
    data = Dataset(name="reviews", source="reviews", description="", instances=rows)
    measured, _ = measure(adapter, data, ("leave_one_out.inputs", "pointing.held"), model="m", seed=0)
    worst = dict.fromkeys(("logits", "attention", "leave-one-out"), 0.0)
    for i, instance in enumerate(measured.instances):
        ids = list(tokenize(instance.text).ids)
        probability, weights = forward(model, ids)
        changes = [abs(float(forward(model, ids[:t] + ids[t + 1 :])[0] - probability)) for t in range(len(ids))]
        pairs = {
            "logits": (measured.vector("logits")[i], probability.logit().flatten().numpy()),
            "attention": (measured.vector("attention")[i], weights[0].mean(0).numpy()),
            "leave-one-out": (measured.vector("leave_one_out.inputs.change")[i], np.array(changes)),
        }
        for name, (ours, theirs) in pairs.items():
            worst[name] = max(worst[name], float(np.abs(ours - theirs).max()))
    for name, difference in worst.items():
        print(f"{name}: largest difference {difference:.1e}")
    print(f"{time.process_time() - started:.0f} CPU seconds")


if __name__ == "__main__":
    main()
