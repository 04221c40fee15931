"""`attnaudit merge`: merge the shards that `attnaudit measure` wrote on several machines."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attnaudit.errors import AuditError, shown_error
from attnaudit.formatting import listed, plural, terminal_safe
from attnaudit.run.shards.partial_measurement import MOST_NAMED, merge_shards

MERGED, CANNOT_MERGE = 0, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `attnaudit merge`."""
    parser.epilog = (
        "Exit status: 0 if the shards are complete; 2 if one is missing, is damaged, or belongs to another audit."
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="a folder that `attnaudit measure` wrote to")
    parser.add_argument(
        "--into",
        metavar="RUN",
        required=True,
        help="the folder of a new run, such as reports/merged",
    )


def run(options: argparse.Namespace) -> int:
    """Merge the shards.

    Returns:
        The exit status: 0 if the shards are complete and were merged, 2 if not.
    """
    folders = [Path(folder) for folder in options.folders]
    try:
        count = merge_shards(folders, Path(options.into))
    except AuditError as error:
        print(f"attnaudit: {shown_error(error)}", file=sys.stderr)
        return CANNOT_MERGE
    print(
        terminal_safe(
            f"Merged {plural(count, 'shard')} into {options.into}. To judge them, run pytest with the same options and "
            f"--audit-resume {options.into}."
        )
    )
    if empty := [str(folder) for folder in folders if not any(folder.glob("*/[0-9]*.json"))]:
        print(terminal_safe(f"Folders without shards, which added nothing: {listed(empty, MOST_NAMED)}."))
    return MERGED
