"""Which comparisons are run, and in what order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.speed import pooled, ranks
from benchmarks.speed.timing import Comparison, Timed, compare

REPEATS, QUICK_REPEATS = 5, 2


def comparisons(quick: bool) -> Iterator[Comparison]:
    shrink = 5 if quick else 1
    for family in (ranks.kendall, ranks.weighted, ranks.information):
        yield from family(shrink)
    yield from pooled.comparisons(quick)


def line(one: Timed) -> str:
    """One comparison for the terminal."""
    asked = "" if one.met is None else f"  asked ≥{one.target:g}×: {'met' if one.met else 'short'}"
    return (
        f"{one.name} | {one.rival}: {one.ours_ms:.4g} against {one.theirs_ms:.4g} ms an instance, "
        f"{one.ratio:.3g}× ({one.low:.3g} to {one.high:.3g}){asked}"
    )


def run(*, quick: bool, only: str | None, say: Callable[[str], None] = print) -> int:
    found = []
    for one in comparisons(quick):
        if only and only.lower() not in f"{one.name} {one.rival}".lower():
            continue
        found.append(compare(one, QUICK_REPEATS if quick else REPEATS))
        say(line(found[-1]))
    return 0
