"""`attnaudit validate`: the audit of the audit."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from attnaudit.devices import NAMES, require_device
from attnaudit.errors import AuditError, ReportError, require_seed
from attnaudit.processes import processors
from attnaudit.progress import progress_bar

RULE = "rule"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--population",
        type=Path,
        metavar="DIR",
        help="a folder with population.json, such as `attnaudit plant` makes (default: one is planted below --out)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("validation"),
        metavar="DIR",
        help="where results go, and where a run that was stopped goes on (default: validation)",
    )
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help=f"the TOML policy to try (default: the shipped one); '{RULE}' tries what the tuning half chooses",
    )
    parser.add_argument(
        "--remedies",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a remedies.json that `attnaudit reproduce` wrote: the chosen policy names its remedies too (repeat for "
        "more; the first remedy for an option counts)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer instances per model and no costly check: minutes, not hours"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of samples, permutations, intervals")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes, one thread each (default: the cores)")
    parser.add_argument("--device", default="cpu", help=f"{NAMES} (default: cpu)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measures, scores, writes and tells. 0 also where the policy falls short: the figures are the result."""
    from attnaudit.research.validation import validation_pages
    from attnaudit.research.validation.candidate_policy import shipped_policy
    from attnaudit.research.validation.validate import Options, validate
    from attnaudit.research.validation.validation_terminal import summary

    require_seed("--seed", options.seed)
    require_device("--device", options.device)
    jobs = options.jobs if options.jobs is not None else processors()
    if jobs < 1:
        raise AuditError(f"--jobs {jobs}: expected 1 or more.")
    policy = shipped_policy() if options.policy is None else None if options.policy == RULE else Path(options.policy)
    population = options.population or _plant(options, jobs)
    with progress_bar("measuring") as progress:
        validation, chosen = validate(
            Options(
                population=population,
                out=options.out,
                policy=policy,
                seed=options.seed,
                quick=options.quick,
                jobs=jobs,
                device=options.device,
                remedies=options.remedies,
            ),
            progress=progress,
        )
    written = validation_pages.write(validation, options.out)
    if chosen:
        path = options.out / "chosen_policy.toml"
        try:
            path.write_text(chosen, encoding="utf-8", newline="\n")
        except OSError as error:
            raise ReportError(
                f"{path}: cannot be written ({error.strerror}). Give --out a folder that can be."
            ) from error
        written.append(path)
    print(summary(validation, width=shutil.get_terminal_size((100, 24)).columns))
    for path in written:
        print(path)
    return 0


def _plant(options: argparse.Namespace, jobs: int) -> Path:
    """A population of its own below --out; what is there of it already is kept."""
    from attnaudit.research.planted import planted_population
    from attnaudit.research.planted.plant_command import QUICK_SEEDS, SEEDS

    folder: Path = options.out / "population"
    wanted = planted_population.plans(seeds=QUICK_SEEDS if options.quick else SEEDS)
    print(f"planting {len(wanted)} models in {folder}; finished ones are kept", file=sys.stderr)
    with progress_bar("planting") as show:
        planted_population.build(
            folder,
            wanted,
            jobs=jobs,
            progress=lambda record, done, total: show(done, total, str(record["folder"])),
        )
    return folder
