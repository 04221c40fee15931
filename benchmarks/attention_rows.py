"""Measure the time and the memory of a forward pass in which one attention reading is recorded, for long texts.

The models have the sizes of MiniLM and random weights. "plain" is the user's own code: the unmodified Transformers
model with its sdpa kernel. The other passes are those of the engine: for the model's own reading, which shows the row
of a single token ("one row"); for the mean over all rows of the last layer ("mean"); for the norms of value vectors,
averaged over all rows ("norms"); and for attention rollout ("rollout"), which combines all rows of all layers. With
`--gradients`, the gradients at the embeddings are computed as well: by a backward pass of the user's own code
("plain"), and by the engine with the attention weights as variables ("gradient") and as constants ("detached"). With
`--replaced`, the engine runs the model once more with uniform weights in the rows of the reading. Every pass runs in
its own process, on one thread, after a short pass that loads the kernels.

    python -m benchmarks.attention_rows [--lengths 512 2048 4096] [--repeats 3] [--gradients | --replaced]
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
from typing import Any, cast

import torch

from attnaudit.engine.batches.attention_view import AttentionView
from attnaudit.engine.batches.batch import Batch
from attnaudit.engine.batches.scopes import own_reading, scope_of
from attnaudit.instances import Instance
from attnaudit.readings import Kind, Query
from benchmarks.speed.causal import causal_as_it_ships
from benchmarks.speed.subjects import long_texts, minilm_as_it_ships

MODELS = {"BERT": minilm_as_it_ships, "GPT-2": causal_as_it_ships}
#: Kind of pass -> the query and the kind of its reading; None for a pass without a reading.
READINGS: dict[str, tuple[str, str] | None] = {
    "plain": None,
    "one row": ("own", "attention"),
    "mean": ("mean", "attention"),
    "norms": ("mean", "norms"),
    "rollout": ("mean", "rollout"),
}
#: Kinds of passes with `--gradients` and with `--replaced`. Their readings are those of `READINGS`.
GRADIENTS = ("plain, gradient", "one row, gradient", "one row, detached", "mean, gradient")
REPLACED = ("plain", "one row, replaced", "mean, replaced", "rollout, replaced")
LENGTHS = (512, 2048, 4096)
#: Length of the text of the first, unmeasured pass.
WARM = 64


def main() -> None:
    """Run every pass in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--replaced", action="store_true")
    parser.add_argument("--only", nargs=3, metavar=("MODEL", "PASS", "LENGTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        name, kind, length = options.only
        print(json.dumps(measured(name, kind, int(length), options.repeats)))
        return
    print("| model | tokens | pass | CPU seconds | times plain | peak memory, MB | times plain | the pass alone, MB |")
    print("|---|---:|---|---:|---:|---:|---:|---:|")
    passes = GRADIENTS if options.gradients else REPLACED if options.replaced else tuple(READINGS)
    for name in MODELS:
        for length in options.lengths:
            plain: dict[str, Any] = {}
            for kind in passes:
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
    own_code, _, task = kind.partition(", ")
    run = (plain_pass if own_code == "plain" else recorded_pass)(model, tokenizer, own_code, task)
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


def plain_pass(model: Any, tokenizer: Any, _kind: str, task: str) -> Callable[[Instance], float]:
    """Return a function that runs the unmodified model on one text, and returns its first logit."""

    def run(instance: Instance) -> float:
        ids = tokenizer(instance.text, truncation=True, return_tensors="pt").to(model.device)
        if not task:
            with torch.no_grad():
                return float(model(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]).logits[0, 0])
        embedded = model.get_input_embeddings()(ids["input_ids"]).detach().requires_grad_(True)
        logits = model(inputs_embeds=embedded, attention_mask=ids["attention_mask"]).logits[0]
        (gradient,) = torch.autograd.grad(logits.softmax(-1).max(), embedded)
        assert bool(gradient.isfinite().all())
        return float(logits[0])

    model.requires_grad_(False)
    return run


def recorded_pass(model: Any, tokenizer: Any, kind: str, task: str) -> Callable[[Instance], float]:
    """Return a function that computes the explanation of one text with the engine, and returns the first logit."""
    from attnaudit.adapters.huggingface import transformer

    adapter = transformer(model, tokenizer)
    model.requires_grad_(False)
    query, explanation = cast(tuple[Query, Kind], READINGS[kind])
    own = own_reading(adapter)
    assert own is not None
    reading = replace(own, query=own.query if query == "own" else query, kind=explanation)

    def run(instance: Instance) -> float:
        batch = Batch(
            adapter,
            [instance],
            [0],
            seed=0,
            keep_graph=task in ("gradient", "detached"),
            budget=1024,
            pass_counts=Counter(),
            scopes=[scope_of(adapter, reading)],
        )
        view = AttentionView(batch, reading)
        assert bool(view.attention.isfinite().all())
        if task == "replaced":
            equal = torch.ones_like(view.attention)[:, None]
            assert bool(view.logits_with_token_shares(equal).isfinite().all())
        elif task:
            gradients = batch.gradients if task == "gradient" else batch.gradients_attention_detached
            assert bool(gradients[""].isfinite().all())
        return float(batch.logits[0, 0])

    return run


def memory(field: str) -> float:
    """Return a field of /proc/self/status, such as "VmRSS", in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


if __name__ == "__main__":
    main()
