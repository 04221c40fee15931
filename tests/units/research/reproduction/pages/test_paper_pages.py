"""Pages of a synthetic report: the same numbers on the terminal, in Markdown and in HTML."""

from __future__ import annotations

import re

import msgspec
import pytest

from attnaudit.records import Environment
from attnaudit.research.reproduction.figures.figure_records import Figure, Strip, Strips
from attnaudit.research.reproduction.pages import paper_pages, paper_wording
from attnaudit.research.reproduction.pages.glossary import SYMBOLS
from attnaudit.research.reproduction.pages.paper_summary import summary
from attnaudit.research.reproduction.pages.paper_wording import VERDICTS, cells, evidence_parts, texts_of
from attnaudit.research.reproduction.paper_report import (
    OUTDATED,
    ClaimVerdict,
    Reproduction,
    Row,
    WordVectors,
)
from attnaudit.research.reproduction.remedies_file import Remedy
from tests.units.research.reproduction.pages.report_with_figures import PROVENANCE, finding, line, reproduction


def test_a_line_shows_paper_ours_difference_and_n() -> None:
    tau, flat, half = reproduction().tables[0].rows[0].lines
    assert cells(tau) == ("tau", "0.351", "0.310 ± 0.012", "−0.041", "40")
    assert cells(flat) == ("flat", "0.200", "undefined", "—", "0")
    assert cells(half) == ("half", "—", "0.500 (1 of 2 seeds undefined)", "—", "40")


def test_numbers_near_zero_are_rounded_like_the_numbers_around_them() -> None:
    near = msgspec.structs.replace(line("tau", paper=2e-4, values=[-3e-4, -2e-4]), std=7e-5)
    assert cells(near)[1:4] == ("0.000", "0.000 ± 0.000", "0.000")
    rows = [Row(name=f"{i}", title="", corpus="sst", lines=[line("tau", paper=i, values=[i + 1e-4])]) for i in range(5)]
    table = msgspec.structs.replace(reproduction().tables[0], rows=rows)
    assert paper_wording.closeness_cells(table) == [("all quantities", *(("5", "1.00", "0.000") * 2))]


@pytest.mark.parametrize(("ours", "shown"), [(0.2004, "0.000"), (0.1996, "0.000"), (0.199, "−0.001"), (0.3, "+0.100")])
def test_a_difference_that_is_rounded_to_zero_has_no_sign(ours: float, shown: str) -> None:
    assert cells(line("tau", paper=0.2, values=[ours]))[3] == shown


def test_the_numbers_of_a_claim_are_folded_with_one_line_per_row() -> None:
    evidence = "τ minus 0.1: mean over 3 seeds; 1 row with a single seed. a/b +0.1 [0; 0.2]; a/c +0.3 (x; y)"
    found = msgspec.structs.replace(finding("holds"), evidence=evidence, left_out=("a", "b"))
    what, rows = evidence_parts(found)
    assert what == "τ minus 0.1: mean over 3 seeds; 1 row with a single seed."
    assert rows == ["a/b +0.1 [0; 0.2]", "a/c +0.3 (x; y)"]
    assert evidence_parts(msgspec.structs.replace(found, evidence="in 1 of 2 (a; b); of 9")) == (
        "",
        ["in 1 of 2 (a; b)", "of 9"],
    )
    assert evidence_parts(finding("undecided")) == ("", [])
    page = paper_pages.html({"synthetic": msgspec.structs.replace(reproduction(), findings=(found,))})
    cell = page[page.index("A reason.") :]
    assert "2 rows do not count." in cell[: cell.index("<details")]
    folded = cell[cell.index("<details") : cell.index("</details>")]
    assert folded.count("<li>") == 2


def both_reports() -> dict[str, Reproduction]:
    """Two reports with excluded rows and undecided claims, one of them with word vectors."""
    one = reproduction()
    (first, *others) = one.tables[0].rows
    rows = [msgspec.structs.replace(first, excluded="one seed"), *others]
    open_ = msgspec.structs.replace(finding("undecided"), cause="intervals")
    random = msgspec.structs.replace(
        one,
        tables=[msgspec.structs.replace(one.tables[0], rows=rows)],
        findings=(open_,),
        remedies=(Remedy(question="q", option="o", words="Start from word vectors."),),
        row_names="Rows are named corpus/encoder.",
    )
    vectors = WordVectors(name="made.2d", width=2, sha256="0" * 64)
    return {"synthetic": random, "synthetic-made.2d": msgspec.structs.replace(random, vectors=vectors)}


def test_headings_differ_and_the_contents_list_every_section() -> None:
    page = paper_pages.html(both_reports())
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert len(set(headings)) == len(headings)
    assert {paper_wording.EXCLUDED, paper_wording.OPEN, paper_wording.REMEDIES} <= set(headings)
    contents = page[page.index("<nav") : page.index("</nav>")]
    linked = re.findall(r'href="#([^"]+)"', contents)
    sections = re.findall(r'<section[^>]* id="([^"]+)"', page)
    assert [one for one in linked if one in sections] == sections  # in the order of the page
    assert all(f'id="{one}"' in page for one in linked)
    assert [one for one in linked if one.partition("-")[0] == "t"] == ["t", "t-synthetic-made.2d", "t-synthetic"]
    assert "Rows are named corpus/encoder." in page


def test_a_paper_page_explains_the_symbols_that_it_uses() -> None:
    reports = both_reports()
    for text in (paper_pages.html(reports), paper_pages.markdown(reports["synthetic"])):
        assert "Total variation distance" not in text
    table = reports["synthetic"].tables[0]
    about_tvd = msgspec.structs.replace(table, deviations=["TVD is halved."])
    reports["synthetic"] = msgspec.structs.replace(reports["synthetic"], tables=[about_tvd])
    for text in (paper_pages.html(reports), paper_pages.markdown(reports["synthetic"])):
        assert text.count("Total variation distance") == 1
    claim = msgspec.structs.replace(finding("holds"), sentence="Δτ is small.")
    reports["synthetic"] = msgspec.structs.replace(reports["synthetic"], findings=(claim,))
    assert "τ of the normal model minus τ of the other model" in paper_pages.index_html(reports)
    for symbol in SYMBOLS:
        assert f"| {symbol.name} | {symbol.meaning} |" in paper_pages.claims_page(reports)


def test_reports_name_corpora_by_their_titles() -> None:
    one = reproduction()
    for text in (summary(one, width=100), paper_pages.markdown(one), paper_pages.html({"synthetic": one})):
        assert "SST: 6,355 train" in text
    named = msgspec.structs.replace(one.tables[0].rows[0], name="sst/a")
    table = msgspec.structs.replace(one.tables[0], rows=[named])
    reports = {"synthetic": msgspec.structs.replace(one, tables=[table])}
    assert "| table | SST |" in paper_pages.claims_page(reports)
    assert '<th scope="col">SST</th>' in paper_pages.index_html(reports)


def test_closeness_is_shown_with_descriptions_and_a_head_for_each_group_of_rows() -> None:
    one = reproduction()
    (first, *others) = one.tables[0].rows
    lines = [
        msgspec.structs.replace(line("a", paper=0.1, values=[0.2]), words="… of a", label="the number a"),
        line("b", paper=0.1, values=[0.2]),
    ]
    table = msgspec.structs.replace(one.tables[0], rows=[msgspec.structs.replace(first, lines=lines), *others])
    assert "the number a" in [cells[0] for cells in paper_wording.closeness_rows(table)]
    page = paper_pages.html({"synthetic": msgspec.structs.replace(one, tables=[table])})
    for group in ("All measured rows", "Rows that count"):
        assert f'class="group" colspan="3">{group}</th>' in page


def test_every_format_says_which_rows_are_not_in_the_paper_and_whose_numbers_are_compared() -> None:
    one = reproduction()
    strip = Strip(label="a", values=[0.2], paper=0.1, counts=True)
    strips = Strips(x_label="a", low=0, high=1, strips=[strip], compared_with="other paper")
    figure = Figure(name="strips a", row="", title="A", caption="C.", strips=strips)
    table = msgspec.structs.replace(one.tables[0], left_out=("sst",), compared_with="other paper", figures=[figure])
    one = msgspec.structs.replace(one, tables=[table])
    page = paper_pages.html({"synthetic": one})
    for text in (summary(one, width=140), paper_pages.markdown(one), page):
        assert " (not in the paper)" in text
        assert "other paper" in text.lower()
    assert "The vertical mark is the number of the other paper." in page
    assert all(cells[4] == "0" for cells in paper_wording.closeness_rows(table))  # none of these rows counts


def test_every_table_of_a_paper_page_fits_a_narrow_screen() -> None:
    page = paper_pages.html(both_reports())
    narrow = page[page.index("@media screen and (max-width: 640px) {") :].partition("{")[2]
    fits = re.findall(r"([^{}]+){[^{}]*min-width: 0 !important", narrow)
    tables = set(re.findall(r'<table class="([a-z]+)"', page))
    assert tables == {"claims", "closeness", "quantities", "reasons", "values"}
    assert tables <= set(re.findall(r"\.([a-z]+)", " ".join(fits)))


def test_every_output_shows_the_same_numbers_and_the_deviations() -> None:
    one = reproduction()
    for text in (summary(one, width=100), paper_pages.markdown(one), paper_pages.html({"synthetic": one})):
        for expected in ("0.351", "0.310 ± 0.012", "−0.041", "undefined", "not run here", "Embeddings are random."):
            assert expected in text
        assert "2 seeds; at most 500 test texts audited; training 1 min 01 s, audit 5.0 s" in " ".join(text.split())
        assert "QUICK" not in text


def test_the_rules_of_verdicts_are_a_list() -> None:
    reports = both_reports()
    rules = [rule.replace("'", "&#39;") for rule in VERDICTS]
    for page in (paper_pages.html(reports), paper_pages.index_html(reports)):
        for rule in rules:
            emphasised = "".join(f"<em>{part}</em>" if i % 2 else part for i, part in enumerate(rule.split("*")))
            assert f"<li>{emphasised}</li>" in page
    for text in (paper_pages.markdown(reports["synthetic"]), paper_pages.claims_page(reports)):
        assert "\n".join(("", *(f"* {rule}" for rule in VERDICTS), "")) in text


def test_the_page_of_a_paper_begins_with_the_verdicts_on_its_claims() -> None:
    verdicts: list[ClaimVerdict] = ["holds", "undecided", "undecided", "does not hold"]
    ours = msgspec.structs.replace(finding("holds"), ours=True)
    one = msgspec.structs.replace(reproduction(), findings=(*map(finding, verdicts), ours))
    sentence = "Of the paper's 4 claims, 1 holds, 1 does not hold and 2 are undecided."
    assert paper_wording.verdicts_in_short(one) == sentence
    page = paper_pages.html({"synthetic": one}).replace("&#39;", "'")
    assert page.index(sentence) < page.index("<nav")
    for others, text in (
        ([], ""),
        (["holds"], "The claim of the paper holds."),
        (["undecided"] * 3, "All 3 claims of the paper are undecided."),
    ):
        changed = msgspec.structs.replace(one, findings=(*map(finding, others), ours))
        assert paper_wording.verdicts_in_short(changed) == text


def test_the_column_n_is_explained_above_the_tables() -> None:
    one = reproduction()
    for text in (paper_pages.markdown(one), paper_pages.html({"synthetic": one}).replace("&#39;", "'")):
        assert text.index(paper_wording.COLUMNS) < text.index("In the paper: table 2")


def test_only_corpora_with_measured_rows_have_numbers_of_texts() -> None:
    one = reproduction()
    data = {**one.data, "20news": {"test": 357}}
    more = msgspec.structs.replace(one, data=data)
    assert texts_of(more) == ["SST: 6,355 train, 821 dev, 1,725 test"]
    for text in (summary(more, width=100), paper_pages.markdown(more), paper_pages.html({"synthetic": more})):
        assert "357" not in text
    outdated = Row(name="a", title="", corpus="sst", lines=[], missing=OUTDATED)
    none = msgspec.structs.replace(more, tables=[msgspec.structs.replace(one.tables[0], rows=[outdated])])
    assert texts_of(none) == []
    assert "Texts:" not in paper_pages.html({"synthetic": none})


def test_planned_seeds_are_shown() -> None:
    one = reproduction()
    (first, *others) = one.tables[0].rows
    planned = msgspec.structs.replace(first, provenance=msgspec.structs.replace(PROVENANCE, seed_plan="0" * 64))
    table = msgspec.structs.replace(one.tables[0], rows=[planned, *others])
    shown = paper_pages.markdown(msgspec.structs.replace(one, tables=[table]))
    assert "2 seeds (planned); at most" in shown
    assert "(planned)" not in paper_pages.markdown(one)


def test_rows_from_another_machine_than_the_last_run_are_listed() -> None:
    one = reproduction()
    (first, *others) = one.tables[0].rows

    def shown(environment: Environment) -> list[str]:
        made = msgspec.structs.replace(PROVENANCE, environment=environment)
        rows = [msgspec.structs.replace(first, provenance=made), *others]
        report = msgspec.structs.replace(one, tables=[msgspec.structs.replace(one.tables[0], rows=rows)])
        return [paper_pages.markdown(report), paper_pages.html({"synthetic": report})]

    other = msgspec.structs.replace(one.environment, python="2.7.18", packages={"torch": "0.1"})
    for text in shown(other):
        assert "Python 2.7.18, torch 0.1; " in text
        assert "t (a)" in text
    for text in shown(one.environment):
        assert "t (a)" not in text


def test_quick_is_marked_on_every_output() -> None:
    one = reproduction(quick=True)
    for text in (summary(one, width=80), paper_pages.markdown(one), paper_pages.html({"synthetic": one})):
        assert "QUICK: not a reproduction" in text
