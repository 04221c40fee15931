"""The command `attnaudit plant`: builds the population of planted models. Imports torch only to run."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from attnaudit.errors import ModelError
from attnaudit.processes import processors

QUICK_SEEDS, SEEDS = 3, 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `attnaudit plant`."""
    parser.description = (
        "Build small models whose attention is known to be right or wrong, each a checkpoint folder for --model, "
        "and population.json, which says what is known of each. Finished models are kept: run it again to go on. A "
        "model that misses the bar of its label is listed in excluded.json with the reason."
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the population's folder")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds instead of {SEEDS}")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds of each kind that is split by seed")
    parser.add_argument("--kind", action="append", metavar="NAME", help="only this kind (repeat for more)")
    parser.add_argument("--jobs", type=int, metavar="N", help="models at a time (default: one per CPU)")


def run(arguments: argparse.Namespace) -> int:
    """Build and tell. Returns 0; raises ModelError for what the user can mend."""
    seeds = arguments.seeds if arguments.seeds is not None else QUICK_SEEDS if arguments.quick else SEEDS
    jobs = arguments.jobs if arguments.jobs is not None else processors()
    for name, value in (("seeds", seeds), ("jobs", jobs)):
        if value < 1:
            raise ModelError(f"--{name} {value}: expected a whole number of at least 1.")
    from attnaudit.research.planted import planted_population

    wanted = planted_population.plans(seeds=seeds, only=arguments.kind)
    start = time.monotonic()

    def show(record: dict[str, Any], done: int, total: int) -> None:
        print(f"[{done}/{total}, {time.monotonic() - start:.0f} s] {_line(record)}", file=sys.stderr, flush=True)

    records = planted_population.build(arguments.out, wanted, jobs=jobs, progress=show)
    print(table(records))
    print(f"Wrote {arguments.out / planted_population.POPULATION} after {time.monotonic() - start:.0f} s.")
    return 0


def _line(record: dict[str, Any]) -> str:
    words = [record["folder"], f"accuracy {record['accuracy']:.3f}"]
    if record["rank_agreement"] is not None:
        words.append(f"rank agreement {record['rank_agreement']:.3f}")
    if record["bypass_share"] is not None:
        words.append(f"bypass share {record['bypass_share']:.3f}")
    return ", ".join(words) + "".join(f"; excluded: {reason}" for reason in record["excluded_because"])


def table(records: list[dict[str, Any]]) -> str:
    """Per kind: how many models of each half hold their label, and the ranges of what was measured on them."""
    lines = [
        f"{'kind':28} {'truth':10} {'tuning':>6} {'held out':>8} {'excluded':>8}  rank agreement   accuracy      share"
    ]
    for kind in sorted({one["kind"] for one in records}, key=lambda name: (_truth(records, name), name)):
        rows = [one for one in records if one["kind"] == kind]
        kept = [one for one in rows if not one["excluded_because"]]
        halves = [sum(one["half"] == half for one in kept) for half in ("tuning", "held_out")]
        ranges = "  ".join(f"{_range(kept, name):>14}" for name in ("rank_agreement", "accuracy", "bypass_share"))
        counts = f"{halves[0]:6} {halves[1]:8} {len(rows) - len(kept):8}"
        lines.append(f"{kind:28} {_truth(records, kind):10} {counts}  {ranges}")
    for truth in ("faithful", "unfaithful"):
        of = [one for one in records if one["truth"] == truth and not one["excluded_because"]]
        tuning = sum(one["half"] == "tuning" for one in of)
        lines.append(f"{truth}: {len(of)} models, {tuning} for tuning, {len(of) - tuning} held out")
    return "\n".join(lines)


def _truth(records: list[dict[str, Any]], kind: str) -> str:
    return next(str(one["truth"]) for one in records if one["kind"] == kind)


def _range(rows: list[dict[str, Any]], name: str) -> str:
    values = [one[name] for one in rows if one[name] is not None]
    return f"{min(values):.2f} to {max(values):.2f}" if values else "-"
