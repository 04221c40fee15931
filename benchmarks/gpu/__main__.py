"""Run the parts of the benchmark, print each result, and write all of them."""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from attnaudit.errors import AuditError
from benchmarks import gpu
from benchmarks.gpu import billion, experiments, memory, parts, rates, rows, writing
from benchmarks.speed import causal, device, minilm, pooled
from benchmarks.speed.timing import DisagreementError, compare
from benchmarks.speed.writing import plain

#: How often each side of a comparison is timed.
REPEATS = 3
#: The part whose results are resumed one by one.
SPEED = "speed"
#: The keys of the names of the parts that are begun and finished. Results of other parts may come from another machine.
BEGUN, FINISHED = "begun", "finished"


def speed(quick: bool, known: Collection[tuple[str, str]] = ()) -> Iterator[dict[str, Any]]:
    """Run the comparisons with the user's own code.

    Args:
        quick: Whether to use fewer instances.
        known: The names and rivals of comparisons that are left out, because an earlier run has measured them.

    Yields:
        The times of a comparison (see `benchmarks.speed.timing.Timed`), or "name" and "left_out", the reason why it has
        no times.
    """
    for one in chain.from_iterable(family.comparisons(quick) for family in (minilm, causal, pooled)):
        if (one.name, one.rival) in known:
            continue
        try:
            yield plain(compare(one, 1 if quick else REPEATS))
        except (DisagreementError, RuntimeError) as error:
            yield {"name": one.name, "rival": one.rival, "left_out": f"{type(error).__name__}: {error}"}


#: The parts in the order in which they run. A part that takes long, or has been measured before, runs late.
PARTS: dict[str, Callable[[bool], Iterator[dict[str, Any]]]] = {
    "billion": billion.measured,
    SPEED: speed,
    "parts": parts.measured,
    "memory": memory.measured,
    "rows": rows.measured,
    "rates": rates.measured,
    "experiments": experiments.measured,
}


def run(
    names: Sequence[str], *, quick: bool, resumed: dict[str, Any] | None, ends: float, say: Callable[[str], None]
) -> list[str]:
    """Run parts of the benchmark, and store each result at once.

    Args:
        names: The parts.
        quick: Whether to measure few instances and store nothing.
        resumed: The stored results of an earlier run that is resumed; None for a new run.
        ends: The time of `time.monotonic` at which the run stops. A measurement that has begun is finished.
        say: Prints a line.

    Returns:
        The parts that are not finished, and those that failed with their errors.
    """
    earlier = resumed or {}
    begun, finished = (list(earlier.get(key, [])) for key in (BEGUN, FINISHED))
    found: dict[str, Any] = {"machine": writing.machine(), BEGUN: begun, FINISHED: finished}
    left, failed = [name for name in names if name not in finished], []
    while left and time.monotonic() < ends:
        name, started = left[0], time.perf_counter()
        found[name] = list(earlier[SPEED]) if name == SPEED and SPEED in begun else []
        begun += [] if name in begun else [name]
        known = {(one["name"], one["rival"]) for one in found[name]} if name == SPEED else set()
        try:
            for result in speed(quick, known) if name == SPEED else PARTS[name](quick):
                found[name].append(result)
                say(f"{name}: {json.dumps(result, ensure_ascii=False)}")
                if not quick:
                    writing.store(found)
                if time.monotonic() >= ends:
                    return left + failed
        except (AuditError, RuntimeError) as error:
            failed.append(f"{left.pop(0)} (failed with {type(error).__name__}: {error})")
            say(failed[-1])
            continue
        say(f"{name}: {time.perf_counter() - started:.0f} s")
        finished.append(left.pop(0))
        if not quick:
            writing.store(found)
    return left + failed


def stored_by_the_same(machine: dict[str, Any]) -> dict[str, Any]:
    """Return the stored results, which must come from the same GPU and the same versions of packages."""
    stored: dict[str, Any] = json.loads(writing.JSON.read_text(encoding="utf-8"))
    for key in machine.keys() - {"date"}:
        if stored["machine"].get(key) != machine[key]:
            raise SystemExit(
                f"--resume: the stored results come from another machine ({key}: {stored['machine'].get(key)}; here: "
                f"{machine[key]}). Start a new run without --resume."
            )
    return stored


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=gpu.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", metavar="PART", action="append", choices=PARTS, default=[], help="run only this part")
    parser.add_argument("--quick", action="store_true", help="measure few instances, and write nothing")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time (default: no limit)")
    parser.add_argument("--resume", action="store_true", help="measure only what an earlier run has not finished")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device. Give --device cpu, or run this on a machine with a CUDA device.")
    device.use(options.device)
    torch.backends.cudnn.allow_tf32 = False  # so that both sides of a comparison compute the same numbers
    machine = writing.machine()
    say = functools.partial(print, flush=True)
    say(json.dumps(machine, ensure_ascii=False))
    names = [name for name in PARTS if not options.only or name in options.only]
    resumed = stored_by_the_same(machine) if options.resume else None
    left = run(names, quick=options.quick, resumed=resumed, ends=ends, say=say)
    if not options.quick:
        writing.write()
        say(f"wrote {writing.JSON.name} and {writing.PAGE.name}")
    if left:
        raise SystemExit(f"Not finished: {'; '.join(left)}. Add --resume to continue.")


if __name__ == "__main__":
    main()
