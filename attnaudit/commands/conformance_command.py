"""`attnaudit conformance`: check whether the adapter of a model fulfils the contract that audits rely on."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnaudit.devices import NAMES, require_device
from attnaudit.errors import AuditError, DataError, ModelError, require_reachable, shown_error
from attnaudit.formatting import terminal_safe, without_commands
from attnaudit.records import ConformanceResult
from attnaudit.registry import begin_project, datasets, models
from attnaudit.run.audited_data import require_known_labels

if TYPE_CHECKING:
    from attnaudit.adapters.protocol import ModelAdapter
    from attnaudit.data.draws import Draws
    from attnaudit.instances import Dataset, Instance

#: The number of instances on which the checks run, and the size of the random sample from which they are selected.
COUNT, SAMPLE = 36, 1000
#: The files in which a project registers models and data sets for pytest. They are imported if a name is unknown.
CONFTESTS = ("conftest.py", "audits/conftest.py")
MINIMUM_WIDTH = 80
STYLES = {"pass": "green", "fail": "red", "skip": "dim"}
#: The check that compares an adapter with the original model. If it is skipped, this is shown below the summary.
COMPARISON = "original_model"
#: The exit status if the checks cannot run because of the device, the model or the data.
CANNOT_RUN = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `attnaudit conformance`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a checkpoint folder, a registered name (such as demo, or a name from conftest.py or audits/conftest.py), "
        "or a factory as package.module:factory",
    )
    parser.add_argument(
        "--data",
        metavar="DATA",
        help="the texts to run the checks on: a .jsonl, .csv or .parquet file, or a registered name (default: "
        "movie-reviews)",
    )
    parser.add_argument("--quick", action="store_true", help="run only the checks that run before every audit")
    parser.add_argument("--device", default="cpu", help=f"the device to run on: {NAMES} (default: cpu)")
    parser.epilog = (
        "Exit status: 0 if no check fails; 1 if a check fails; 2 if the device, the model or the data cannot be used."
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the conformance checks of an adapter and print the results.

    Returns:
        The exit status: 0 if no check fails, 1 if a check fails, 2 if the device, the model or the data cannot be used.
    """
    try:
        require_device("--device", options.device)
        draws = None if options.data is None else _draws(options.data)
        loaded = _load(options.model)
        if draws is not None:
            require_known_labels(draws, loaded.adapter.capabilities, SAMPLE)
        instances = None if draws is None else _instances(draws)
        results = _check(loaded.adapter, instances, options)
    except AuditError as error:
        print(f"attnaudit: {shown_error(error).removeprefix('--model ')}", file=sys.stderr)
        return CANNOT_RUN
    color = sys.stdout.isatty()
    print(table(results, width=shutil.get_terminal_size((100, 24)).columns, color=color))
    print(summary(results, loaded.name))
    return int(any(one.outcome == "fail" for one in results))


def _draws(data: str) -> Draws:
    """Open the data, so that an invalid row is reported before the model is loaded."""
    from attnaudit.data.draws import open_draws

    if data not in datasets and not Path(data).exists():
        read_conftests()
    draws = open_draws(data, 0)
    dataset: Dataset = draws.first(SAMPLE)
    if not dataset.instances:
        raise DataError(
            f"Data set '{dataset.name}' has no instances, so the model cannot be checked. Add at least one row."
        )
    return draws


def _instances(draws: Draws) -> Sequence[Instance]:
    from attnaudit.conformance.sample_texts import spread

    return spread(draws.first(SAMPLE).instances, COUNT)


def _load(model: str) -> Any:
    from attnaudit.adapters.loading import load_model

    require_reachable("--model", Path(model))
    if model not in models and not set(model) & set(":/\\"):
        read_conftests()  # even if a folder has this name: if conftest.py registers it too, the name is ambiguous
    return load_model(model)


def read_conftests() -> None:
    """Import conftest.py and audits/conftest.py, if they exist, to register their models, data sets and checks.

    Raises:
        ModelError: One of the files cannot be imported.
    """
    begin_project()
    for path in (p for p in map(Path, CONFTESTS) if p.is_file()):
        folder = _folder_of_imports(path.resolve())
        if folder not in sys.path:  # as pytest does, so that conftest.py can import modules next to it
            sys.path.insert(0, folder)
        # pytest gives its modules the same name. The hash of a model contains the module of its classes.
        spec = importlib.util.spec_from_file_location("conftest", path)
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # so that processes which measure shards can import it as well
        try:
            spec.loader.exec_module(module)
        except AuditError:
            raise
        except Exception as error:
            raise ModelError(
                f"{path}: cannot be imported to find what it registers: {type(error).__name__}: {error}."
            ) from error


def _folder_of_imports(file: Path) -> str:
    """Return the folder of a file or, if it is in a package, the folder that contains the package."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return str(folder)


def _check(
    adapter: ModelAdapter, instances: Sequence[Instance] | None, options: argparse.Namespace
) -> list[ConformanceResult]:
    from attnaudit.adapters.dispatched_models import place
    from attnaudit.conformance import Subject, cases

    place(adapter.modules, options.device, "--device")
    if not adapter.capabilities.query and any(one.query is not None for one in instances or ()):
        raise DataError(
            f"{options.data}: the rows have a query, but the model reads a single text. Remove the query from the "
            "data, or declare query=True if the model reads it."
        )
    pending = list(cases(Subject(options.model, lambda: adapter, instances, thorough=not options.quick)))
    results: list[ConformanceResult] = []
    with _progress() as status:
        for case in pending:
            if status is not None:
                status.update(f"{case.check.name} ({len(results) + 1} of {len(pending)})")
            results.append(case.result())
    return results


def _progress() -> AbstractContextManager[Any]:
    """Return a context that shows a status line if standard error is a terminal, and nothing otherwise."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status("loading") if console.is_terminal else nullcontext()


def table(results: Sequence[ConformanceResult], *, width: int, color: bool) -> str:
    """Format results as a table with one row per check.

    Args:
        results: The results.
        width: The width of the terminal in characters. The table is never narrower than 80.
        color: Whether to use ANSI colours.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = StringIO()
    console = Console(
        file=out,
        width=max(MINIMUM_WIDTH, width),
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        highlight=False,
    )
    rows = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    rows.add_column("check", no_wrap=True)
    rows.add_column("outcome", no_wrap=True)
    rows.add_column("details", overflow="fold", ratio=1)
    for one in results:
        rows.add_row(one.check, Text(one.outcome, style=STYLES[one.outcome]), Text(terminal_safe(one.detail)))
    console.print(rows)
    return without_commands("\n".join(line.rstrip() for line in out.getvalue().splitlines()))


def summary(results: Sequence[ConformanceResult], name: str) -> str:
    """Return lines that say whether a model fulfils the contract, with the number of checks of each outcome.

    If the adapter was not compared with the original model, this is the last line.
    """
    name = terminal_safe(name)
    count = {outcome: sum(one.outcome == outcome for one in results) for outcome in STYLES}
    parts = f"{count['pass']} passed, {count['fail']} failed, {count['skip']} skipped"
    if count["fail"]:
        return f"{name} breaks the adapter contract: {parts}. An audit would reject the model or give wrong results."
    skipped = [one.detail for one in results if one.check == COMPARISON and one.outcome == "skip"]
    return "\n".join([f"{name} fulfils the adapter contract: {parts}.", *(f"It was {why}." for why in skipped)])
