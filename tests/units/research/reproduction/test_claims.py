"""Claims of a paper, answered from synthetic tables, and shown on the terminal, in Markdown and on the page."""

from __future__ import annotations

import statistics

import msgspec
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.research.reproduction import paper_pages
from attnaudit.research.reproduction.claims import (
    Case,
    Claim,
    answer_claims,
    differences_between_rows,
    differences_within_rows,
    each_row,
    holds_in_every_case,
    mean_interval,
    values_by_seed,
)
from attnaudit.research.reproduction.paper_report import Reproduction, Row
from attnaudit.research.reproduction.paper_summary import summary
from attnaudit.research.reproduction.remedies_file import Remedy
from tests.units.research.reproduction.synthetic_reports import reproduction, row

NOT_RUN = Row(name="agnews/tying/dot", title="", corpus="agnews", lines=[], missing="not run here")
ONE = reproduction(
    t=[
        row("sst/base/dot", {"drop": [0.01, 0.02, 0.03], "f1": [0.8, None, 0.82]}),
        row("sst/tying/dot", {"drop": [0.11, 0.13, 0.12], "f1": [0.79, 0.8, 0.81]}, seeds=(1, 2, 3)),
        NOT_RUN,
    ]
)


def test_values_are_paired_by_seed_where_both_are_defined() -> None:
    assert values_by_seed(ONE, "t", "sst/base/dot", "f1") == {0: 0.8, 2: 0.82}
    found = differences_between_rows(ONE, "t", "drop", "tying", "base")
    assert [case.name for case in found] == ["sst/tying/dot against base", "agnews/tying/dot against base"]
    assert found[0].values == pytest.approx((0.11 - 0.02, 0.13 - 0.03))  # seeds 1 and 2
    assert found[1].values == ()
    assert differences_between_rows(ONE, "t", "f1", "tying", "base", tolerance=0.05)[0].values == pytest.approx(
        (0.8 - 0.82 + 0.05,)
    )


def test_a_row_that_compares_seeds_has_one_value() -> None:
    one = reproduction(t=[row("sst/seeds", {"jsd": [0.2]}, seeds=(0, 1, 2))])
    assert values_by_seed(one, "t", "sst/seeds", "jsd") == {0: 0.2}


def test_differences_within_rows_and_single_quantities() -> None:
    assert differences_within_rows(ONE, "t", "f1", "drop")[0].values == pytest.approx((0.79, 0.79))
    assert each_row(ONE, "t", "drop", minus=0.05)[0].values == pytest.approx((-0.04, -0.03, -0.02))
    assert values_by_seed(ONE, "t", "sst/base/dot", "nothing") == {}
    assert values_by_seed(ONE, "nothing", "sst/base/dot", "drop") == {}
    assert values_by_seed(ONE, "t", "agnews/tying/dot", "drop") == {}


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_the_interval_matches_scipys_t_interval(values: list[float]) -> None:
    found = mean_interval(values)
    assert found.mean == pytest.approx(statistics.fmean(values))
    error = scipy.stats.sem(values)
    if error > 1e-9:
        low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=found.mean, scale=error)
        assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_without_values_there_is_no_interval() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


CLEAR, REVERSE, OPEN = (0.10, 0.11, 0.12), (-0.10, -0.11, -0.12), (-0.1, 0.0, 0.2)


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ([CLEAR, CLEAR], "yes"),
        ([CLEAR, ()], "yes"),
        ([CLEAR, OPEN], "undecided"),
        ([CLEAR, OPEN, REVERSE], "no"),
        ([(0.0, 0.0)], "no"),
        ([(0.5,)], "undecided"),
        ([CLEAR, (0.5,)], "yes"),
        ([CLEAR, (-0.5,)], "undecided"),
        ([REVERSE, (0.5,)], "no"),
        ([(), ()], "undecided"),
        ([], "undecided"),
    ],
)
def test_a_claim_holds_where_every_interval_is_above_zero(values: list[tuple[float, ...]], holds: str) -> None:
    cases = [Case(name=f"row {i}", values=one) for i, one in enumerate(values)]
    assert holds_in_every_case(cases, what="tying minus base")[0] == holds


def test_the_evidence_names_every_row_with_its_interval() -> None:
    cases = [Case(name="sst", values=CLEAR), Case(name="imdb", values=REVERSE), Case(name="agnews", values=())]
    assert holds_in_every_case(cases, what="drop")[1] == (
        "drop: mean over 3 seeds, 95% interval. The interval is above 0 in 1 of 2 rows, at or below 0 in 1. "
        "sst +0.110 [0.085, 0.135]; imdb −0.110 [−0.135, −0.085]"
    )
    single = Case(name="snli", values=(0.5,))
    assert holds_in_every_case([single], what="drop")[1] == (
        "drop: mean over 1 seed. 1 row has a single seed and cannot decide the claim (above 0 in 1 of 1). "
        "snli +0.500 (one seed)"
    )
    assert (
        "above 0 in 1 of 2 rows, at or below 0 in 1. 1 row has a single seed and cannot decide the claim ("
        in holds_in_every_case([*cases, single], what="drop")[1]
    )
    assert holds_in_every_case([], what="drop")[1] == "No row that this claim needs has been run here."


def test_of_many_rows_the_evidence_lists_the_lowest_and_the_highest() -> None:
    cases = [Case(name=f"row {i}", values=(i / 10, i / 10)) for i in (4, 2, 9, 3, 8, 1, 5, 7, 6)]
    assert holds_in_every_case(cases, what="drop")[1] == (
        "drop: mean over 2 seeds, 95% interval. The interval is above 0 in 9 of 9 rows, at or below 0 in 0. "
        "Lowest: row 1 +0.100 [0.100, 0.100]; row 2 +0.200 [0.200, 0.200]; row 3 +0.300 [0.300, 0.300]; "
        "row 4 +0.400 [0.400, 0.400]; row 5 +0.500 [0.500, 0.500]; row 6 +0.600 [0.600, 0.600]; "
        "… highest: row 9 +0.900 [0.900, 0.900]"
    )


def fragile(one: Reproduction) -> tuple[str, str]:
    return holds_in_every_case(
        differences_between_rows(one, "t", "drop", "tying", "base"), what="drop, tying minus base"
    )


CLAIM = Claim(name="fragile", sentence="Tying | makes <fragile>.", paper="§4.1", read=fragile)  # type: ignore[arg-type]


def test_every_format_shows_the_findings() -> None:
    helps = Remedy(question="used", option="tying", words="tie <each> state")
    found = msgspec.structs.replace(ONE, findings=answer_claims([CLAIM], ONE), remedies=(helps,))
    (finding,) = found.findings
    assert (finding.claim, finding.holds, finding.paper) == ("fragile", "yes", "§4.1")
    text = summary(found, width=80)
    assert "yes: Tying | makes <fragile>. (§4.1)" in text
    assert all(len(one) <= 80 for one in text.splitlines())
    assert "* tie <each> state" in text
    markdown = paper_pages.markdown(found)
    assert "* tie <each> state" in markdown
    assert f"| Tying \\| makes <fragile>. (§4.1) | yes | {finding.evidence} |" in markdown
    html = paper_pages.html(found)
    assert "Tying | makes &lt;fragile&gt;." in html
    assert finding.evidence in html
    assert "<li>tie &lt;each&gt; state</li>" in html


def test_a_report_without_claims_does_not_mention_them() -> None:
    for text in (summary(ONE, width=80), paper_pages.markdown(ONE), paper_pages.html(ONE)):
        assert "whether they hold" not in text
        assert "may help" not in text
