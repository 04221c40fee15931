"""The command `attnaudit validate`: measure how often the verdicts of the policies are right."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from attnaudit.command_parser import add_folder_option, require_writable_folder, whole_number
from attnaudit.devices import NAMES, require_device
from attnaudit.errors import AuditError, invalid_input, require_seed
from attnaudit.formatting import terminal_safe
from attnaudit.processes import processors
from attnaudit.progress import progress_bar

#: With this value of --policy, the policies that the rule chooses are validated.
RULE = "rule"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `attnaudit validate`."""
    parser.epilog = (
        "Exit status: 0 if the results were written, even if a policy misses the goals; 2 if an option is invalid or a "
        "file that it names cannot be read; 1 after any other error."
    )
    add_folder_option(
        parser,
        "--population",
        "folder with a population.json from `attnaudit plant` (default: build a population below --out)",
    )
    add_folder_option(
        parser,
        "--out",
        "folder for the results; run the command again with the same folder to resume",
        default=Path("validation"),
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="FILE",
        help=f"TOML policy to validate, or '{RULE}' for the policies chosen on the tuning half. May be repeated, with "
        "one policy for pooled attention and one for Transformers (default: the shipped policies)",
    )
    parser.add_argument(
        "--remedies",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="remedies.json written by `attnaudit reproduce`; its remedies are added to the chosen policy. May be "
        "repeated; if several files have a remedy for the same question and training option, the first is used",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="measure fewer instances and fewer checks; takes minutes instead of hours",
    )
    parser.add_argument(
        "--no-invariances",
        action="store_true",
        help="do not test the invariances, that is, whether the gates keep their values under changes that should not "
        "matter",
    )
    parser.add_argument(
        "--seed",
        type=whole_number,
        default=0,
        metavar="N",
        help="seed of samples, permutations and intervals (default: 0)",
    )
    parser.add_argument(
        "--jobs",
        type=whole_number,
        metavar="N",
        help="number of processes, with one thread each (default: one per core)",
    )
    parser.add_argument("--device", default="cpu", help=f"the device to measure on: {NAMES} (default: cpu)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the validation, write its files and print a summary.

    Without --population, build a population first.

    Returns:
        The exit status 0, even if the policy misses the goals.

    Raises:
        AuditError: An option is invalid, an input cannot be read, or a file cannot be written.
    """
    from attnaudit.research.study.report_files import write_files
    from attnaudit.research.validation import validation_report
    from attnaudit.research.validation.candidate_policy import SHIPPED_POLICIES, read_policy, shipped_policy
    from attnaudit.research.validation.validate import ValidationOptions, validate
    from attnaudit.research.validation.validation_summary import summary

    with invalid_input():
        require_seed("--seed", options.seed)
        require_device("--device", options.device)
        jobs = options.jobs if options.jobs is not None else processors()
        if jobs < 1:
            raise AuditError(f"--jobs {jobs}: expected 1 or more.")
        if options.policy is None:
            policies = [shipped_policy(family) for family in SHIPPED_POLICIES]
        else:
            policies = [Path(name) for name in options.policy if name != RULE]
        for policy in policies:
            # Planting models may take hours. An invalid policy is an error before that.
            read_policy(policy)
        require_writable_folder("--out", options.out)
    population = options.population or _plant(options, jobs)
    with progress_bar("measuring") as progress:
        validation, chosen = validate(
            ValidationOptions(
                population=population,
                out=options.out,
                policies=policies,
                seed=options.seed,
                quick=options.quick,
                jobs=jobs,
                device=options.device,
                invariances=not options.no_invariances,
                remedies=options.remedies,
            ),
            progress=progress,
        )
    written = validation_report.write(validation, options.out)
    if chosen:
        written += write_files(options.out, chosen)
    print(summary(validation, width=shutil.get_terminal_size((100, 24)).columns))
    for path in written:
        print(terminal_safe(str(path)))
    return 0


def _plant(options: argparse.Namespace, jobs: int) -> Path:
    """Build a population below --out and return its folder. Models that already exist are kept."""
    from attnaudit.research.planted import planted_population
    from attnaudit.research.planted.plant_command import QUICK_SEEDS, SEEDS
    from attnaudit.research.planted_transformers import transformer_population

    folder: Path = options.out / "population"
    plans = planted_population.plans(seeds=QUICK_SEEDS if options.quick else SEEDS)
    shown = terminal_safe(str(folder))
    print(
        f"Building {len(plans)} planted models with pooled attention, and planted Transformers, in {shown}; models "
        "that already exist are kept.",
        file=sys.stderr,
    )
    with progress_bar("planting") as progress:
        planted_population.build(folder, plans, jobs=jobs, progress=progress)
    with progress_bar("building planted Transformers") as progress:
        records = transformer_population.build_transformers(folder, quick=options.quick, jobs=jobs, progress=progress)
    transformer_population.write_lists(folder, records)
    return folder
