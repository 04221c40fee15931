"""`attnaudit reproduce`: a paper's tables, done again. Imports torch only to run."""

from __future__ import annotations

import argparse
import shlex
import shutil
from pathlib import Path

from attnaudit.errors import AuditError, DataError
from attnaudit.processes import processors
from attnaudit.research.reproduction.papers import PAPERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `attnaudit reproduce`."""
    parser.description = (
        "Train the models that a paper's tables need, audit them with the checks that users declare, and print each "
        "table with the paper's number, ours and the difference. Finished models and audits are kept below --out: a "
        "run that was stopped goes on, and rows of earlier runs stay in the report."
    )
    parser.add_argument("paper", metavar="PAPER", help=", ".join(PAPERS))
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME", help="only this table (repeat for more)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only rows whose name matches, such as 'sst/*' or '*/bilstm/additive' (repeat for more)",
    )
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="DIR",
        help="the corpora, laid out as docs/reproduction.md says (default: the embedded movie sentences alone)",
    )
    parser.add_argument(
        "--vectors",
        type=Path,
        metavar="FILE",
        help="word vectors that embeddings start from, in the text format of GloVe, fastText and word2vec (default: "
        "random ones); such rows have a report of their own",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="models per row (default: 3)")
    parser.add_argument("--max-instances", type=int, metavar="N", help="at most so many test texts (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="small data, small models, one seed: minutes, and no reproduction"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("reproduction"),
        metavar="DIR",
        help="models, measurements and papers/PAPER.html (default: reproduction)",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes, one thread each (default: the cores)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Trains, audits, writes and tells. 0 also where numbers differ from the paper's: they are the result."""
    jobs = options.jobs if options.jobs is not None else processors()
    for name, value in (("seeds", options.seeds), ("jobs", jobs), ("max-instances", options.max_instances)):
        if value is not None and value < 1:
            raise AuditError(f"--{name} {value}: expected a whole number of at least 1.")
    if options.data_root is not None and not options.data_root.is_dir():
        raise DataError(
            f"--data-root {options.data_root}: there is no such folder. Expected a folder with corpora, laid out as "
            "docs/reproduction.md says; leave it out to use the embedded movie sentences."
        )
    import torch

    from attnaudit.models.word_vectors import Vectors
    from attnaudit.progress import progress_bar
    from attnaudit.research.reproduction import reproduction_pages
    from attnaudit.research.reproduction.papers import paper
    from attnaudit.research.reproduction.reproduce import gather, reported
    from attnaudit.research.reproduction.reproduction_options import Options
    from attnaudit.research.reproduction.reproduction_terminal import summary

    torch.set_num_threads(1)  # as in the processes that work is shared out to
    asked = Options(
        paper=paper(options.paper),
        out=options.out,
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
    gathered = gather(asked, progress_bar=progress_bar)
    with reproduction_pages.alone(asked.folder / "papers"):
        found = reported(gathered)
        written = reproduction_pages.write(found, asked.folder / "papers", asked.report)
    print(summary(found, width=shutil.get_terminal_size((100, 24)).columns))
    for path in written:
        print(path)
    return 0


def _command(options: argparse.Namespace) -> str:
    """The command that makes the same rows again; the folders of data and word vectors are the reader's."""
    words = ["attnaudit", "reproduce", options.paper]
    for name, values in (("--table", options.table), ("--only", options.only)):
        words += [word for value in values for word in (name, value)]
    if options.data_root is not None:
        words += ["--data-root", "DATA"]
    if options.vectors is not None:
        words += ["--vectors", options.vectors.name]
    words += ["--quick"] if options.quick else ["--seeds", str(options.seeds)]
    if options.max_instances is not None:
        words += ["--max-instances", str(options.max_instances)]
    return shlex.join(words)
