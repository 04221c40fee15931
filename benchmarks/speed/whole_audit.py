"""Measure how much the default audit costs in addition to the passes of the model.

    python -m benchmarks.speed.whole_audit [INSTANCES]

The script runs `pytest audits/ --model demo` on one thread, and prints the CPU seconds as JSON. The imports of torch
and of the engine are not included. "passes" is the time of the forward passes, decodes and backward passes of the
model. It includes those that the adapter makes for input influence. "engine" is the time of all other measuring. "rest"
is the time of statistics, verdicts, the report and pytest itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.speed.timing import Clock

ROOT = Path(__file__).resolve().parents[2]
#: Methods of the adapter that run the model or a part of it.
PASSES = ("run", "decode", "share", "logits_without", "logits_masked", "influence")


def main(instances: str | None = None) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    import pytest
    import torch

    torch.set_num_threads(1)
    from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
    from attnaudit.engine import measuring

    passes, measured = Clock(), Clock()
    for name in PASSES:
        passes.wrap(PooledAttentionAdapter, name)
    passes.wrap(torch.autograd, "grad")
    measured.wrap(measuring, "measure")
    with tempfile.TemporaryDirectory(prefix="attnaudit-") as folder:
        words = ["audits/", "--model", "demo", "-q", "-p", "no:cacheprovider", f"--audit-reports={folder}"]
        words += [f"--audit-max-instances={instances}"] if instances else []
        os.chdir(ROOT)
        held = io.StringIO()
        started = time.process_time()
        with contextlib.redirect_stdout(held):
            status = pytest.main(words)
        total = time.process_time() - started
    if status not in (0, 1):
        print(held.getvalue(), file=sys.stderr)
        return int(status)
    found = {"total": total, "passes": passes.seconds, "engine": measured.seconds - passes.seconds}
    print(json.dumps({**found, "rest": total - measured.seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
