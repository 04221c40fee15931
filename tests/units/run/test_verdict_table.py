"""The table of verdicts at the end of a run."""

from __future__ import annotations

from attnaudit.records import Interval, Planning
from attnaudit.run.verdict_table import verdict_table
from tests.units.report.example_runs import check_record, seven_checks

WIDE = Interval(low=0.19, high=0.31, confidence=0.9975, method="m")
PLANNING = Planning(instances=790, low=280, high=7500, power=0.8)


def table(*records, width=80):
    return verdict_table(records, [], width=width, color=False).splitlines()


def test_references_are_below_the_name_of_each_check():
    lines = table(*seven_checks())
    row = next(i for i, line in enumerate(lines) if line.startswith("fail"))
    assert any("floor 0.001, ceiling 0.610" in line for line in lines[row : row + 3])
    assert all(len(line) <= 80 for line in lines)


def test_the_notes_say_when_a_gate_fails_and_how_many_instances_would_decide():
    one = check_record(verdict="inconclusive", gated=20, fail_interval=WIDE, planning=PLANNING)
    lines = table(one, check_record(check="other", gated=20, fail_interval=WIDE), width=120)
    assert (
        "A check fails only if its whole 99.75% interval misses the threshold, because 20 checks gate this release."
        in lines
    )
    assert "agreement.gradient.meister.inputs: About 790 instances would decide it (280 to 7,500)." in lines
    several = table(one, check_record(model="second"), width=200)
    assert any(line.startswith("agreement.gradient.meister.inputs on demo, movie-reviews: About") for line in several)


def test_a_single_gate_needs_no_note_on_correction():
    assert not any("fails only if" in line for line in table(check_record(fail_interval=WIDE)))
