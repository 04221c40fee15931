"""Audit models from public repositories, and write docs/public_models.md.

    python -m benchmarks.public_models FOLDER [--only NAME ...]
    python -m benchmarks.public_models --clone-commands

FOLDER holds clones of the repositories, which the second command lists. The files are imported unchanged. Models are
small, with random weights from a configuration; nothing is downloaded. Each model goes through the full conformance
suite and a few checks on the packaged movie reviews. Its logits, its attention weights and, for some models,
leave-one-out are compared with a plain forward pass. With --only, the rows of some models are printed, and no page is
written.
"""

from __future__ import annotations

import argparse
import ast
import copy
import inspect
import subprocess
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from attnaudit.checks import Agreement, Pointing, TotalEffect, UniformFragility
from attnaudit.checks.base import Check
from attnaudit.conformance import full
from attnaudit.data import load, sample
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import AuditError
from attnaudit.instances import Dataset, Instance
from benchmarks.public_adapters import PublicModel, draw_weights, imported_from
from benchmarks.public_repositories import MODELS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "public_models.md"
REVIEWS = 32
#: Reviews that are compared with a plain forward pass. The leave-one-out variants of each run one by one.
COMPARED = 8
CHECKS: tuple[Check, ...] = (
    TotalEffect(on="standardised", severity="report"),
    Pointing(on="logits", measure="cosine", severity="report"),
    UniformFragility(severity="report"),
    Agreement(importance="leave_one_out", severity="report"),
)
#: Largest difference from a plain forward pass that rounding in float32 explains.
TOLERANCE = 1e-5
#: Package -> the name under which it is imported, if that is another one.
IMPORTED = {"scikit-learn": "sklearn", "Pillow": "PIL"}
LEAVE_ONE_OUT = "leave_one_out.inputs.change"


class UnexpectedError(Exception):
    """A model that should be audited is refused or fails, or the other way round, or a number is wrong."""


class SetupError(Exception):
    """A clone or a package is missing, or a clone is not as expected."""


class Cloned(Protocol):
    """A model in a clone of a public repository."""

    @property
    def repository(self) -> str:
        """Owner and name of the repository on GitHub."""

    @property
    def commit(self) -> str:
        """The commit that is audited."""

    @property
    def file(self) -> str:
        """The file that defines the model."""

    @property
    def folder(self) -> str:
        """The name of the folder that `git clone` makes."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that the file imports, and that attnaudit does not need."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the tables.

    Attributes:
        model: The model.
        lines: Lines of adapter code.
        conformance: The numbers of conformance checks; "" if the model is refused.
        values: The number of checks with a value.
        differences: What is compared -> the largest difference from a plain forward pass.
        refusal: The message that refuses the model; "" if it is audited.
    """

    model: PublicModel
    lines: int
    conformance: str = ""
    values: int = 0
    differences: dict[str, float] | None = None
    refusal: str = ""


# -- clones --------------------------------------------------------------------------------------------------------


def clone_commands(model: Cloned) -> list[str]:
    """Return the shell commands that clone the repository of a model at its commit."""
    return [
        f"git clone https://github.com/{model.repository}",
        f"git -C {model.folder} checkout --quiet {model.commit}",
    ]


def all_clone_commands() -> list[str]:
    """Return the commands for all repositories, each once."""
    return list(dict.fromkeys(line for model in MODELS for line in clone_commands(model)))


def require_clone(model: Cloned, folder: Path) -> Path:
    """Return the clone of a model's repository.

    Raises:
        SetupError: It is missing, at another commit or changed, or a package that the file imports is missing.
    """
    clone = folder / model.folder
    commands = [f"\n    {line}" for line in clone_commands(model)]
    if not (clone / model.file).is_file():
        raise SetupError(f"{clone} is no clone of {model.repository}. Run in {folder}:{''.join(commands)}")
    commit = _git(clone, "rev-parse", "HEAD")
    if commit != model.commit:
        raise SetupError(f"{clone} is at commit {commit}; expected {model.commit}. Run in {folder}:{commands[-1]}")
    if _git(clone, "status", "--porcelain", "--untracked-files=no", "--", "*.py"):
        raise SetupError(
            f"{clone} has changed Python files. Run: git -C {clone} checkout --quiet --force {model.commit}"
        )
    missing = [name for name in model.packages if find_spec(IMPORTED.get(name, name)) is None]
    if missing:
        raise SetupError(f"{model.repository} imports {', '.join(missing)}. Run: pip install {' '.join(missing)}")
    return clone


def _git(clone: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"git -C {clone} {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout.strip()


# -- one model -----------------------------------------------------------------------------------------------------


def row_of(model: PublicModel, folder: Path) -> Row:
    """Build, adapt, check and compare a model.

    Raises:
        SetupError: The clone is not as expected.
        UnexpectedError: A model that should be audited is refused or fails, or the other way round, or a number differs
            from that of the plain forward pass.
    """
    clone = require_clone(model, folder)
    row = Row(model, lines_of(model.adapt))
    with imported_from(clone / model.import_folder):
        torch.manual_seed(0)
        module, tokenizer = model.build(clone)
        draw_weights(module)
        module.eval()
        plain = copy.deepcopy(module)
        try:
            adapter = model.adapt(module, tokenizer)
        except AuditError as error:
            if model.forward is not None:
                raise UnexpectedError(f"{model.name} is refused: {error}") from error
            return Row(model, row.lines, refusal=str(error))
        if model.forward is None:
            raise UnexpectedError(f"{model.name} can now be audited: add its forward pass")
        dataset = sample(load("movie-reviews"), REVIEWS, 0)
        if model.pairs:
            dataset = paired(dataset)
        results = full(adapter, dataset.instances)
        failed = [f"{one.check}: {one.detail}" for one in results if one.outcome == "fail"]
        if failed:
            raise UnexpectedError(f"{model.name}: {failed}")
        counts = Counter(one.outcome for one in results)
        needs = sorted({LEAVE_ONE_OUT.rpartition(".")[0], *(need for check in CHECKS for need in check.needs())})
        measured = measure(adapter, dataset, needs, model=model.name, seed=0)[0]
        values = [check.judge(measured).value for check in CHECKS]
        differences = compare(model, plain, adapter, tokenizer, measured)
    wrong = {what: one for what, one in differences.items() if not one <= TOLERANCE}
    if wrong:
        raise UnexpectedError(f"{model.name} differs from the plain forward pass: {wrong}")
    return Row(
        model,
        row.lines,
        conformance=f"{counts['pass']} passed, {counts['skip']} not applicable",
        values=sum(value is not None for value in values),
        differences=differences,
    )


def paired(dataset: Dataset) -> Dataset:
    """Give every review another one as its query."""
    others = (*dataset.instances[1:], dataset.instances[0])
    pairs = [replace(one, query=other.text) for one, other in zip(dataset.instances, others, strict=True)]
    return replace(dataset, instances=tuple(pairs))


def lines_of(adapt: Callable[..., Any]) -> int:
    """Count the lines of a function's body that are neither empty nor comments."""
    source = textwrap.dedent(inspect.getsource(adapt))
    first = next(node.body[0].lineno for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    body = source.splitlines()[first - 1 :]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in body)


def compare(model: PublicModel, plain: Any, adapter: Any, tokenizer: Any, measured: Measurements) -> dict[str, float]:
    """Return the largest differences between the audit and a plain forward pass of an untouched copy of the model."""
    forward, attention = model.forward, model.attention
    if forward is None or attention is None:
        raise UnexpectedError(f"{model.name} has no plain forward pass to compare with")
    instances: list[Instance] = list(measured.instances[:COMPARED])
    texts = [one.text for one in instances]
    queries = [one.query for one in instances] if model.pairs else None
    batch = tokenizer(texts, queries, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        trace = adapter.run(adapter.collate(instances))
        logits = forward(plain, batch)
        expected = attention(plain, batch)
    differences = {"logits": _largest(trace.logits - logits)}
    weights = []
    for stack, layers in expected.items():
        sites = [site for site in adapter.sites() if site.key.partition(".")[0] == stack]
        for site, layer in zip(sites, layers, strict=True):
            weights.append(_largest((trace.attention[site.key] - layer) * trace.allowed[site.key]))
    differences["attention"] = largest_of(weights)
    if model.deletes:
        change = measured.vectors[LEAVE_ONE_OUT][:COMPARED]
        alone = [leave_one_out(forward, plain, tokenizer, text) for text in texts]
        changed = [float(np.abs(a - b).max()) for a, b in zip(change, alone, strict=True)]
        differences["leave-one-out"] = largest_of(changed)
    return differences


def largest_of(differences: Sequence[float]) -> float:
    """Return the largest of some differences, or NaN if one of them is NaN. The function `max` could lose the NaN."""
    return float(np.max(differences))


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())


def leave_one_out(forward: Callable[..., Tensor], plain: Any, tokenizer: Any, text: str) -> np.ndarray[Any, Any]:
    """Return the total variation between the output with and without each token of a text, one pass per token."""
    batch = tokenizer([text], truncation=True, return_tensors="pt", return_special_tokens_mask=True)
    special = batch.pop("special_tokens_mask")[0].bool()
    changes = []
    with torch.no_grad():
        whole = _probabilities(forward(plain, batch))
        for token in (~special).nonzero()[:, 0].tolist():
            kept = [i for i in range(len(special)) if i != token]
            without = _probabilities(forward(plain, {name: value[:, kept] for name, value in batch.items()}))
            changes.append(float((whole - without).abs().sum()) / 2)
    return np.array(changes)


def _probabilities(logits: Tensor) -> Tensor:
    """Return the class probabilities (B, C). A single logit is that of the second of two classes."""
    logits = logits.double()
    return logits.softmax(-1) if logits.shape[1] > 1 else torch.cat([1 - logits.sigmoid(), logits.sigmoid()], 1)


# -- the page ------------------------------------------------------------------------------------------------------


def page(rows: Sequence[Row]) -> str:
    """Return the content of docs/public_models.md."""
    audited = [row for row in rows if row.differences is not None]
    refused = [row for row in rows if row.differences is None]
    packages = sorted({package for model in MODELS for package in model.packages})
    lines = [
        "# Models from public repositories",
        "",
        "The command `python -m benchmarks.public_models FOLDER` writes this page. Each model comes from a public",
        "repository, whose files are imported unchanged from a clone. The model is small and has random weights, so",
        "nothing is downloaded. The values of its checks therefore say nothing about the published weights, and are",
        f"not shown. The model goes through the full conformance suite, and {len(CHECKS)} checks are measured on",
        f"{REVIEWS} of the packaged movie reviews.",
        "",
        "* *lines* are the lines of code that make the model auditable, in addition to those that load it. They are in",
        "  [benchmarks/public_adapters.py](../benchmarks/public_adapters.py).",
        "* *conformance* is the number of checks of the full suite that passed, failed or did not apply.",
        "* *logits*, *attention* and *leave-one-out* are the largest differences from a plain forward pass of an",
        "  untouched copy of the model, called as in its repository and without attnaudit. The attention of the",
        "  plain pass is that of the eager kernel of Transformers, at every layer and head. For leave-one-out, the",
        f"  plain pass deletes one token at a time. {COMPARED} reviews are compared. A difference above {TOLERANCE:g}",
        "  stops the command.",
        "",
        "| model | licence | what is special | lines | conformance | checks with a value | logits | attention "
        "| leave-one-out |",
        "|---|---|---|---:|---|---:|---:|---:|---:|",
        *(_audited_line(row) for row in audited),
        "",
        "## Refused, with the reason",
        "",
        "These models would give wrong results in an audit. attnaudit refuses them, and its message gives the reason "
        "and what to change in the model.",
        "",
        "| model | licence | what is special | message |",
        "|---|---|---|---|",
        *(
            f"| {_link(row.model)} | {row.model.licence} | {row.model.special} | {_cell(row.refusal)} |"
            for row in refused
        ),
        "",
        "## Run it again",
        "",
        "Clone the repositories into a folder. Some of them import packages that attnaudit does not need:",
        "",
        "```",
        *all_clone_commands(),
        f"pip install {' '.join(packages)}",
        "python -m benchmarks.public_models FOLDER",
        "```",
        "",
        f"transformers {version('transformers')}, torch {version('torch').partition('+')[0]}, CPU, float32.",
        "",
    ]
    return "\n".join(lines)


def _audited_line(row: Row) -> str:
    numbers = row.differences or {}
    shown = " | ".join(
        f"{numbers[what]:.1e}" if what in numbers else "—" for what in ("logits", "attention", "leave-one-out")
    )
    return (
        f"| {_link(row.model)} | {row.model.licence} | {row.model.special} | {row.lines} | {row.conformance} | "
        f"{row.values} of {len(CHECKS)} | {shown} |"
    )


def _link(model: PublicModel) -> str:
    place = f"https://github.com/{model.repository}/blob/{model.commit}/{model.file}"
    return f"{model.name} of [{model.repository}]({place}), commit {model.commit[:7]}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.public_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, nargs="?", help="the folder that holds the clones")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="owner/name of repositories")
    parser.add_argument("--clone-commands", action="store_true", help="print the commands that clone the repositories")
    options = parser.parse_args()
    if options.clone_commands:
        print("\n".join(all_clone_commands()))
        return
    if options.folder is None:
        parser.error("give the folder that holds the clones; --clone-commands prints how to make them")
    unknown = sorted(set(options.only) - {model.repository for model in MODELS})
    if unknown:
        parser.error(f"--only: no repository {', '.join(unknown)}; there are {', '.join(_repositories())}")
    torch.set_num_threads(1)
    rows = []
    try:
        for model in MODELS:
            if not options.only or model.repository in options.only:
                rows.append(row_of(model, options.folder.resolve()))
                print(rows[-1].refusal or _audited_line(rows[-1]), flush=True)
    except SetupError as error:
        parser.exit(1, f"{error}\n")
    if not options.only:
        PAGE.write_text(page(rows), encoding="utf-8")
        print(f"wrote {PAGE.name}")


def _repositories() -> list[str]:
    return sorted({model.repository for model in MODELS})


if __name__ == "__main__":
    main()
