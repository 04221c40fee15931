"""Comparisons for the tests of their page: a realistic one, and one with hostile text."""

from __future__ import annotations

from pathlib import Path

from attnaudit.records import CheckRecord
from attnaudit.records.comparison_records import (
    ComparedCheck,
    ComparedSubject,
    Comparison,
    MovedAttention,
    MovedInstance,
    PairedValue,
    PolicyChange,
)
from attnaudit.report.run_files import read_run
from attnaudit.report.two_runs.comparison_pages import write_comparison
from tests.units.report.example_checks import interval
from tests.units.report.example_runs import HOSTILE, hostile, realistic


def paired_value(name: str = "accuracy", low: float = -0.03, high: float = -0.01) -> PairedValue:
    return PairedValue(
        name=name,
        base=0.81,
        candidate=0.79,
        difference=(low + high) / 2,
        interval=interval(low, high),
        detectable=0.014,
        n=2026,
        changed=61,
        direction="at_least",
    )


def _check(before: CheckRecord, after: CheckRecord, position: int) -> ComparedCheck:
    """Return a check that is worse, unclear, better or not comparable, in turn."""
    bounds = ((-0.2, -0.1), (-0.01, 0.02), (0.1, 0.3), None)[position % 4]
    return ComparedCheck(
        base=before,
        candidate=after,
        paired=paired_value("mean", *bounds) if bounds else None,
        reason="" if bounds else "the runs audited different readings of attention",
        warning="there are only 8 independent sources" if position == 1 else "",
        moved=[MovedInstance(instance=one.instance, base=0.2, candidate=one.value) for one in after.worst],
    )


def example_comparison(base: Path, candidate: Path, *, text: str) -> Comparison:
    """Return a comparison of two written runs. `text` replaces names of models, classes and checks."""
    before, after = read_run(base), read_run(candidate)
    old, new = before.checks[0], after.checks[0]
    own = [(one, other) for one, other in zip(before.checks, after.checks, strict=True) if other.model == new.model]
    return Comparison(
        base=before,
        candidate=after,
        subjects=[
            ComparedSubject(
                base_model=old.model,
                candidate_model=new.model,
                base_data=old.data,
                candidate_data=new.data,
                paired=2026,
                unpaired=4,
                sources=812,
                task=[paired_value(), paired_value("macro F1", -0.02, 0.01)],
                predictions_changed=61,
                attention_distance=0.31,
                attention_compared=2020,
                attention_moved=[MovedAttention(instance=one.instance, distance=0.9) for one in new.worst],
                checks=[_check(one, other, i) for i, (one, other) in enumerate(own)],
                only_base=[text],
                only_candidate=[],
            )
        ],
        left_out=[f"The model {text} was not compared."],
        notes=[],
        policy_changes=[PolicyChange(kind="laxer", subject=text, text=text)],
    )


def realistic_comparison(folder: Path) -> Path:
    """Write the page of a comparison of two runs with seven checks, and return its path."""
    runs = realistic(folder / "base"), realistic(folder / "candidate")
    page = folder / "comparison.html"
    write_comparison(example_comparison(*runs, text="negative"), runs, page)
    return page


def hostile_comparison(folder: Path) -> Path:
    """Write the page of a comparison in which every text holds markup, scripts or control characters."""
    runs = hostile(folder / "base"), hostile(folder / "candidate")
    page = folder / "comparison.html"
    write_comparison(example_comparison(*runs, text=HOSTILE), runs, page)
    return page
