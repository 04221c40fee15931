"""`attnaudit compare`: compare the runs of two models on the same data."""

from __future__ import annotations

import argparse
from pathlib import Path

from attnaudit.errors import ReportError, invalid_input
from attnaudit.formatting import one_line, terminal_safe
from attnaudit.output_files import require_separate
from attnaudit.run.run_choice import newest_run, require_run_folder

FILE = "comparison.html"
#: The pages of a run that a comparison must not replace.
PAGES = ("report.html", "summary.md")
STATUS = (
    "Exit status: 0 if the comparison was written, whatever it shows; 1 if the runs cannot be compared; 2 if an option "
    "is invalid or a folder does not exist. To block a release that is worse than the last one, use a baseline."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `attnaudit compare`."""
    parser.epilog = STATUS
    for name, what in (("base", "earlier"), ("candidate", "new")):
        parser.add_argument(
            name,
            metavar=name.upper(),
            help=f"the folder of the {what} run, such as reports/<run>; for reports/ itself, the newest run is used",
        )
    parser.add_argument(
        "--out",
        metavar="FILE.html",
        help=f"the page to write; the Markdown file gets the same name with .md (default: {FILE} in the folder of the "
        "candidate run)",
    )
    for name in ("base", "candidate"):
        parser.add_argument(
            f"--{name}-model",
            default="",
            metavar="NAME",
            help=f"the model of the {name} run to compare, if the runs audited models with different names",
        )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare two runs, write the page and the Markdown file, and print what was found.

    Returns:
        The exit status, 0.

    Raises:
        ReportError: A folder does not contain a run that has ended, a file was edited after the run, the runs are not
            comparable, or the page cannot be written.
    """
    from attnaudit.report.two_runs.comparison_pages import write_comparison
    from attnaudit.run.comparison.compare_runs import compare_runs
    from attnaudit.run.comparison.run_pairs import Names

    with invalid_input():
        given = [require_run_folder("compare", Path(one)) for one in (options.base, options.candidate)]
        if options.out is not None and Path(options.out).suffix.lower() not in (".html", ".htm"):
            raise ReportError(f"--out {options.out}: expected a file that ends in .html.")
    base, candidate = map(newest_run, given)
    page_file = candidate / FILE if options.out is None else Path(options.out)
    with invalid_input():
        pages = [(f"a page of the run {run.name}", run / name) for run in (base, candidate) for name in PAGES]
        require_separate([("--out", page_file), ("--out", page_file.with_suffix(".md"))], pages)
    names = Names(base=options.base_model, candidate=options.candidate_model)
    comparison = compare_runs(base, candidate, names)
    page, files = write_comparison(comparison, (base, candidate), page_file)
    print(one_line(page.headline))
    for line in page.notes:
        print(one_line(line))
    for path in files:
        print(terminal_safe(str(path)))
    return 0
