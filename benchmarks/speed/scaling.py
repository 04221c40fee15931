"""Measure how time and peak memory grow with the length of a text and with the number of texts.

    python -m benchmarks.speed.scaling [--quick]

The script prints JSON. Memory is the increase of the resident set: its peak while a measure runs, minus its size
before. Linux reports these numbers in /proc. On other systems, memory is not measured.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

LENGTHS = (20, 50, 100, 200, 500, 1000, 2000)
COUNTS = (500, 2000, 5000, 20000)
#: Name of a measure -> (what the engine has to measure, length of the longest text that it is run on).
MEASURES = {
    "forward pass": ((), 2000),
    "gradient": (("gradient.meister.inputs",), 2000),
    "100 permutations": (("permutation",), 2000),
    "exact adversary": (("adversarial.0.01",), 2000),
    "leave-one-out": (("leave_one_out.inputs",), 2000),
    "input influence": (("influence.hidden",), 2000),
}
STREAMED = ("gradient.meister.inputs", "permutation", "adversarial.0.01")


def resident(key: str) -> float | None:
    """Return an entry of /proc/self/status in MiB, such as "VmRSS". Return None if the system does not report it."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def cost(work: Callable[[], Any]) -> tuple[float, float | None]:
    """Run `work`.

    Returns:
        The CPU time in seconds, and the peak of the resident set above its size before, in MiB. The memory is None if
        the system does not report it.
    """
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
    except (OSError, AttributeError):
        before = None
    started = time.process_time()
    work()
    seconds = time.process_time() - started
    peak = resident("VmHWM")
    return seconds, None if before is None or peak is None else max(0.0, peak - before)


def by_length(lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the cost of each measure on one text of each length."""
    from benchmarks.speed.pooled import audited
    from benchmarks.speed.subjects import bilstm, long_texts

    found = []
    for length in lengths:
        subject = bilstm(f"n≈{length}", long_texts(1, length + 8))
        audited(subject, *STREAMED)
        for name, (needs, longest) in MEASURES.items():
            if length <= longest:
                seconds, memory = cost(lambda s=subject, n=needs: audited(s, *n))
                found.append({"measure": name, "tokens": length, "seconds": seconds, "mib": memory})
    return found


def by_rank_length(lengths: tuple[int, ...], rows: int = 50) -> list[dict[str, Any]]:
    """Return the cost of the rank statistics on `rows` rows of each length."""
    import torch

    from attnaudit.metrics import kendall_tau_b, weighted_kendall_tau
    from benchmarks.speed.ranks import ragged

    found = []
    for length in lengths:
        x, y, real = (torch.from_numpy(one) for one in ragged(rows, length, rectangular=True))
        forms: dict[str, Callable[[], Any]] = {
            "τ-b": lambda x=x, y=y, real=real: kendall_tau_b(x, y, real),
            "weighted τ": lambda x=x, y=y, real=real: weighted_kendall_tau(x, y, x, real),
        }
        for name, work in forms.items():
            work()  # The first call may import modules.
            seconds, memory = cost(work)
            found.append({"measure": name, "tokens": length, "seconds": seconds / rows, "mib": memory})
    return found


def by_count(counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the cost of each number of texts of 20 words. The same sentences recur with new ids."""
    from benchmarks.speed.pooled import audited
    from benchmarks.speed.subjects import bilstm, short_texts

    base, found = short_texts(500), []
    for count in counts:
        instances = tuple(
            dataclasses.replace(base.instances[i % len(base.instances)], id=f"{i:06d}", source=None)
            for i in range(count)
        )
        subject = bilstm("n≈20", dataclasses.replace(base, instances=instances))
        seconds, memory = cost(lambda s=subject: audited(s, *STREAMED))
        found.append({"instances": count, "seconds": seconds, "mib": memory})
    return found


def by_heads() -> list[dict[str, Any]]:
    """Return the cost on Transformers of several sizes: the gradient and the permutations of one instance.

    All attention weights are kept.
    """
    from benchmarks.speed.pooled import audited
    from benchmarks.speed.subjects import minilm, missing_transformers, short_texts

    if missing_transformers():
        return []
    found = []
    for layers, heads in ((2, 12), (6, 4), (6, 12), (6, 48), (12, 12)):
        subject = minilm("n≈20", short_texts(8), num_hidden_layers=layers, num_attention_heads=heads)
        audited(subject)
        seconds, memory = cost(lambda s=subject: audited(s, "gradient.meister.inputs", "permutation"))
        found.append({"layers": layers, "heads": heads, "seconds": seconds / 8, "mib": memory})
    return found


def main(quick: bool) -> int:
    """Run all measurements and print the results as JSON. If `quick` is True, they use shorter and fewer texts."""
    import torch

    torch.set_num_threads(1)
    lengths, counts = (LENGTHS[:4], COUNTS[:1]) if quick else (LENGTHS, COUNTS)
    lines = {
        "tokens": [*by_length(lengths), *by_rank_length(lengths)],
        "instances": by_count(counts),
        "heads": [] if quick else by_heads(),
    }
    print(json.dumps(lines, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main("--quick" in sys.argv[1:]))
