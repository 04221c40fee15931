"""The command `attnaudit plant`: build a population of planted models."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from attnaudit.command_parser import add_folder_option, one_of, require_writable_folder, whole_number
from attnaudit.errors import ModelError, invalid_input
from attnaudit.formatting import terminal_safe
from attnaudit.processes import processors

QUICK_SEEDS, SEEDS = 2, 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `attnaudit plant`."""
    parser.description = (
        "Build small models whose attention is known to be faithful or unfaithful. Each model is a checkpoint folder "
        "for --model; population.json lists what is known about their attention. Run the command again to "
        "resume: finished models are kept. A model that does not meet the requirements of its label is listed in "
        "excluded.json with the reason."
    )
    parser.epilog = (
        "Exit status: 0 if the models were built, even if some of them are excluded; 2 if an option is invalid; 1 "
        "after any other error."
    )
    add_folder_option(parser, "--out", "folder to write the models to", required=True)
    parser.add_argument(
        "--quick", action="store_true", help=f"change the default of --seeds from {SEEDS} to {QUICK_SEEDS}"
    )
    parser.add_argument(
        "--seeds",
        type=whole_number,
        metavar="N",
        help=f"number of models of each compiled kind (default: {SEEDS}); trained kinds get half as many, and kinds of "
        "unknown truth a third (docs/planted.md lists the kinds). With --family transformer, N is the number of seeds "
        "of each mechanism (default: 3, or 1 with --quick); --quick then builds the models in only one architecture",
    )
    parser.add_argument(
        "--kind",
        action="append",
        metavar="NAME",
        help="build only this kind, or this mechanism of Transformers; may be repeated",
    )
    parser.add_argument(
        "--family",
        type=one_of(("pooled", "transformer", "multi-label")),
        metavar="{pooled,transformer,multi-label}",
        default="pooled",
        help="pooled: build models with pooled attention; transformer: build Transformers in which it is known which "
        "layers and heads are right; multi-label: build such Transformers with several labels (default: pooled)",
    )
    parser.add_argument(
        "--jobs", type=whole_number, metavar="N", help="how many models to build at a time (default: one per CPU)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Build the population and print a table of it.

    Returns:
        The exit status 0.

    Raises:
        AuditError: An option is invalid, or a file or folder cannot be written.
    """
    seeds = arguments.seeds if arguments.seeds is not None else QUICK_SEEDS if arguments.quick else SEEDS
    jobs = arguments.jobs if arguments.jobs is not None else processors()
    with invalid_input():
        for name, value in (("seeds", seeds), ("jobs", jobs)):
            if value < 1:
                raise ModelError(f"--{name} {value}: expected a whole number of at least 1.")
        if arguments.family == "multi-label" and arguments.kind:
            raise ModelError("--kind: --family multi-label always builds all of its models. Leave --kind out.")
        require_writable_folder("--out", arguments.out)
    from attnaudit.research.planted import planted_population

    started = time.monotonic()

    def show(done: int, total: int | None, note: str) -> None:
        print(f"[{done}/{total}, {time.monotonic() - started:.0f} s] {note}", file=sys.stderr, flush=True)

    if arguments.family == "transformer":
        from attnaudit.research.planted_transformers import transformer_population

        records = transformer_population.build_transformers(
            arguments.out,
            quick=arguments.quick,
            seeds=arguments.seeds,
            only=arguments.kind,
            jobs=jobs,
            progress=show,
        )
        transformer_population.write_lists(arguments.out, records)
    elif arguments.family == "multi-label":
        from attnaudit.research.planted_transformers import planted_labels, transformer_population

        label_seeds = arguments.seeds or (1 if arguments.quick else planted_labels.SEEDS)
        records = planted_labels.build_labels(arguments.out, seeds=label_seeds, jobs=jobs, progress=show)
        transformer_population.write_lists(arguments.out, records)
    else:
        with invalid_input():
            planned = planted_population.plans(seeds=seeds, only=arguments.kind)
        records = planted_population.build(arguments.out, planned, jobs=jobs, progress=show)
    print(table(records))
    written = terminal_safe(str(arguments.out / planted_population.POPULATION_FILE))
    print(f"Wrote {written} after {time.monotonic() - started:.0f} s.")
    return 0


def table(records: list[dict[str, Any]]) -> str:
    """Return a table of a population as text.

    For each kind, it gives the number of models and the range of each measured value. Totals by label follow.
    """
    lines = [
        f"{'kind':28} {'truth':10} {'tuning':>6} {'held out':>8} {'excluded':>8}  rank agreement   accuracy      share"
    ]
    for kind in sorted({record["kind"] for record in records}, key=lambda name: (_truth(records, name), name)):
        rows = [record for record in records if record["kind"] == kind]
        included = [row for row in rows if not row["excluded_because"]]
        halves = [sum(row["half"] == half for row in included) for half in ("tuning", "held_out")]
        ranges = "  ".join(f"{_range(included, name):>14}" for name in ("rank_agreement", "accuracy", "bypass_share"))
        counts = f"{halves[0]:6} {halves[1]:8} {len(rows) - len(included):8}"
        lines.append(f"{kind:28} {_truth(records, kind):10} {counts}  {ranges}")
    for truth in ("faithful", "unfaithful"):
        labelled = [row for row in records if row["truth"] == truth and not row["excluded_because"]]
        tuning = sum(row["half"] == "tuning" for row in labelled)
        lines.append(f"{truth}: {len(labelled)} models, {tuning} for tuning, {len(labelled) - tuning} held out")
    return "\n".join(lines)


def _truth(records: list[dict[str, Any]], kind: str) -> str:
    return next(str(record["truth"]) for record in records if record["kind"] == kind)


def _range(rows: list[dict[str, Any]], name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return f"{min(values):.2f} to {max(values):.2f}" if values else "-"
