"""The command `attnaudit reproduce`: train and audit the models of a paper, and compare the results with its numbers.

This module does not import torch until the command runs.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attnaudit.command_parser import add_folder_option, require_writable_folder, whole_number
from attnaudit.errors import AuditError, DataError, ReportError, invalid_input, nearest
from attnaudit.formatting import plural, terminal_safe
from attnaudit.processes import processors
from attnaudit.research.reproduction.papers import PAPERS
from attnaudit.research.reproduction.results.seed_plan import SEED_PLAN

if TYPE_CHECKING:
    from attnaudit.research.reproduction.reproduce_options import ReproductionOptions

OUT = Path("reproduction")
#: If --out is not given, `--render` rebuilds the reports in these folders: the default of --out, and the folder of
#: reports in a checkout of attnaudit.
RENDERED = (OUT, Path("reports"))
REPORTS = "papers"
#: The subfolder of --out that quick runs write to.
QUICK = "quick"
#: The exit status if a selected row could not be measured.
NOT_MEASURED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `attnaudit reproduce` to a parser."""
    parser.description = (
        "Train the models of a paper, audit them with the checks that every audit uses, and print each table with "
        "the paper's numbers, ours and the differences. Finished models and audits are kept below --out: a run "
        "that was stopped resumes, and the rows of earlier runs stay in the report. With --render, only the pages "
        "are rebuilt from earlier results."
    )
    parser.epilog = "Exit status: 0 if all selected rows were measured; 1 if a row failed; 2 if an option is invalid."
    parser.add_argument("paper", metavar="PAPER", nargs="?", help=", ".join(PAPERS))
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME", help="run only this table; may be repeated"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="run only rows whose name matches, such as 'sst/*' or '*/bilstm/additive'; may be repeated",
    )
    add_folder_option(
        parser,
        "--data-root",
        "folder with the paper's corpora, laid out as docs/reproduction.md describes (default: use the embedded movie "
        "sentences instead)",
    )
    parser.add_argument(
        "--vectors",
        type=Path,
        metavar="FILE",
        help="word vectors that the embeddings start from, in the text format of GloVe, fastText or word2vec (default: "
        "random embeddings); results with word vectors go to a separate report",
    )
    parser.add_argument(
        "--seeds",
        type=whole_number,
        metavar="N",
        help=f"number of seeds per row (default: the seeds in {SEED_PLAN} next to the results, or 3 seeds without it)",
    )
    parser.add_argument(
        "--max-instances", type=whole_number, metavar="N", help="audit at most N test texts per corpus (default: all)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="use small data, small models and one seed: takes minutes, but the numbers are not a reproduction",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"folder for models, measurements and {REPORTS}/pages/PAPER.html (default: {OUT})",
    )
    parser.add_argument(
        "--jobs", type=whole_number, metavar="N", help="number of processes, one thread each (default: one per core)"
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="train nothing; rebuild the pages of PAPER, or of all papers if PAPER is not given, in the subfolder "
        f"{REPORTS} of --out; without --out, in {' and '.join(f'{one}/{REPORTS}' for one in RENDERED)}. With --quick, "
        f"rebuild the pages of quick runs, in {QUICK}/{REPORTS}. All other options are refused",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the reproduction, write its files and print a summary. With --render, only rebuild the pages.

    Returns:
        The exit status: 0 if all selected rows were measured, even if the numbers differ from those of the paper; 1 if
        a row could not be measured.

    Raises:
        AuditError: An option is invalid, an input cannot be read, or a file cannot be written.
    """
    if options.render:
        return _render(options)
    with invalid_input():
        settings = _settings(options)
    import torch

    from attnaudit.progress import progress_bar
    from attnaudit.research.reproduction.pages.paper_summary import summary
    from attnaudit.research.reproduction.reproduce import reproduce

    torch.set_num_threads(1)  # The worker processes use one thread too.
    report, written, failed = reproduce(settings, progress_bar=progress_bar)
    print(summary(report, width=shutil.get_terminal_size((100, 24)).columns))
    for path in written:
        print(terminal_safe(str(path)))
    if not failed:
        return 0
    print(f"attnaudit: {plural(len(failed), 'row')} could not be measured:", file=sys.stderr)
    for line in failed:
        print(terminal_safe(f"  {line}"), file=sys.stderr)
    return NOT_MEASURED


def _settings(options: argparse.Namespace) -> ReproductionOptions:
    """Return the options of the run.

    Raises:
        AuditError: An option is invalid, or the file of word vectors cannot be read.
    """
    if options.paper is None:
        raise AuditError(f"PAPER is missing. Expected one of: {', '.join(PAPERS)}; or --render.")
    jobs = options.jobs if options.jobs is not None else processors()
    for name, value in (("seeds", options.seeds), ("jobs", jobs), ("max-instances", options.max_instances)):
        if value is not None and value < 1:
            raise AuditError(f"--{name} {value}: expected a whole number of at least 1.")
    if options.data_root is not None and not options.data_root.is_dir():
        raise DataError(
            f"--data-root {options.data_root}: there is no such folder. Expected a folder with corpora, laid out as "
            "docs/reproduction.md describes; leave the option out to use the packaged movie sentences."
        )
    require_writable_folder("--out", options.out or OUT)
    from attnaudit.models.word_vectors import Vectors
    from attnaudit.research.reproduction.papers import paper
    from attnaudit.research.reproduction.reproduce_options import ReproductionOptions

    return ReproductionOptions(
        paper=paper(options.paper),
        out=options.out or OUT,
        command=_command(options),
        data_root=options.data_root,
        tables=options.table,
        only=options.only,
        seeds=options.seeds,
        instances=options.max_instances,
        jobs=jobs,
        quick=options.quick,
        vectors=None if options.vectors is None else Vectors.from_file(options.vectors),
    )


def _render(options: argparse.Namespace) -> int:
    from attnaudit.research.reproduction.render_reports import render
    from attnaudit.research.reproduction.results.results_file import exclusive

    with invalid_input():
        folders = _rendered_folders(options)
    for folder in folders:
        with exclusive(folder):
            _, written = render(folder, name=options.paper)
        for path in written:
            print(terminal_safe(str(path)))
    return 0


def _rendered_folders(options: argparse.Namespace) -> list[Path]:
    """Return the folders of reports whose pages `--render` rebuilds.

    Raises:
        AuditError: The paper is unknown, an option has no effect on pages, or no folder contains results.
    """
    from attnaudit.research.reproduction.results.results_file import SUFFIX

    if options.paper is not None and options.paper not in PAPERS:
        raise AuditError(f"Unknown paper '{options.paper}'. {nearest(options.paper, PAPERS)}")
    for name in ("table", "only", "data_root", "vectors", "seeds", "max_instances", "jobs"):
        if getattr(options, name) not in (None, []):
            option = f"--{name.replace('_', '-')}"
            raise AuditError(f"{option}: --render measures nothing, so it cannot be used with {option}. Leave it out.")
    pattern = f"{options.paper or ''}*{SUFFIX}"
    chosen = [options.out] if options.out else RENDERED
    searched = [folder / QUICK / REPORTS if options.quick else folder / REPORTS for folder in chosen]
    folders = [folder for folder in searched if any(folder.glob(pattern))]
    if folders:
        return folders
    hint = ""
    if not options.quick and any(any((folder / QUICK / REPORTS).glob(pattern)) for folder in chosen):
        hint = " There are results of a quick run: add --quick to rebuild their pages."
    raise ReportError(
        f"--render: there are no results ({pattern}) in {' or '.join(map(str, searched))}.{hint} Give --out the folder "
        "of an earlier run of `attnaudit reproduce`."
    )


def _command(options: argparse.Namespace) -> str:
    """Return the shell command that measures the same rows again.

    The command contains DATA for the folder of the corpora, and only the file name of the word vectors. The reader must
    replace both by local paths.
    """
    words = ["attnaudit", "reproduce", options.paper]
    for name, values in (("--table", options.table), ("--only", options.only)):
        words += [word for value in values for word in (name, value)]
    if options.data_root is not None:
        words += ["--data-root", "DATA"]
    if options.vectors is not None:
        words += ["--vectors", options.vectors.name]
    if options.quick:
        words.append("--quick")
    elif options.seeds is not None:
        words += ["--seeds", str(options.seeds)]
    if options.max_instances is not None:
        words += ["--max-instances", str(options.max_instances)]
    return shlex.join(words)
