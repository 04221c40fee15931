"""Audit a small model of every classifier and language model class in Transformers, and write docs/model_classes.md.

    python -m benchmarks.model_classes [--family FAMILY] [--only CLASS ...] [--out FILE] [--again]
    python -m benchmarks.model_classes --render

For each class, the script builds a small model with random weights, saves it as a checkpoint folder, loads the folder
as an audit does, and runs the full conformance suite. Language models are audited with label words. It appends one JSON
line per class to --out and skips the classes that the file has, so that it resumes where it was stopped. --render
writes the page from the file, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.measured_classes import INSTANCES, Row, measured

RESULTS = Path(__file__).resolve().parent / "model_classes.jsonl"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "model_classes.md"
STATES = ("audited", "refused", "failing", "timed out", "not built", "not run")
#: Family -> the class of Transformers that loads its checkpoints, the name of the mapping, and the section title.
FAMILIES = {
    "classifiers": (
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        "Classifiers",
    ),
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "Causal language models"),
    "encoder-decoder": (
        "AutoModelForSeq2SeqLM",
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        "Encoder–decoder language models",
    ),
}
INTRODUCTION = """\
# Every classifier and language model class in Transformers

The command `python -m benchmarks.model_classes` writes these tables. For each class, it saves a small model with
random weights as a checkpoint folder, loads the folder as an audit does, and runs the full conformance suite. Language
models are audited as classifiers, with [label words](transformers.md#what-is-audited).

* *audited*: the class passes the full suite. The table shows how many checks passed, and how many do not apply.
* *refused*: attnaudit does not load the class. The table gives the reason.
* *failing*: the class is loaded, but fails the conformance check that the table names.
* *timed out*: the suite took longer than the time limit.
* *not built*: the class was not tested, because no model with fewer than five million parameters could be built from a
  configuration.
* *not run*: the class has not been measured.

Some models carry information between tokens in modules without visible weights. The last column names these modules.
Every gate on such a model fails unless the policy accepts these modules
([Hybrids](transformers.md#hybrids-tokens-that-are-mixed-without-attention)), so an audit never ignores them silently.
"""


def class_names(family: str) -> list[str]:
    """Return the names of all classes of a family in the installed version of Transformers."""
    from transformers.models.auto import modeling_auto

    names = set(getattr(modeling_auto, FAMILIES[family][1]).values())
    return sorted(names, key=str.lower)


def read_rows(path: Path) -> dict[tuple[str, str], Row]:
    """Return the rows of a results file by family and class. Later lines replace earlier ones."""
    if not path.is_file():
        return {}
    found = [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return {(row.family, row.name): row for row in found}


def line_of(row: Row) -> str:
    """Return the line of a row in the results file. It has no entries for empty values."""
    return json.dumps({key: value for key, value in asdict(row).items() if value}, ensure_ascii=False)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a results file with one line per class, in the order of the page."""
    order = list(FAMILIES)
    ordered = sorted(rows, key=lambda row: (order.index(row.family), row.name.lower()))
    path.write_text("".join(f"{line_of(row)}\n" for row in ordered), encoding="utf-8", newline="\n")


def page(rows: Mapping[tuple[str, str], Row], names: Mapping[str, list[str]]) -> str:
    """Return the content of docs/model_classes.md.

    Args:
        rows: The measured rows by family and class.
        names: Family -> the names of its classes.
    """
    complete = {
        family: [rows.get((family, name), Row(family, name, "not run")) for name in listed]
        for family, listed in names.items()
    }
    lines = [INTRODUCTION, "| | classes | " + " | ".join(STATES) + " | with modules without visible weights |"]
    lines.append("|---" * (len(STATES) + 3) + "|")
    for family, found in complete.items():
        counts = Counter(row.state for row in found)
        numbers = [len(found), *(counts[state] for state in STATES), len([row for row in found if row.unseen])]
        lines.append(f"| {FAMILIES[family][2]} | " + " | ".join(map(str, numbers)) + " |")
    for family, found in complete.items():
        loader, _, title = FAMILIES[family]
        lines += ["", f"## {title}", "", f"The classes that `{loader}` loads.", ""]
        lines += ["| class | state | what was found | without visible weights |", "|---|---|---|---|"]
        lines += [f"| {row.name} | {row.state} | {_found(row)} | {_unseen(row)} |" for row in found]
    measured_rows = [row for found in complete.values() for row in found if row.seconds]
    if measured_rows:
        versions = " and ".join(sorted({row.versions for row in measured_rows}))
        seconds = sum(row.seconds for row in measured_rows)
        lines += [
            "",
            f"{versions}, CPU, float32; {len(INSTANCES)} texts. {seconds / 60:.0f} minutes of CPU time, "
            f"{seconds / len(measured_rows):.1f} s per class.{_different_suites(measured_rows)}",
        ]
    return "\n".join([*lines, ""])


def _different_suites(rows: Iterable[Row]) -> str:
    """Return a sentence that says how many classes were measured with an older suite; "" if none was."""
    sizes = Counter(row.passed + row.skipped for row in rows if row.state in ("audited", "failing"))
    sizes.pop(0, None)
    if len(sizes) < 2:
        return ""
    parts = [f"{count} with {size}" for size, count in sorted(sizes.items())]
    return (
        " The conformance suite has grown since some classes were measured. Number of classes with each number of "
        f"checks: {', '.join(parts)}."
    )


def _found(row: Row) -> str:
    if row.state == "audited":
        return f"{row.passed} passed, {row.skipped} not applicable"
    return row.reason.replace("|", "/") or "—"


def _unseen(row: Row) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in row.unseen.items()) or "—"


def measure(options: Any) -> None:
    """Measure the classes that the results file lacks, and append their rows to it."""
    known = {} if options.again else read_rows(options.out)
    for family in [options.family] if options.family else FAMILIES:
        for name in class_names(family):
            if (family, name) in known or (options.only and name not in options.only):
                continue
            row = measured(family, name, options.limit)
            with options.out.open("a", encoding="utf-8", newline="\n") as file:
                file.write(f"{line_of(row)}\n")
            print(line_of(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Audit a small model of every class in Transformers.")
    parser.add_argument("--family", choices=tuple(FAMILIES), help="measure the classes of this family only")
    parser.add_argument("--only", nargs="+", default=[], metavar="CLASS", help="measure these classes only")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE", help="the results file")
    parser.add_argument("--again", action="store_true", help="measure classes that the results file has")
    parser.add_argument("--limit", type=int, default=90, metavar="SECONDS", help="limit on the CPU time of a class")
    parser.add_argument("--render", action="store_true", help="write the page from the results, and measure nothing")
    options = parser.parse_args()
    unknown = set(options.only) - {name for family in FAMILIES for name in class_names(family)}
    if unknown:
        parser.error(f"Transformers has no classifier or language model {', '.join(sorted(unknown))}")
    if options.render:
        rows = read_rows(options.out)
        if not rows:
            parser.error(f"{options.out}: no results. Run the command without --render first.")
        write_rows(options.out, rows.values())
        PAGE.write_text(page(rows, {family: class_names(family) for family in FAMILIES}), "utf-8", newline="\n")
        return
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    measure(options)


if __name__ == "__main__":
    main()
