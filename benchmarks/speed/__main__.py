"""Run every comparison on one thread, and print one line for each."""

from __future__ import annotations

import argparse
import os
import sys

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402

torch.set_num_threads(1)

from benchmarks.speed.running import run  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use fewer instances and repeats, and write nothing")
    parser.add_argument(
        "--only",
        metavar="WORD",
        help="run only the comparisons whose name or rival contains this word, or one of: audit, startup, scaling",
    )
    options = parser.parse_args()
    return run(quick=options.quick, only=options.only)


if __name__ == "__main__":
    sys.exit(main())
