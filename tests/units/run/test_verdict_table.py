"""The table of verdicts at the end of a run."""

from __future__ import annotations

from attnaudit.records import Interval, MissingCase, Planning, Reference, UnitNames
from attnaudit.run.verdict_table import explanations, verdict_table
from tests.units.report.example_checks import check_record, seven_checks

WIDE = Interval(low=0.19, high=0.31, confidence=0.9975, method="m")
PLANNING = Planning(instances=790, low=280, high=7500, power=0.8)


def table(*records, missing=(), width=80):
    return verdict_table(records, missing, width=width, color=False).splitlines()


def test_references_are_below_the_name_of_their_check():
    lines = table(*seven_checks())
    row = next(i for i, line in enumerate(lines) if line.startswith("fail"))
    assert [line.strip() for line in lines[row + 2 : row + 5]] == [
        "floor 0.001,",
        "gradient vs. leave-one-out",
        "0.610",
    ]
    assert all(len(line) <= 80 for line in lines)
    assert any("floor 0.001, gradient vs. leave-one-out 0.610" in line for line in table(*seven_checks(), width=100))


def test_references_have_the_names_of_the_rows():
    another = Reference(name="another_text", value=1.0, meaning="another bag")
    lines = table(check_record(unit_names=UnitNames(unit="vector", row="bag"), references=[another]))
    assert "another bag 1.000" in [line.strip() for line in lines]


def test_lines_below_the_table_say_when_a_gate_fails_and_what_would_decide():
    undecided = check_record(
        verdict="inconclusive", gated=20, fail_interval=WIDE, planning=PLANNING, n=120, n_defined=120
    )
    records = [undecided, check_record(check="other", gated=20, fail_interval=WIDE)]
    lines = explanations(records, all_of_them=True)
    assert (
        "A gate fails only if its whole 99.75% interval is on the wrong side of the threshold. This interval is wider "
        "than the one in the table, because 20 checks can block this release." in lines
    )
    assert "agreement.gradient.meister.inputs: About 790 instances would probably decide it (280 to 7,500)." in lines
    assert explanations(records, all_of_them=False) == []
    several = explanations([undecided, check_record(model="second")], all_of_them=True)
    assert any(
        line.startswith("agreement.gradient.meister.inputs for demo on movie-reviews: About") for line in several
    )


def test_a_single_gate_has_no_line_on_correction():
    assert explanations([check_record(fail_interval=WIDE)], all_of_them=True) == []


def test_informational_checks_are_called_informational():
    untested = {"check": "conicity", "severity": "report", "requirement": None, "blocks": False}
    lines = table(check_record(**untested, verdict="informational"))
    assert any(line.startswith("informational conicity ") for line in lines)
    lines = table(check_record(check="conicity", severity="report", blocks=False))
    assert any(line.startswith("fail") and "conicity (informational)" in line for line in lines)


def test_cases_without_a_verdict_have_a_row():
    missing = [MissingCase(test=c, model="demo", data="d", check=c, reason="no checkpoint") for c in "ab"]
    assert sum(line.startswith("missing ") for line in table(missing=missing)) == 2
