"""The committed results: complete, none of them quick, and the committed pages are those that they give."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnaudit.research.reproduction.corpora import CORPORA
from attnaudit.research.reproduction.pages import paper_pages
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.papers import PAPERS, paper
from attnaudit.research.reproduction.remedies_file import REMEDIES, read_remedies, remedies_text
from attnaudit.research.reproduction.render_reports import CLAIMS_PAGE, INDEX_PAGE, PAGES, read_reports, remedies_of
from attnaudit.research.reproduction.results.results_file import SUFFIX, read_results, results_text

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "reports" / "papers"
STEMS = sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


@pytest.fixture(scope="module")
def reports() -> dict[str, Reproduction]:
    return read_reports(FOLDER)


def test_every_paper_has_results() -> None:
    assert set(PAPERS) <= set(STEMS)


@pytest.mark.parametrize("stem", STEMS)
def test_the_results_are_complete_and_the_committed_page_is_theirs(stem: str, reports: dict[str, Reproduction]) -> None:
    report = reports[stem]
    assert stem == (f"{report.paper}-{report.vectors.name}" if report.vectors else report.paper)
    assert not report.quick
    assert any(row.lines for table in report.tables for row in table.rows)
    page = (FOLDER / f"{stem}.md").read_text(encoding="utf-8")
    assert paper_pages.markdown(report) == page, "run `attnaudit reproduce --render`, and commit the pages"


@pytest.mark.parametrize("stem", STEMS)
def test_a_deviation_is_listed_once_and_only_where_it_applies(stem: str, reports: dict[str, Reproduction]) -> None:
    report = reports[stem]
    of_random = {text for corpus in CORPORA.values() for text in corpus.random_deviations}
    for table in report.tables:
        assert len(set(table.deviations)) == len(table.deviations), table.name
        if report.vectors is not None:
            assert not of_random & set(table.deviations), table.name
            measured = {row.corpus for row in table.rows if row.provenance is not None}
            about_babi = any("bAbI" in text for text in table.deviations)
            assert about_babi == any(name.startswith("babi") for name in measured), table.name


@pytest.mark.parametrize("stem", STEMS)
def test_every_claim_that_does_not_hold_is_explained(stem: str, reports: dict[str, Reproduction]) -> None:
    explanations = {claim.name: claim.explanations.values() for claim in paper(reports[stem].paper).claims}
    for finding in reports[stem].findings:
        if finding.verdict == "does not hold":
            assert any(text in finding.reason for text in explanations[finding.claim]), finding.sentence


@pytest.mark.parametrize("name", PAPERS)
def test_the_committed_page_of_a_paper_is_of_these_results(name: str, reports: dict[str, Reproduction]) -> None:
    page = paper_pages.html({stem: report for stem, report in reports.items() if report.paper == name})
    assert (FOLDER / PAGES / f"{name}.html").read_text(encoding="utf-8") == page, "run `attnaudit reproduce --render`"


def test_rows_of_corpora_that_a_paper_leaves_out_are_drawn_as_rows_that_do_not_count(
    reports: dict[str, Reproduction],
) -> None:
    tables = [table for report in reports.values() for table in report.tables if table.left_out]
    strips = [(table, figure.strips) for table in tables for figure in table.figures if figure.strips is not None]
    assert strips
    for table, record in strips:
        titles = {row.label or row.title for row in table.rows if row.corpus in table.left_out}
        assert not [strip.label for strip in record.strips if strip.counts and strip.label in titles], table.name


def test_the_committed_index_is_of_these_results(reports: dict[str, Reproduction]) -> None:
    assert (FOLDER / PAGES / INDEX_PAGE).read_text(encoding="utf-8") == paper_pages.index_html(reports)


@pytest.mark.parametrize("stem", STEMS)
def test_results_are_stored_one_row_or_figure_per_line(stem: str) -> None:
    path = FOLDER / f"{stem}{SUFFIX}"
    results = read_results(path)
    assert results is not None
    assert results_text(results) == path.read_text(encoding="utf-8")


def test_the_committed_results_are_small() -> None:
    assert sum((FOLDER / f"{stem}{SUFFIX}").read_text(encoding="utf-8").count("\n") for stem in STEMS) < 2000


def test_the_claims_page_is_of_these_results(reports: dict[str, Reproduction]) -> None:
    assert (FOLDER / CLAIMS_PAGE).read_text(encoding="utf-8") == paper_pages.claims_page(reports)


def test_the_remedies_are_of_these_results(reports: dict[str, Reproduction]) -> None:
    assert (FOLDER / REMEDIES).read_text(encoding="utf-8") == remedies_text(remedies_of(reports))


def test_the_committed_remedies_name_their_effect_and_their_source() -> None:
    remedies = read_remedies(FOLDER / REMEDIES)
    assert {remedy.option for remedy in remedies} >= {"vectors", "mlm"}
    assert all("reproduction of" in remedy.words and "→" in remedy.words for remedy in remedies)
