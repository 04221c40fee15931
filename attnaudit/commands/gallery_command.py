"""`attnaudit gallery`: show the results of the checks on planted models, whose faithfulness is known."""

from __future__ import annotations

import argparse
from pathlib import Path

from attnaudit import __version__
from attnaudit.command_parser import add_folder_option, require_writable_folder, whole_number
from attnaudit.errors import AuditError, invalid_input
from attnaudit.formatting import terminal_safe
from attnaudit.progress import progress_bar

OUT, POPULATIONS, SEED = Path("docs/gallery"), Path("models/gallery"), 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `attnaudit gallery`."""
    parser.description = (
        "Build one planted model of every kind, that is, a model whose attention is known to be faithful or "
        "unfaithful. For every mechanism of attention, audit models whose attention is right, unused or in the wrong "
        "place. Write a page with pictures for every mechanism and every reproduced paper. Run the command again to "
        "resume: finished models are kept."
    )
    parser.epilog = "Exit status: 0 if the pages were written; 2 if an option is invalid; 1 after any other error."
    add_folder_option(parser, "--out", "folder of the pages and gallery.json", default=OUT)
    parser.add_argument(
        "--render", action="store_true", help="only rebuild the pages from gallery.json; trains nothing"
    )
    add_folder_option(
        parser,
        "--models",
        "folder of the planted models, in the subfolders pooled and transformer",
        default=POPULATIONS,
    )
    parser.add_argument(
        "--kind",
        action="append",
        metavar="NAME",
        help="build and show only this kind of model or, for Transformers, this mechanism; may be repeated",
    )
    add_folder_option(
        parser, "--papers", "folder with the results of `attnaudit reproduce`", default=Path("reports/papers")
    )
    parser.add_argument(
        "--jobs",
        type=whole_number,
        default=1,
        metavar="N",
        help="number of models to build at the same time (default: 1)",
    )


def run(options: argparse.Namespace) -> int:
    """Measure the gallery unless --render is given, write its pages, and return the exit status 0.

    Raises:
        AuditError: An option is invalid, a file cannot be read or written, or a model cannot be audited.
    """
    from attnaudit.research.gallery.gallery_records import DATA_FILE, read_gallery
    from attnaudit.research.gallery.make_gallery import make_gallery, write_pages
    from attnaudit.research.study.report_files import record_json, write_files

    with invalid_input():
        if options.jobs < 1:
            raise AuditError(f"--jobs {options.jobs}: expected at least 1.")
        require_writable_folder("--out", options.out)
        if not options.render:
            require_writable_folder("--models", options.models)
    if not options.render:
        with progress_bar("gallery", unit="models", print_notes=True) as progress:
            gallery = make_gallery(
                options.models,
                papers=options.papers,
                only=options.kind,
                seed=SEED,
                jobs=options.jobs,
                version=__version__,
                progress=progress,
            )
        write_files(options.out, {DATA_FILE: record_json(gallery)})
    written = write_pages(options.out, read_gallery(options.out))
    print(f"Wrote {len(written)} files to {terminal_safe(str(options.out))}.")
    return 0
