"""Rebuild the pages of reproductions from their measured results. Nothing is trained or measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from attnaudit.errors import AuditError, ReportError
from attnaudit.research.reproduction.pages import paper_pages
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.paper_tables import Paper
from attnaudit.research.reproduction.papers import paper
from attnaudit.research.reproduction.remedies_file import REMEDIES, Remedy, first_of_each_option, remedies_text
from attnaudit.research.reproduction.results.results_file import SUFFIX, read_results
from attnaudit.research.reproduction.results.seed_counts import planned_seeds
from attnaudit.research.reproduction.results.seed_plan import read_seed_plan
from attnaudit.research.reproduction.table_layout import corpora_of, lay_out, require_declared
from attnaudit.research.study.report_files import write_files

#: The page with the claims of all papers in the folder.
CLAIMS_PAGE = "claims.md"
#: The HTML page that links to the pages of all papers.
INDEX_PAGE = "index.html"
#: The subfolder with the HTML pages.
PAGES = "pages"


def read_reports(folder: Path, *, find_paper: Callable[[str], Paper] = paper) -> dict[str, Reproduction]:
    """Build the reports of all results files in a folder.

    Args:
        folder: The folder with the results files, NAME.jsonl.
        find_paper: Returns the declaration of the paper with the given name.

    Returns:
        File name without extension -> report, in alphabetical order.

    Raises:
        ReportError: A file cannot be read, or does not match the declaration of its paper.
    """
    plan = read_seed_plan(folder)
    papers: dict[str, Paper] = {}
    reports: dict[str, Reproduction] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stem):
        found = read_results(path)
        if found is None:
            continue
        try:
            papers[path.stem] = find_paper(found.header.paper)
        except AuditError as error:
            raise ReportError(f"{path}: {error}") from error
        require_declared(found, papers[path.stem], path)
        corpora = corpora_of(papers[path.stem], embedded=found.header.embedded)
        seeds = planned_seeds(found, papers[path.stem], corpora, plan, path.stem)
        reports[path.stem] = lay_out(found, papers[path.stem], seeds=seeds)
    for stem, report in reports.items():
        advise = papers[stem].remedies
        if advise is not None and not report.quick:
            random = reports.get(stem.removesuffix(f"-{report.vectors.name}")) if report.vectors else None
            reports[stem] = report.with_remedies(advise(report, random))
    return reports


def render(
    folder: Path, *, name: str | None = None, stem: str | None = None, find_paper: Callable[[str], Paper] = paper
) -> tuple[dict[str, Reproduction], list[Path]]:
    """Write the pages of the reports in a folder, and claims.md, remedies.json and pages/index.html for all of them.

    Each report has a page NAME.md. All reports of a paper together have a page pages/PAPER.html.

    Args:
        folder: The folder with the results files, NAME.jsonl. The pages are written to the same folder.
        name: The name of a paper. Only the pages of this paper are written. None for all papers.
        stem: The file name of a report, without extension. Only its page and the page of its paper are written. None
            for all reports.
        find_paper: Returns the declaration of the paper with the given name.

    Returns:
        All reports of the folder, as `read_reports` returns them, and the paths of the written files.

    Raises:
        ReportError: A file cannot be read or written, or does not match the declaration of its paper.
    """
    reports = read_reports(folder, find_paper=find_paper)
    chosen = {file: report for file, report in reports.items() if name in (None, report.paper) and stem in (None, file)}
    texts = {f"{file}.md": paper_pages.markdown(report) for file, report in chosen.items()}
    for of_paper in dict.fromkeys(report.paper for report in chosen.values()):
        shown = {file: report for file, report in reports.items() if report.paper == of_paper}
        texts[f"{PAGES}/{of_paper}.html"] = paper_pages.html(shown)
    texts[f"{PAGES}/{INDEX_PAGE}"] = paper_pages.index_html(reports)
    texts[CLAIMS_PAGE] = paper_pages.claims_page(reports)
    texts[REMEDIES] = remedies_text(remedies_of(reports))
    return reports, write_files(folder, texts)


def remedies_of(reports: Mapping[str, Reproduction]) -> list[Remedy]:
    """Return the remedies of several reports, one per question and training option.

    If several reports have a remedy for the same question and option, the first in the order of
    `paper_pages.by_setting` is used.
    """
    ordered = paper_pages.by_setting(reports).values()
    return first_of_each_option([remedy for report in ordered for remedy in report.remedies])
