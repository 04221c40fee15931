"""Claims of a paper, answered from synthetic tables, and shown on the terminal, in Markdown and on the page."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from markupsafe import escape

from attnaudit.research.reproduction.pages import paper_pages
from attnaudit.research.reproduction.pages.paper_summary import summary
from attnaudit.research.reproduction.pages.paper_wording import rests_on_one_row, verdict_text
from attnaudit.research.reproduction.paper_report import Reproduction, Row
from attnaudit.research.reproduction.remedies_file import Remedy
from attnaudit.research.reproduction.verdicts_on_claims.claim_cases import (
    Case,
    differences_between_rows,
    differences_within_rows,
    each_row,
    values_by_seed,
)
from attnaudit.research.reproduction.verdicts_on_claims.claims import (
    Answer,
    Claim,
    answer_claims,
    holds_in_every_case,
    holds_in_most,
    without_counted_rows,
)
from attnaudit.research.reproduction.verdicts_on_claims.holm_intervals import mean_interval
from tests.units.research.reproduction.synthetic_reports import reproduction, row

NOT_RUN = Row(name="agnews/tying/dot", title="", corpus="agnews", lines=[], missing="not run here")
ONE = reproduction(
    t=[
        row("sst/base/dot", {"drop": [0.01, 0.02, 0.03], "f1": [0.8, None, 0.82]}),
        row("sst/tying/dot", {"drop": [0.11, 0.13, 0.12], "f1": [0.79, 0.8, 0.81]}, seeds=(0, 1, 3)),
        NOT_RUN,
    ]
)


def test_values_are_paired_by_seed_where_both_are_defined() -> None:
    assert values_by_seed(ONE, "t", "sst/base/dot", "f1") == {0: 0.8, 2: 0.82}
    found = differences_between_rows(ONE, "t", "drop", "tying", "base")
    assert [case.name for case in found] == ["sst/tying/dot against base", "agnews/tying/dot against base"]
    assert found[0].values == pytest.approx((0.11 - 0.01, 0.13 - 0.02))  # seeds 0 and 1
    assert found[1].values == ()
    (first, *_) = differences_between_rows(ONE, "t", "f1", "tying", "base")
    assert first.shifted(0.05).values == pytest.approx((0.79 - 0.8 + 0.05,))
    assert first.reversed().values == pytest.approx((0.8 - 0.79,))


def test_a_pair_is_excluded_if_either_row_is() -> None:
    rows = [row("sst/base/dot", {"drop": [0.1]}), row("sst/tying/dot", {"drop": [0.3]}, excluded="F1 0.5")]
    (found,) = differences_between_rows(reproduction(t=rows), "t", "drop", "tying", "base")
    assert (found.values, found.excluded) == (pytest.approx((0.2,)), "sst/tying/dot: F1 0.5")
    assert [case.excluded for case in each_row(reproduction(t=rows), "t", "drop")] == ["", "F1 0.5"]


@pytest.mark.parametrize(
    ("first", "second", "saturated"),
    [
        ([1.0, 1.0], [1.0, 0.996], True),
        ([-1.0, 1.0], [-1.0, 1.0], True),
        ([1.0, 1.0], [1.0, 0.99], False),
        ([1.0, 1.0], [-1.0, -1.0], False),
        ([None, None], [1.0, 1.0], False),
    ],
)
def test_a_case_is_saturated_if_both_sides_are_at_the_same_end_with_every_seed(
    first: list[float | None], second: list[float | None], saturated: bool
) -> None:
    one = reproduction(t=[row("sst", {"a": first, "b": second})])
    assert differences_within_rows(one, "t", "a", "b", ends=(-1.0, 1.0))[0].saturated is saturated
    assert differences_within_rows(one, "t", "a", "b")[0].saturated is False


def test_a_row_that_compares_seeds_has_one_value() -> None:
    one = reproduction(t=[row("sst/seeds", {"jsd": [0.2]}, seeds=(0, 1, 2))])
    assert values_by_seed(one, "t", "sst/seeds", "jsd") == {0: 0.2}


def test_differences_within_rows_and_single_quantities() -> None:
    assert differences_within_rows(ONE, "t", "f1", "drop")[0].values == pytest.approx((0.79, 0.79))
    assert each_row(ONE, "t", "drop", minus=0.05)[0].values == pytest.approx((-0.04, -0.03, -0.02))
    assert values_by_seed(ONE, "t", "sst/base/dot", "nothing") == {}
    assert values_by_seed(ONE, "nothing", "sst/base/dot", "drop") == {}
    assert values_by_seed(ONE, "t", "agnews/tying/dot", "drop") == {}


CLEAR, REVERSE, OPEN = (0.10, 0.11, 0.12), (-0.10, -0.11, -0.12), (-0.1, 0.0, 0.2)
LOWER = (-0.20, -0.21, -0.22)
UNFINISHED = Case(name="unfinished", values=REVERSE, excluded="1 of 3 planned seeds", unfinished=True)
UNTRAINED = Case(name="untrained", values=REVERSE, excluded="F1 0.5; 0.9 in the paper")
ALSO_UNTRAINED = replace(UNTRAINED, name="also untrained")
AT_THE_END = Case(name="at the end", values=(0.0, 0.0, 0.0), saturated=True)


def cases(*values: tuple[float, ...]) -> list[Case]:
    return [Case(name=f"row {i}", values=one) for i, one in enumerate(values)]


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (cases(CLEAR, CLEAR), "holds"),
        (cases(CLEAR, ()), "holds"),
        (cases(CLEAR, OPEN), "undecided"),
        (cases(CLEAR, OPEN, REVERSE), "does not hold"),
        (cases((0.0, 0.0)), "does not hold"),
        (cases((0.5,)), "undecided"),
        (cases(CLEAR, (0.5,)), "holds"),
        (cases(CLEAR, (-0.5,)), "undecided"),
        (cases(REVERSE, (0.5,)), "does not hold"),
        (cases((), ()), "not run"),
        ([], "not run"),
        ([UNTRAINED], "undecided"),
        ([*cases(CLEAR), UNTRAINED], "holds"),
        ([*cases(CLEAR), UNTRAINED, ALSO_UNTRAINED], "undecided"),
        ([*cases(REVERSE), UNTRAINED, ALSO_UNTRAINED], "does not hold"),
        ([UNFINISHED], "undecided"),
        ([*cases(CLEAR), UNFINISHED, replace(UNFINISHED, name="also unfinished")], "holds"),
        ([*cases(CLEAR), UNFINISHED, UNTRAINED, ALSO_UNTRAINED], "undecided"),
        ([AT_THE_END], "saturated"),
        ([AT_THE_END, UNTRAINED], "saturated"),
        ([AT_THE_END, *cases(CLEAR)], "holds"),
        ([AT_THE_END, *cases(OPEN)], "undecided"),
    ],
)
def test_a_claim_holds_where_every_interval_that_counts_is_above_zero(found: list[Case], verdict: str) -> None:
    answer = holds_in_every_case(found, what="tying minus base")
    assert answer.verdict == verdict
    assert answer.reason.endswith(".")
    assert answer.left_out == tuple(case.name for case in found if case.excluded)


@pytest.mark.parametrize(
    ("found", "cause", "seeds_needed"),
    [
        ([UNFINISHED], "unfinished", None),
        ([UNFINISHED, UNTRAINED], "untrained", None),
        ([*cases(CLEAR), UNTRAINED, UNTRAINED], "left out", None),
        (cases((0.5,)), "one seed", None),
        (cases(CLEAR, (-0.5,)), "one seed", None),
        (cases(OPEN, (-0.5,)), "intervals", None),
        (cases(CLEAR, OPEN), "intervals", None),  # its mean is too close to 0 for any reasonable number of seeds
        (cases((-0.01, 0.05, 0.11)), "intervals", 9),
        (cases((0.02, 0.05, 0.08), (0.03, 0.05, 0.07)), "intervals", 5),
        (cases((0.03, 0.05, 0.07), (0.03, 0.05, 0.07)), "correction", 4),
        (cases(CLEAR), None, None),
        (cases(REVERSE), None, None),
        ([], None, None),
    ],
)
def test_an_undecided_claim_has_a_cause(found: list[Case], cause: str | None, seeds_needed: int | None) -> None:
    answer = holds_in_every_case(found, what="drop")
    assert (answer.cause, answer.seeds_needed) == (cause, seeds_needed)
    assert (answer.verdict == "undecided") is (cause is not None)


def test_a_claim_about_scores_does_not_hold_if_rows_were_left_out_for_their_scores() -> None:
    answer = holds_in_every_case([*cases(CLEAR, CLEAR), UNTRAINED], what="F1", about_scores=True)
    assert answer.verdict == "undecided"
    assert answer.reason == (
        "The interval is above 0 in both rows that count, but a claim about scores cannot hold if rows do "
        "not count because of their scores."
    )
    assert answer.cause == "scores"
    assert holds_in_every_case(cases(CLEAR), what="F1", about_scores=True).verdict == "holds"
    assert holds_in_every_case([*cases(CLEAR), UNFINISHED], what="F1", about_scores=True).verdict == "holds"


def test_a_claim_that_does_not_hold_is_explained_if_a_row_against_it_has_an_explanation() -> None:
    below = [
        case.renamed(f"{place}/bilstm") for place, case in zip(("sst", "imdb"), cases(REVERSE, CLEAR), strict=True)
    ]
    claim = Claim(
        name="c",
        sentence="s",
        paper="p",
        read=lambda report: holds_in_every_case(below, what="w"),
        explanations={"sst/*": "Short texts.", "imdb/*": "Long texts."},
    )
    (finding,) = answer_claims((claim,), reproduction(first=[]))
    assert finding.verdict == "does not hold"
    assert finding.reason.endswith("sst/bilstm. Short texts.")
    assert "texts" not in claim.explain(holds_in_every_case(below[1:], what="w"))


def test_the_intervals_of_a_claim_are_corrected_for_their_number() -> None:
    borderline = (0.02, 0.05, 0.08)  # p = .035
    assert holds_in_every_case(cases(borderline), what="drop").verdict == "undecided"
    almost = (0.02, 0.04, 0.06)
    assert holds_in_every_case(cases(almost), what="drop").verdict == "undecided"
    single = (0.03, 0.05, 0.07)
    assert holds_in_every_case(cases(single), what="drop").verdict == "holds"
    assert holds_in_every_case(cases(single, OPEN), what="drop").verdict == "undecided"
    against = tuple(-value for value in single)
    assert holds_in_every_case(cases(against), what="drop").verdict == "does not hold"
    assert holds_in_every_case(cases(against, OPEN), what="drop").verdict == "undecided"


def test_values_that_share_models_have_wider_intervals() -> None:
    """A simulation in which the correlation is 1/2: value s is the sum of the numbers of models s and s + 1."""
    random = np.random.default_rng(0)
    for n in (3, 5):
        models = random.normal(size=(2000, n + 1))
        cases = [Case(name="a", values=tuple(row)) for row in (models[:, 1:] + models[:, :-1]).tolist()]

        def misses(case: Case) -> bool:
            found = mean_interval(case.values)
            assert found.low is not None
            assert found.high is not None
            return not found.low <= 0 <= found.high

        assert sum(map(misses, cases)) > 0.1 * len(cases)
        assert sum(misses(case.with_shared_models()) for case in cases) < 0.07 * len(cases)
    case = Case(name="a", values=(1.0, 2.0, 3.0)).with_shared_models()
    assert case.values == pytest.approx((2 - 2.5**0.5, 2.0, 2 + 2.5**0.5))
    assert Case(name="a", values=(1.0,)).with_shared_models().values == (1.0,)


def test_a_claim_that_holds_names_the_encoders_without_rows() -> None:
    found = [Case(name="sst/bilstm/dot", values=(1.0, 1.1)), Case(name="sst/transformer/dot", values=())]
    found.append(Case(name="sst/average/dot", values=()))
    reason = holds_in_every_case(found, what="").reason
    assert reason.endswith("No row with the encoder “average” or a Transformer counts.")
    found.append(Case(name="imdb/transformer/dot", values=(1.0, 1.1)))
    assert "Transformer" not in holds_in_every_case(found, what="").reason


def test_several_comparisons_of_a_row_are_not_counted_as_rows() -> None:
    one, other = cases(CLEAR, CLEAR)
    both = [one.renamed("sst, gradient"), replace(one, name="sst, leave-one-out", row=one.name), UNTRAINED]
    answer = holds_in_every_case([*both, UNTRAINED.renamed("untrained, gradient"), other], what="drop")
    assert answer.reason == "The interval is above 0 in all 3 comparisons that count."
    assert answer.left_out == ("untrained",)
    single = holds_in_every_case([*both, *cases((-0.5,), (0.5,))], what="drop")
    assert single.reason == "The value is not above 0 in 1 of the 2 comparisons with a single seed."
    mixed = holds_in_every_case(cases(CLEAR, LOWER, CLEAR, (-0.5,)), what="drop")
    assert mixed.reason == (
        "The interval is at or below 0 in 1 of 3 rows with several seeds that count: row 1. "
        "The value is also not above 0 in 1 row with a single seed."
    )


def test_the_evidence_names_every_row_with_its_interval() -> None:
    found = [Case(name="sst", values=CLEAR), Case(name="imdb", values=LOWER), Case(name="agnews", values=())]
    answer = holds_in_every_case(found, what="drop")
    assert answer.reason == "The interval is at or below 0 in 1 of 2 rows that count: imdb."
    assert answer.evidence == (
        "drop: mean over 3 seeds, 95% interval, corrected for 2 intervals. sst +0.110 [0.085, 0.135]; "
        "imdb −0.210 [−0.246, −0.174]"
    )
    single = holds_in_every_case([Case(name="snli", values=(0.5,))], what="drop")
    assert single.reason == "The only row has a single seed."
    assert single.evidence == "drop: mean over 1 seed. snli +0.500 (one seed)"
    saturated = holds_in_every_case([*cases(CLEAR), AT_THE_END], what="drop")
    assert "1 row with both values at the end of the scale is left out" in saturated.evidence
    assert holds_in_every_case([], what="drop").reason == "No row that this claim needs has been run here."
    assert holds_in_every_case([UNTRAINED], what="drop").reason == (
        "The only row that was run does not count: the score of a model is too far from the paper's. The report lists "
        "this row."
    )
    unfinished = replace(UNTRAINED, unfinished=True)
    assert holds_in_every_case([UNTRAINED, ALSO_UNTRAINED, replace(unfinished, name="u")], what="drop").reason == (
        "None of the 3 rows that were run counts: the score of a model is too far from the paper's in 2 rows, and "
        "planned seeds or recorded scores are missing in 1 row. The report lists these rows."
    )
    assert holds_in_every_case([unfinished], what="drop").reason == (
        "The only row that was run does not count: planned seeds or recorded scores are missing. The report lists "
        "this row."
    )


def test_a_claim_with_new_seeds_was_judged_before() -> None:
    def report(seeds: tuple[int, ...]) -> Reproduction:
        base = row("sst/base/dot", {"drop": [0.01, 0.02, 0.03]}, seeds=seeds)
        return reproduction(t=[base, row("sst/tying/dot", {"drop": [0.11, 0.13, 0.12]}, seeds=seeds)])

    (first,) = answer_claims([CLAIM], report((0, 1, 2)))
    (second,) = answer_claims([CLAIM], report((3, 4, 5)))
    assert (first.verdict, first.again, second.verdict, second.again) == ("holds", False, "holds", True)
    assert "judged before" not in verdict_text(first)
    assert verdict_text(second).endswith("This claim was judged before, with other seeds.")
    reports = [msgspec.structs.replace(ONE, findings=(one,)) for one in (first, second)]
    assert rests_on_one_row(reports).endswith("may not hold in others. 1 was judged before, with other seeds.")
    undecided = replace(holds_in_every_case(cases((-0.01, 0.05, 0.11)), what="drop"), again=True)
    (open_,) = answer_claims([replace(CLAIM, read=lambda _: undecided)], ONE)
    assert open_.seeds_needed is not None
    assert "would decide" not in verdict_text(open_)  # a row gets new seeds once


def test_of_many_rows_the_evidence_lists_the_lowest_and_the_highest() -> None:
    found = [Case(name=f"row {i}", values=(i / 10, i / 10)) for i in (4, 2, 9, 3, 8, 1, 5, 7, 6)]
    assert holds_in_every_case(found, what="drop").evidence == (
        "drop: mean over 2 seeds, 95% interval, corrected for 9 intervals. "
        "Lowest: row 1 +0.100 [0.100, 0.100]; row 2 +0.200 [0.200, 0.200]; row 3 +0.300 [0.300, 0.300]; "
        "row 4 +0.400 [0.400, 0.400]; row 5 +0.500 [0.500, 0.500]; row 6 +0.600 [0.600, 0.600]; "
        "… highest: row 9 +0.900 [0.900, 0.900]"
    )


@pytest.mark.parametrize(
    ("hits", "n", "left_out", "verdict", "cause"),
    [
        (15, 18, 0, "holds", None),
        (15, 18, 19, "undecided", "left out"),
        (2, 18, 19, "does not hold", None),
        (10, 18, 0, "undecided", "share"),
    ],
)
def test_most_settings_are_judged_by_the_interval_of_their_share(
    hits: int, n: int, left_out: int, verdict: str, cause: str | None
) -> None:
    excluded = [Case(name=f"row {i}", values=(0.1,), excluded="F1 0.5") for i in range(left_out)]
    answer = holds_in_most(hits, n, what="it happens", notes=("noted",), excluded=excluded)
    assert (answer.verdict, answer.cause) == (verdict, cause)
    assert answer.left_out == tuple(case.name for case in excluded)
    assert answer.reason.endswith(".")
    assert answer.evidence.endswith("; noted)")


@pytest.mark.parametrize(
    ("saturated", "left_out", "verdict"), [(3, 1, "saturated"), (0, 3, "undecided"), (0, 0, "not run")]
)
def test_without_rows_that_count_a_claim_is_not_decided(saturated: int, left_out: int, verdict: str) -> None:
    excluded = [Case(name=f"row {i}", values=(0.1,), excluded="F1 0.5") for i in range(left_out)]
    answer = without_counted_rows(saturated=saturated, excluded=excluded)
    assert (answer.verdict, answer.left_out) == (verdict, tuple(case.name for case in excluded))
    assert (answer.verdict == "undecided") is (answer.cause is not None)


def fragile(one: Reproduction) -> Answer:
    return holds_in_every_case(
        differences_between_rows(one, "t", "drop", "tying", "base"), what="drop, tying minus base"
    )


CLAIM = Claim(name="fragile", sentence="Tying | makes <fragile>.", paper="§4.1", read=fragile)


def test_every_format_shows_the_findings() -> None:
    helps = Remedy(question="used", option="tying", words="tie <each> state")
    found = msgspec.structs.replace(ONE, findings=answer_claims([CLAIM], ONE), remedies=(helps,))
    (finding,) = found.findings
    assert (finding.claim, finding.verdict, finding.paper) == ("fragile", "holds", "§4.1")
    text = summary(found, width=80)
    assert "holds: Tying | makes <fragile>. (§4.1)" in text
    assert all(len(one) <= 80 for one in text.splitlines())
    assert "* tie <each> state" in text
    markdown = paper_pages.markdown(found)
    assert "* tie <each> state" in markdown
    assert f"| Tying \\| makes <fragile>. (§4.1) | holds | {finding.reason} {finding.evidence}. |" in markdown
    html = paper_pages.html({"synthetic": found})
    assert "Tying | makes &lt;fragile&gt;." in html
    assert all(part in html for part in finding.evidence.split(". "))
    assert "<li>tie &lt;each&gt; state</li>" in html


def test_the_pages_say_how_many_claims_rest_on_a_single_row() -> None:
    one, two = holds_in_every_case(cases(CLEAR), what="drop"), holds_in_every_case(cases(CLEAR, CLEAR), what="drop")
    assert (one.verdict, one.alone, two.verdict, two.alone) == ("holds", True, "holds", False)
    same_row = [case.renamed(f"{case.name} {what}") for case in cases(CLEAR) for what in ("a", "b")]
    assert holds_in_every_case(same_row, what="drop").alone
    assert not holds_in_every_case(cases([-1.0, -1.1, -1.2]), what="drop").alone
    claims = [
        replace(CLAIM, name=str(i), read=lambda _, answer=answer: answer) for i, answer in enumerate((one, one, two))
    ]
    report = msgspec.structs.replace(ONE, findings=answer_claims(claims, ONE))
    sentence = "Of the 3 claims that hold, 2 rest on a single row or pair of rows, and may not hold in others."
    assert sentence in paper_pages.claims_page({"synthetic": report})
    assert sentence in paper_pages.index_html({"synthetic": report})
    assert "rest on a single row" not in paper_pages.claims_page({"synthetic": ONE})


def test_a_report_without_claims_does_not_mention_them() -> None:
    for text in (summary(ONE, width=80), paper_pages.markdown(ONE), paper_pages.html({"synthetic": ONE})):
        assert "whether they hold" not in text
        assert "may help" not in text


def test_every_format_lists_the_rows_that_cannot_decide_a_claim() -> None:
    rows = [
        row("sst/base/dot", {"drop": [0.1]}),
        row("sst/tying/dot", {"drop": [0.3]}, excluded="F1 0.500; 0.900 in the paper"),
    ]
    one = reproduction(t=rows, u=rows)
    left_out = msgspec.structs.replace(one, findings=answer_claims([CLAIM], one))
    assert left_out.findings[0].left_out == ("sst/tying/dot",)
    for text in (
        summary(left_out, width=120),
        paper_pages.markdown(left_out),
        paper_pages.html({"synthetic": left_out}),
    ):
        assert "The report lists this row." in " ".join(text.split())
        assert "sst/tying/dot (t, u)" in text
        assert "F1 0.500; 0.900 in the paper" in text
    page = paper_pages.claims_page({"synthetic": left_out})
    assert "| [synthetic](synthetic.md) | 0 | 0 | 1 | 0 | 0 |" in page
    assert (
        "| Rows were run, but none counts: in one or more rows, the score of a model is too far from the paper's. | 1 |"
        in page
    )
    index = paper_pages.index_html({"synthetic": left_out})
    assert '<a href="synthetic.html">Synthetic</a>' in index
    assert "Tying | makes &lt;fragile&gt;." in index
    assert escape(left_out.findings[0].reason) in index
    assert (
        "Rows were run, but none counts: in one or more rows, the score of a model is too far from the paper&#39;s."
        in index
    )
    assert "http" not in index.replace("http-equiv", "")
