"""Run the parts of the benchmark, print each result, and write all of them."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch

from benchmarks import gpu
from benchmarks.gpu import billion, experiments, memory, rates, rows, writing
from benchmarks.speed import causal, device, minilm, pooled
from benchmarks.speed.timing import DisagreementError, compare
from benchmarks.speed.writing import plain

#: How often each side of a comparison is timed.
REPEATS = 3


def speed(quick: bool) -> Iterator[dict[str, Any]]:
    """Run the comparisons with the user's own code.

    Yields:
        The times of a comparison (see `benchmarks.speed.timing.Timed`), or "name" and "left_out", the reason why it has
        no times.
    """
    for one in chain.from_iterable(family.comparisons(quick) for family in (minilm, causal, pooled)):
        try:
            yield plain(compare(one, 1 if quick else REPEATS))
        except (DisagreementError, RuntimeError) as error:
            yield {"name": one.name, "rival": one.rival, "left_out": f"{type(error).__name__}: {error}"}


PARTS: dict[str, Callable[[bool], Iterator[dict[str, Any]]]] = {
    "rows": rows.measured,
    "memory": memory.measured,
    "billion": billion.measured,
    "rates": rates.measured,
    "experiments": experiments.measured,
    "speed": speed,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=gpu.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", metavar="PART", action="append", choices=PARTS, default=[], help="run only this part")
    parser.add_argument("--quick", action="store_true", help="measure few instances, and write nothing")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device. Give --device cpu, or run this on a machine with a CUDA device.")
    device.use(options.device)
    torch.backends.cudnn.allow_tf32 = False  # so that both sides of a comparison compute the same numbers
    found: dict[str, Any] = {"machine": writing.machine()}
    print(json.dumps(found["machine"], ensure_ascii=False))
    for name, measured in PARTS.items():
        if options.only and name not in options.only:
            continue
        started, found[name] = time.perf_counter(), []
        for result in measured(options.quick):
            found[name].append(result)
            print(f"{name}: {json.dumps(result, ensure_ascii=False)}", flush=True)
            if not options.quick:
                writing.store(found)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    if not options.quick:
        writing.write()
        print(f"wrote {writing.JSON.name} and {writing.PAGE.name}")


if __name__ == "__main__":
    main()
