"""Measure the time and the memory of a forward pass in which one attention reading is recorded, for long texts.

The models have the sizes of MiniLM and random weights. Three passes are compared. "plain" is the user's own code: the
unmodified Transformers model with its sdpa kernel. "one row" is the engine's pass for the model's own reading, which
shows the row of a single token. "all rows" is the engine's pass for a reading of all rows, such as `mean`. Every pass
runs in its own process, on one thread, after a short pass that loads the kernels.

    python -m benchmarks.attention_rows [--lengths 512 2048 4096] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.batch import Batch
from attnaudit.engine.scopes import own_reading, scope_of
from attnaudit.instances import Instance
from benchmarks.speed.causal import causal_as_it_ships
from benchmarks.speed.subjects import long_texts, minilm_as_it_ships

MODELS = {"BERT": minilm_as_it_ships, "GPT-2": causal_as_it_ships}
PASSES = ("plain", "one row", "all rows")
LENGTHS = (512, 2048, 4096)
#: Length of the text of the first, unmeasured pass.
WARM = 64


def main() -> None:
    """Run every pass in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs=3, metavar=("MODEL", "PASS", "LENGTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        name, kind, length = options.only
        print(json.dumps(measured(name, kind, int(length), options.repeats)))
        return
    print("| model | tokens | pass | CPU seconds | times plain | peak memory, MB | times plain | the pass alone, MB |")
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    for name in MODELS:
        for length in options.lengths:
            plain: dict[str, Any] = {}
            for kind in PASSES:
                found = measured_apart(name, kind, length, options.repeats)
                plain = plain or found
                difference = abs(found["logit"] - plain["logit"])
                if difference > 1e-4 * max(1.0, abs(plain["logit"])):
                    raise SystemExit(f"{name}, {length} tokens: the logits of '{kind}' differ by {difference:.2g}")
                print(
                    f"| {name} | {length:,} | {kind} | {found['seconds']:.2f} | "
                    f"{found['seconds'] / plain['seconds']:.2f} | {found['peak']:,.0f} | "
                    f"{found['peak'] / plain['peak']:.2f} | {found['peak'] - found['before']:,.0f} |",
                    flush=True,
                )


def measured_apart(name: str, kind: str, length: int, repeats: int) -> dict[str, Any]:
    """Return the result of `measured` in a new process."""
    command = [sys.executable, "-m", "benchmarks.attention_rows", "--repeats", str(repeats)]
    command += ["--only", name, kind, str(length)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(name: str, kind: str, length: int, repeats: int) -> dict[str, float]:
    """Measure one kind of pass.

    Returns:
        "seconds": the median CPU time. "before" and "peak": the memory of the process before the pass, and its largest
        value during the pass, in MB. "logit": the first logit.
    """
    torch.set_num_threads(1)
    text = long_texts(1, length + 200).instances[0]
    model, tokenizer = MODELS[name](max_position_embeddings=length)
    tokenizer.model_max_length = length
    run = (plain_pass if kind == "plain" else recorded_pass)(model, tokenizer, kind)
    run(Instance(id="warm", text=" ".join(text.text.split()[:WARM])))
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    logit, seconds = run(text), []
    peak = memory("VmHWM")
    for _ in range(repeats):
        started = time.process_time()
        run(text)
        seconds.append(time.process_time() - started)
    return {"seconds": statistics.median(seconds), "before": before, "peak": peak, "logit": logit}


def plain_pass(model: Any, tokenizer: Any, _kind: str) -> Callable[[Instance], float]:
    """Return a function that runs the unmodified model on one text, and returns its first logit."""

    @torch.no_grad()
    def run(instance: Instance) -> float:
        ids = tokenizer(instance.text, truncation=True, return_tensors="pt")
        return float(model(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]).logits[0, 0])

    return run


def recorded_pass(model: Any, tokenizer: Any, kind: str) -> Callable[[Instance], float]:
    """Return a function that computes the explanation of one text with the engine, and returns the first logit."""
    from attnaudit.adapters.huggingface import transformer

    adapter = transformer(model, tokenizer)
    reading = own_reading(adapter)
    assert reading is not None
    if kind == "all rows":
        reading = replace(reading, query="mean")

    def run(instance: Instance) -> float:
        batch = Batch(
            adapter,
            [instance],
            [0],
            seed=0,
            keep_graph=False,
            budget=1024,
            pass_counts=Counter(),
            scopes=[scope_of(adapter, reading)],
        )
        assert bool(AttentionView(batch, reading).attention.isfinite().all())
        return float(batch.logits[0, 0])

    return run


def memory(field: str) -> float:
    """Return a field of /proc/self/status, such as "VmRSS", in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


if __name__ == "__main__":
    main()
