"""Audit public models with pooled attention, and write docs/public_pooled.md.

    python -m benchmarks.public_pooled FOLDER [--only NAME ...]
    python -m benchmarks.public_pooled --clone-commands

FOLDER holds clones of the repositories, which the second command lists. The files are imported unchanged. The models
are small, with random weights; nothing is downloaded. Each model goes through the full conformance suite and two
checks. Its outputs, its attention, and its outputs without each unit are compared with its own forward pass. With
--only, the rows of some models are printed, and no page is written.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

from attnaudit.checks import Pointing, TotalEffect
from attnaudit.conformance import full
from attnaudit.data import load
from attnaudit.engine.batches.logits import probabilities
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from benchmarks.public_adapters import draw_weights
from benchmarks.public_models import TOLERANCE, SetupError, clone_commands, lines_of, require_clone
from benchmarks.public_pooled_adapters import MODELS, PooledModel

PAGE = Path(__file__).resolve().parents[1] / "docs" / "public_pooled.md"
#: Instances that are measured, and instances that are compared with the forward pass of the model.
MEASURED, COMPARED = 32, 8
#: Numbers of units in the bags.
SIZES = (2, 5, 10, 20, 30, 40)
CHECKS = (TotalEffect(on="standardised", severity="report"), Pointing(on="logits", severity="report"))
LEAVE_ONE_OUT = "leave_one_out.inputs"


def module_of(file: Path) -> ModuleType:
    """Import a file, without the package around it."""
    specification = importlib.util.spec_from_file_location("public_pooled_model", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with mock.patch.dict(sys.modules, {"keras": ModuleType("keras")}):  # which one file imports and never uses
        specification.loader.exec_module(module)
    return module


def instances_for(reads: str, folder: Path) -> tuple[Instance, ...]:
    """Return packaged review sentences of 4 to 10 words, or bags of digits, as `PooledModel.reads` says."""
    if reads.startswith("bag"):
        return bags(folder, enlarged=reads == "bag of pictures")
    rows = [one for one in load("movie-reviews").instances if 4 <= len(one.text.split()) <= 10][: MEASURED + 2]
    texts = [one.text for one in rows]
    return tuple(
        Instance(
            id=rows[n].id,
            text="\n".join(texts[n : n + 3]) if reads == "sentences" else texts[n],
            query=texts[n + 1] if reads == "pair" else None,
        )
        for n in range(MEASURED)
    )


def bags(folder: Path, *, enlarged: bool) -> tuple[Instance, ...]:
    """Write bags of digits of 8 × 8 pixels, or enlarged to 28 × 28 pixels."""
    from sklearn.datasets import load_digits

    pictures = torch.from_numpy(load_digits().images).float()[:, None] / 16
    if enlarged:
        pictures = torch.nn.functional.interpolate(pictures, size=(28, 28), mode="bilinear")
    generator = torch.Generator().manual_seed(0)
    names = [f"bag_{number}.npy" for number in range(MEASURED)]
    for number, name in enumerate(names):
        chosen = torch.randint(len(pictures), (SIZES[number % len(SIZES)],), generator=generator)
        np.save(folder / name, pictures[chosen].flatten(1).numpy())
    (folder / "bags.csv").write_text("\n".join(["file", *names]) + "\n", encoding="utf-8")
    return tuple(load(folder / "bags.csv").instances)


def line_of(public: PooledModel, folder: Path) -> str:
    """Audit a model, compare it with its own forward pass, and return its line of the table.

    Raises:
        SetupError: The clone is not as expected.
        SystemExit: A conformance check fails, a check has no value, or a difference is above `TOLERANCE`.
    """
    clone = require_clone(public, folder)
    torch.manual_seed(0)
    model = public.build(module_of(clone / public.file))
    draw_weights(model)
    model.eval()
    untouched = copy.deepcopy(model)
    with TemporaryDirectory(prefix="attnaudit-") as scratch:
        instances = instances_for(public.reads, Path(scratch))
        started = time.process_time()
        adapter = public.adapt(model)
        outcomes = Counter(one.outcome for one in full(adapter, instances))
        data = Dataset(name="data", source="", description="", instances=instances)
        needs = sorted({LEAVE_ONE_OUT, *(need for check in CHECKS for need in check.needs())})
        measured, _ = measure(adapter, data, needs, model=public.name, seed=0)
        values = [check.judge(measured).value for check in CHECKS]
        seconds = time.process_time() - started
        differences = largest_differences(public, untouched, adapter, measured)
    if outcomes["fail"] or None in values:
        raise SystemExit(f"{public.name}: conformance {dict(outcomes)}, values {values}.")
    if not all(one <= TOLERANCE for one in differences.values()):
        raise SystemExit(f"{public.name}: {differences}; expected at most {TOLERANCE:g}.")
    place = f"https://github.com/{public.repository}/blob/{public.commit}/{public.file}"
    return (
        f"| {public.name} of [{public.repository}]({place}), commit {public.commit[:7]} | {public.licence} | "
        f"{public.what} | {lines_of(public.adapt)} | {seconds:.1f} | {outcomes['pass']} passed, {outcomes['skip']} not "
        f"applicable | {' | '.join(f'{one:.1e}' for one in differences.values())} |"
    )


@torch.no_grad()
def largest_differences(public: PooledModel, model: Any, adapter: Any, measured: Measurements) -> dict[str, float]:
    """Return the largest differences from the model's own forward pass: of the log-probabilities of the classes, of
    the attention, and of the change in the probabilities without each unit."""
    worst = dict.fromkeys(("log-probabilities", "attention", "leave-one-out"), 0.0)
    for i, instance in enumerate(measured.instances[:COMPARED]):
        p, weights = public.plain(model, instance, None)
        without = [public.plain(model, instance, unit)[0] for unit in range(len(weights))]
        changes = [float((p - other).abs().sum()) / 2 for other in without]
        audited = probabilities(adapter.run(adapter.collate([instance])).logits)[0]
        pairs = {
            "log-probabilities": (audited.log(), p.double().log()),
            "attention": (measured.vector("attention")[i], weights),
            "leave-one-out": (measured.vector(f"{LEAVE_ONE_OUT}.change")[i], changes),
        }
        for name, (ours, theirs) in pairs.items():
            difference = np.abs(np.asarray(ours) - np.asarray(theirs)).max()
            worst[name] = float(np.maximum(worst[name], difference))  # NaN if a difference is NaN
    return worst


def page(lines: list[str]) -> str:
    """Return the text of docs/public_pooled.md, given the lines of its table."""
    return f"""# Public models with pooled attention

The command `python -m benchmarks.public_pooled FOLDER` writes this page. It audits models with [pooled
attention](pooling.md) or with [bags of vectors](bags.md) from public repositories, whose files are imported unchanged
from clones in FOLDER. The models are small, and their weights are drawn at random: nothing is downloaded. The values of
the checks therefore say nothing about trained models, and are not shown. The columns are:

* *lines*: the lines of code that make the model auditable, in addition to those that load it. They are in
  [benchmarks/public_pooled_adapters.py](../benchmarks/public_pooled_adapters.py).
* *seconds*: the CPU time of the full conformance suite, of leave-one-out, and of two checks. The data are {MEASURED}
  packaged reviews, documents of three reviews, pairs of reviews, or bags of up to {max(SIZES)}
  handwritten digits from scikit-learn.
* *log-probabilities*, *attention* and *leave-one-out*: the largest differences from the model's own `forward`, called
  on {COMPARED} instances without attnaudit. For leave-one-out, `forward` runs once without each word or vector.
  The command stops if a difference is above {TOLERANCE:g}.

| model | licence | what it is | lines | seconds | conformance | log-probabilities | attention | leave-one-out |
|---|---|---|---:|---:|---|---:|---:|---:|
{chr(10).join(lines)}

* CLAM returns the scores before the softmax. Its adapters return the weights after the softmax. `CLAM_MB` has one
  branch of attention per class, and its explanation is the branch of the predicted class.
* `StructuredSelfAttention` and `atten` do not mask padding. Their adapters do, so that the numbers do not depend on the
  batch. The comparison runs one text at a time, without padding.
* `atten` does not return its weights. For the comparison, they are recorded where it calls `softmax`.

## Run it again

```
{chr(10).join(all_clone_commands())}
python -m benchmarks.public_pooled FOLDER
```

torch {torch.__version__.partition("+")[0]}, CPU, float32, one thread.
"""


def all_clone_commands() -> list[str]:
    """Return the commands that clone all repositories, each once."""
    return list(dict.fromkeys(line for model in MODELS for line in clone_commands(model)))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.public_pooled",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, nargs="?", help="the folder that holds the clones")
    names = [model.name for model in MODELS]
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME", help="names of models")
    parser.add_argument("--clone-commands", action="store_true", help="print the commands that clone the repositories")
    options = parser.parse_args()
    if options.clone_commands:
        print("\n".join(all_clone_commands()))
        return
    if options.folder is None:
        parser.error("give the folder that holds the clones; --clone-commands prints how to make them")
    torch.set_num_threads(1)
    lines = []
    try:
        for model in MODELS:
            if model.name in options.only:
                lines.append(line_of(model, options.folder.resolve()))
                print(lines[-1], flush=True)
    except SetupError as error:
        parser.exit(1, f"{error}\n")
    if len(lines) == len(MODELS):
        PAGE.write_text(page(lines), encoding="utf-8")
        print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
