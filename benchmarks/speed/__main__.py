"""Run every comparison on one thread, and print one line for each."""

from __future__ import annotations

import argparse
import os
import sys

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402

torch.set_num_threads(1)

from benchmarks.speed.running import REPEATS, run  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use fewer instances and repeats, and write nothing")
    parser.add_argument(
        "--only",
        metavar="WORDS",
        action="append",
        default=[],
        help="run only the comparisons whose name or rival contains these words, or one of: audit, startup, scaling. "
        "Give the option several times to run more of them",
    )
    parser.add_argument(
        "--repeats", type=int, help=f"how often to time each side of a comparison (default: {REPEATS}, quick: 1)"
    )
    options = parser.parse_args()
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; expected 1 or more.")
    return run(quick=options.quick, only=options.only, repeats=options.repeats)


if __name__ == "__main__":
    sys.exit(main())
