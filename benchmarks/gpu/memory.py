"""Measure the largest GPU memory of one pass over a long text, with the passes of `benchmarks.attention_rows`."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import torch

from attnaudit.instances import Instance
from benchmarks.attention_rows import MODELS, READINGS, WARM, plain_pass, recorded_pass
from benchmarks.speed import device
from benchmarks.speed.subjects import long_texts

LENGTH = 4096


def measured(quick: bool) -> Iterator[dict[str, Any]]:
    """Measure each kind of pass of each model, and yield its numbers.

    Yields:
        model, reading: what was run. tokens: the length of the text. seconds: the time of the pass. before, peak: the
        memory of all tensors before the pass, and its largest value during the pass, in MiB. times_plain: `peak`
        divided by that of the plain pass. logit: the first logit.
    """
    length = 256 if quick else LENGTH
    text = long_texts(1, length + 200).instances[0]
    for name, build in MODELS.items():
        plain: dict[str, Any] = {}
        for kind in READINGS:
            model, tokenizer = copy.deepcopy(build(max_position_embeddings=length))
            model.to(device.name())
            tokenizer.model_max_length = length
            run = (plain_pass if kind == "plain" else recorded_pass)(model, tokenizer, kind, "")
            run(Instance(id="warm", text=" ".join(text.text.split()[:WARM])))
            if not plain:
                run(text)  # so that every pass finds the workspaces of cuBLAS
            gc.collect()
            before = _memory(reset=True)
            started = device.now()
            logit = run(text)
            taken = device.now() - started
            found = {
                **{"model": name, "reading": kind, "tokens": length, "seconds": taken},
                **{"before": before, "peak": _memory(), "logit": logit},
            }
            plain = plain or found
            if abs(logit - plain["logit"]) > 1e-4 * max(1.0, abs(plain["logit"])):
                raise SystemExit(f"{name}: the logit of '{kind}' is {logit}, but {plain['logit']} in the plain pass")
            yield {**found, "times_plain": found["peak"] / max(plain["peak"], 1e-9)}
            del run, model


def _memory(*, reset: bool = False) -> float:
    """Return the largest memory of all tensors since the last reset, in MiB. On a CPU, it is 0."""
    if not device.on_gpu():
        return 0.0
    torch.cuda.synchronize()
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated() / 2**20
