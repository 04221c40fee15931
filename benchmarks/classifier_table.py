"""Audit a small model of every classifier class of Transformers, and write docs/classifier_table.md.

    python -m benchmarks.classifier_table [--only CLASS ...]

For each class, the script builds a small model with random weights, saves it as a checkpoint folder, loads the folder
as an audit does, and runs the full conformance suite. With --only, it prints the rows of some classes, and writes
nothing.
"""

from __future__ import annotations

import argparse
import re
import signal
import tempfile
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers

from attnaudit.adapters.loading import load_model
from attnaudit.conformance import full
from attnaudit.errors import AuditError
from attnaudit.instances import Instance
from benchmarks.small_configurations import spread_weights, tiny_config
from tests import architectures

PAGE = Path(__file__).resolve().parents[1] / "docs" / "classifier_table.md"
INSTANCES = [Instance(id=str(i), text=text) for i, text in enumerate(architectures.SENTENCES)]
#: The time limit for one class, in seconds. A model that cannot be made small takes longer.
LIMIT = 120
#: The largest number of parameters of a small model.
LARGEST = 5_000_000
STATES = ("audited", "failing", "refused", "not built")
TITLE = "# Every classifier class of Transformers"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: The class.
        state: "audited" if it passes the full conformance suite, "failing" if it is loaded but does not pass the suite,
            "refused" if it is not loaded, and "not built" if no small model of it could be created.
        found: The conformance checks and the modules without visible weights, or the reason.
    """

    name: str
    state: str
    found: str


def class_names() -> list[str]:
    """Return the names of all classifier classes of the installed version of Transformers."""
    from transformers.models.auto import modeling_auto

    return sorted(set(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values()))


def row_of(name: str) -> Row:
    """Build, save, load and check a small model of a class."""
    tokenizer = architectures.tokenizer("unigram")
    with tempfile.TemporaryDirectory(prefix="attnaudit-") as folder:
        try:
            signal.alarm(LIMIT)
            model_class = getattr(transformers, name)
            config = tiny_config(model_class, tokenizer, classifies=True)
            torch.manual_seed(0)
            model = model_class(config).eval()
            if sum(parameter.numel() for parameter in model.parameters()) > LARGEST:
                raise RuntimeError("the smallest configuration found is a large model")
            spread_weights(model)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        # The table shows every error that a class raises.
        except Exception as error:
            return Row(name, "not built", _one_line(f"{type(error).__name__}: {error}"))
        finally:
            signal.alarm(0)
        try:
            adapter: Any = load_model(folder).adapter
            results = full(adapter, INSTANCES)
        except AuditError as error:
            return Row(name, "refused", _one_line(str(error).replace(folder, "the folder")))
    failed = [f"{one.check}: {one.detail}" for one in results if one.outcome == "fail"]
    if failed:
        return Row(name, "failing", _one_line("; ".join(failed)))
    counts = Counter(one.outcome for one in results)
    return Row(name, "audited", audited_text(counts["pass"], counts["skip"], adapter.capabilities.unseen_mixers))


def audited_text(passed: int, skipped: int, mixers: tuple[str, ...]) -> str:
    """Return the number of conformance checks, and the classes of the modules without visible weights."""
    kinds = Counter(re.findall(r"\((\w+)\)", " ".join(mixers)))
    named = ", ".join(f"{count} × {kind}" for kind, count in sorted(kinds.items()))
    return f"{passed} passed, {skipped} not applicable" + (f"; without visible weights: {named}" if named else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:220].replace("|", "/")


def page(rows: list[Row]) -> str:
    """Return the content of docs/classifier_table.md."""
    counts = Counter(row.state for row in rows)
    lines = [
        TITLE,
        "",
        "The command `python -m benchmarks.classifier_table` writes this page. For each class, it saves a small model",
        "with random weights as a checkpoint folder, loads the folder as an audit does, and runs the full conformance",
        "suite. *audited* classes pass it. *refused* classes are not loaded, for the reason given. *failing* ones",
        "are loaded, but fail a check of the suite. *not built* classes were not tested, because no model with fewer",
        "than five million parameters could be built from a configuration. Some models carry information between",
        "tokens in modules without visible weights; their gates then fail unless the policy accepts these modules",
        "([transformers.md](transformers.md#hybrids-tokens-that-are-mixed-without-attention)).",
        "",
        f"{len(rows)} classes: " + ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) + ".",
        "",
        "| class | state | what was found |",
        "|---|---|---|",
        *(f"| {row.name} | {row.state} | {row.found} |" for row in rows),
        "",
        f"transformers {version('transformers')}, torch {version('torch').partition('+')[0]}, CPU, float32; "
        f"{len(INSTANCES)} texts.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Audit a small model of every classifier class of Transformers.")
    parser.add_argument("--only", nargs="+", default=[], metavar="CLASS", help="print the rows of these classes only")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()

    def stop(*_: object) -> None:
        raise TimeoutError(f"no small model within {LIMIT} s")

    signal.signal(signal.SIGALRM, stop)
    rows = []
    for name in options.only or class_names():
        rows.append(row_of(name))
        print(rows[-1], flush=True)
    if not options.only:
        PAGE.write_text(page(rows), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
