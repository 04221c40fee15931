"""Measure whether CUDA graphs, compilation, or pinned memory would make passes faster."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.loading import load_model
from attnaudit.adapters.protocol import TEXT
from attnaudit.data import load
from benchmarks.speed import device
from benchmarks.speed.subjects import minilm_as_it_ships

REPEATS = 15


def timed(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of a call, in milliseconds. It is called three times before."""
    for _ in range(3):
        work()
    found = []
    for _ in range(repeats):
        started = device.now()
        work()
        found.append(1000 * (device.now() - started))
    return statistics.median(found)


def captured(work: Callable[[], object]) -> Callable[[], object]:
    """Return a function that replays the kernels of a call, captured in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def measured(quick: bool) -> Iterator[dict[str, Any]]:
    """Run the experiments, and yield their times.

    Yields:
        experiment: what was run. plain, graph, compiled: the time of a pass as it is, replayed from a CUDA graph, and
        compiled, in milliseconds. capture: the time that the capture of a graph takes.
    """
    model, _ = copy.deepcopy(minilm_as_it_ships())
    model.to(device.name())
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    repeats = 3 if quick else REPEATS
    for rows, width in ((1, 20), (16, 20), (64, 20), (512, 20), (1, 124), (16, 124), (256, 124)):
        ids = torch.randint(5, 5000, (rows, width), device=device.name())
        mask = torch.ones_like(ids)

        def forward(run: Any = model, ids: Any = ids, mask: Any = mask) -> Any:
            with torch.no_grad():
                return run(input_ids=ids, attention_mask=mask).logits

        found = {"experiment": f"BERT of MiniLM's size, {rows} × {width}", "plain": timed(forward, repeats)}
        if device.on_gpu():
            started = device.now()
            replay = captured(forward)
            found |= {"capture": 1000 * (device.now() - started), "graph": timed(replay, repeats)}
            if (rows, width) == (64, 20):
                started = device.now()
                forward(compiled)
                found |= {"compiling": 1000 * (device.now() - started)}
                found |= {"compiled": timed(lambda: forward(compiled), repeats)}
        yield found
    yield from _demo(repeats)
    yield from _transfers(repeats)


def _demo(repeats: int) -> Iterator[dict[str, Any]]:
    adapter = load_model("demo").adapter
    for module in adapter.modules:
        module.to(device.name()).requires_grad_(False)
    rows = sorted(load("movie-reviews").instances, key=lambda one: len(one.text))
    for count in (1, 32, 256, 1024):
        inputs = adapter.collate(rows[500 : 500 + count])

        def forward(inputs: Any = inputs) -> Any:
            with torch.no_grad():
                return adapter.run(inputs).logits

        found = {"experiment": f"demo, {count} × {inputs.ids[TEXT].shape[1]}", "plain": timed(forward, repeats)}
        if device.on_gpu():
            try:
                started = device.now()
                replay = captured(forward)
                found |= {"capture": 1000 * (device.now() - started), "graph": timed(replay, repeats)}
            except RuntimeError as error:  # The encoder reads the lengths on the CPU, which no graph can contain.
                torch.cuda.synchronize()
                found["refused"] = str(error).splitlines()[0]
        yield found


def _pinned(ids: Tensor) -> Tensor:
    return ids.pin_memory().to("cuda", non_blocking=True)


def _transfers(repeats: int) -> Iterator[dict[str, Any]]:
    for rows, width in ((64, 20), (512, 64), (512, 1024)):
        ids = torch.randint(5, 5000, (rows, width))
        found = {"experiment": f"transfer of {rows} × {width} ids"}
        found["plain"] = timed(partial(device.there, ids), repeats)
        if device.on_gpu():
            found["pinned"] = timed(partial(_pinned, ids), repeats)
        yield found
