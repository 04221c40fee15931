"""Run the comparisons and the other measurements, and write their results."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnaudit.data import load
from benchmarks.speed import local, pooled, ranks, startup, subjects, writing
from benchmarks.speed.timing import Comparison, DisagreementError, Timed, compare

REPEATS, QUICK_REPEATS = 3, 1
AUDITS, STARTS = 2, 3
ROOT = Path(__file__).resolve().parents[2]
#: The number of sentences that a quick run audits.
QUICK_INSTANCES = 100


def comparisons(quick: bool) -> Iterator[Comparison]:
    """Yield all comparisons, in the order of the table. If `quick` is True, they use fewer instances."""
    shrink = 5 if quick else 1
    for family in (ranks.kendall, ranks.weighted, ranks.information):
        yield from family(shrink)
    yield from pooled.comparisons(quick)
    yield from local.comparisons(quick)
    if not subjects.missing_transformers():
        from benchmarks.speed import causal, minilm

        yield from minilm.comparisons(quick)
        yield from causal.comparisons(quick)


def selects(only: Sequence[str], name: str) -> bool:
    """Return whether a name contains one of these texts, or there are none."""
    return not only or any(text.lower() in name.lower() for text in only)


def line(one: Timed) -> str:
    """Return one comparison as a line for the terminal."""
    target = "" if one.met is None else f"  target {writing.target_text(vars(one))}: {'met' if one.met else 'NOT MET'}"
    return (
        f"{one.name} | {one.rival}: {writing.number(one.ours_ms)} against {writing.number(one.theirs_ms)} ms, "
        f"{writing.number(one.ratio)}× ({writing.number(one.low)} to {writing.number(one.high)}), "
        f"passes {writing.passes(one.our_passes)} against {writing.passes(one.their_passes)}{target}"
    )


def _child(module: str, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.speed.{module}", *words], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"`python -m benchmarks.speed.{module}` failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def whole_audit(quick: bool) -> dict[str, Any]:
    """Return the cost of the whole audit: medians over several runs, each in a new process.

    If `quick` is True, there is one run on fewer instances.
    """
    runs = [_child("whole_audit", *([str(QUICK_INSTANCES)] if quick else [])) for _ in range(1 if quick else AUDITS)]
    ratios = [one["total"] / one["passes"] for one in runs]
    return {
        **{key: statistics.median(one[key] for one in runs) for key in runs[0]},
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "repeats": len(runs),
        "instances": QUICK_INSTANCES if quick else len(load("movie-reviews").instances),
    }


def merged(stored: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the stored results, in which new results replace older results with the same name."""
    again = {(one["name"], one["rival"]): one for one in found["comparisons"]}
    kept = [again.pop((one["name"], one["rival"]), one) for one in stored["comparisons"]]
    parts = {name: found[name] for name in ("audit", "startup", "scaling") if name in found}
    return {**stored, **parts, "comparisons": [*kept, *again.values()]}


def run(
    *, quick: bool, only: Sequence[str] = (), repeats: int | None = None, say: Callable[[str], None] = print
) -> int:
    """Run the comparisons and the other measurements.

    Args:
        quick: Whether to use fewer instances and write nothing.
        only: Words that select comparisons by their name and rival, and other measurements by their name. If there are
            none, all are selected.
        repeats: How often to time each side of a comparison; None for the default. Slow comparisons are timed less
            often.
        say: Prints a line.

    Returns:
        1 if the two sides of a comparison disagree, else 0.
    """
    found: dict[str, Any] = {"machine": writing.machine(), "comparisons": []}
    missing = subjects.missing_transformers()
    found["left_out"] = [f"the Transformer, {missing}"] if missing else []
    status = 0
    for one in comparisons(quick):
        if not selects(only, f"{one.name}: {one.rival}"):
            continue
        started = time.perf_counter()
        try:
            timed = compare(one, repeats or (QUICK_REPEATS if quick else REPEATS))
        except DisagreementError as error:
            found["left_out"].append(str(error))
            say(str(error))
            status = 1
            continue
        found["comparisons"].append(writing.plain(timed))
        say(f"{line(timed)}  [{time.perf_counter() - started:.0f} s]")
    others: dict[str, Callable[[], Any]] = {
        "audit": lambda: whole_audit(quick),
        "startup": lambda: startup.measured(1 if quick else STARTS),
        "scaling": lambda: _child("scaling", *(["--quick"] if quick else [])),
    }
    for name, work in others.items():
        if selects(only, name):
            found[name] = work()
            say(f"{name}: {json.dumps(found[name], ensure_ascii=False)}")
        if not quick and not only:
            writing.write(found)
    if only and not quick:
        writing.write(merged(json.loads(writing.JSON.read_text(encoding="utf-8")), found))
    for text in (*found["left_out"], *writing.summary(found)):
        say(text)
    if not quick:
        say(f"wrote {', '.join(one.relative_to(ROOT).as_posix() for one in (writing.JSON, writing.PAGE))}")
    return status
