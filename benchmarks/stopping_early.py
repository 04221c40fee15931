"""Measure confidence sequences that stop as soon as they settle: how often they err, and how many rows they need.

Simulated sequences have their true value exactly on the threshold, so every verdict is an error. The gates of a run are
judged on its stored measurements in many random orders. Both results are written to stopping_early.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.sequential_gates import Run, gates, judged
from benchmarks.simulated_sequences import scenarios, simulate

HERE = Path(__file__).parent
SEQUENCES = 10_000
ORDERS = 100


def error_table(trials: int) -> list[str]:
    """Return the table of errors of simulated sequences."""
    lines = [
        "| values | settles above | settles below | z-test, above | z-test, below |",
        "|---|---:|---:|---:|---:|",
    ]
    for seed, (name, draw) in enumerate(scenarios().items()):
        found = simulate(draw, trials, seed)
        above, below = found["peeking"]
        lines.append(f"| {name} | {found['above']:.2%} | {found['below']:.2%} | {above:.1%} | {below:.1%} |")
        print(lines[-1], flush=True)
    return lines


def gate_table(run: Run, orders: int) -> list[str]:
    """Return the table of the gates of a run."""
    lines = [
        "| gate | value | with limits, 5% to 95% of the orders | on all rows | same | opposite | inconclusive | rows, "
        "median | share of all | 90% | most |",
        "|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for gate in gates(run):
        found = judged(gate, run.ids, orders)
        median, most_of_them, most = found["rows"]
        low, high = found["values"]
        limited = "—" if low == high else f"{low:.4f} to {high:.4f}"
        lines.append(
            f"| {gate.name} | {gate.value:.4f} | {limited} | {gate.verdict} | {found['same']} | "
            f"{found['opposite']} | {found['inconclusive']} | {median:,} | {median / len(run.ids):.0%} | "
            f"{most_of_them:,} | {most:,} |"
        )
        print(lines[-1], flush=True)
    return lines


def write(section: str, lines: Sequence[str]) -> None:
    """Replace one generated table in stopping_early.md."""
    path = HERE / "stopping_early.md"
    text = path.read_text(encoding="utf-8")
    before, start, rest = text.partition(f"<!-- {section} -->\n")
    _, end, after = rest.partition(f"<!-- end of {section} -->")
    if not start or not end:
        raise ValueError(f"{path}: expected the marks <!-- {section} --> and <!-- end of {section} -->.")
    path.write_text(before + start + "\n" + "\n".join(lines) + "\n\n" + end + after, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--run", type=Path, metavar="FOLDER", help="run of `pytest audits/ --model demo`, for the gates"
    )
    parser.add_argument("--quick", action="store_true", help="200 sequences and 5 orders; print and write nothing")
    options = parser.parse_args(arguments)
    tables: dict[str, list[str]] = {"errors": error_table(200 if options.quick else SEQUENCES)}
    if options.run is not None:
        tables["gates"] = gate_table(Run(options.run), 5 if options.quick else ORDERS)
    if not options.quick:
        for section, lines in tables.items():
            write(section, lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
