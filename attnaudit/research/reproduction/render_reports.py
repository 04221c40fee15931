"""Rebuild the pages of a folder of reproductions from their measured results, without training or measuring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from attnaudit.errors import AuditError, ReportError
from attnaudit.research.reproduction import paper_pages
from attnaudit.research.reproduction.corpora import EMBEDDED
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.paper_tables import Paper
from attnaudit.research.reproduction.papers import paper
from attnaudit.research.reproduction.remedies_file import REMEDIES, Remedy, first_of_each_option, remedies_text
from attnaudit.research.reproduction.results_file import SUFFIX, read_results
from attnaudit.research.reproduction.table_layout import lay_out, require_declared
from attnaudit.research.study.report_files import write_files

#: The page with the claims of all papers in the folder.
CLAIMS_PAGE = "claims.md"


def read_reports(folder: Path, *, find_paper: Callable[[str], Paper] = paper) -> dict[str, Reproduction]:
    """Build the reports of all results files in a folder.

    Args:
        folder: folder with NAME.jsonl files.
        find_paper: returns the declaration of a paper for its name.

    Returns:
        File name without extension -> report, in alphabetical order.

    Raises:
        ReportError: a file cannot be read, or does not fit its paper's declaration.
    """
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
        reports[path.stem] = lay_out(found, papers[path.stem])
    for stem, report in reports.items():
        advise = papers[stem].remedies
        if advise is not None and not report.quick:
            random = reports.get(stem.removesuffix(f"-{report.vectors.name}")) if report.vectors else None
            reports[stem] = report.with_remedies(advise(report, random))
    return reports


def render(
    folder: Path, *, name: str | None = None, stem: str | None = None, find_paper: Callable[[str], Paper] = paper
) -> tuple[dict[str, Reproduction], list[Path]]:
    """Write the pages of reports, claims.md and remedies.json.

    Args:
        folder: folder with NAME.jsonl files; the pages are written there.
        name: write only the pages of this paper's reports; None for all papers.
        stem: write only the pages of this report (file name without extension); None for all reports.
        find_paper: returns the declaration of a paper for its name.

    Returns:
        All reports of the folder as `read_reports` gives them, and the paths of the written files.

    Raises:
        ReportError: a file cannot be read or written, or does not fit its paper's declaration.
    """
    reports = read_reports(folder, find_paper=find_paper)
    texts: dict[str, str] = {}
    for file, report in reports.items():
        if name in (None, report.paper) and stem in (None, file):
            texts[f"{file}.md"] = paper_pages.markdown(report)
            texts[f"{file}.html"] = paper_pages.html(report)
    texts[CLAIMS_PAGE] = paper_pages.claims_page(reports)
    texts[REMEDIES] = remedies_text(remedies_of(reports))
    return reports, write_files(folder, texts)


def remedies_of(reports: Mapping[str, Reproduction]) -> list[Remedy]:
    """Return the remedies of several reports, one per question and option.

    Reports on the papers' own corpora take precedence over those on the embedded sentences. Among them, reports with
    word vectors take precedence, because the papers' models use word vectors.
    """
    ordered = sorted(reports.values(), key=lambda report: (EMBEDDED in report.data, report.vectors is None))
    return first_of_each_option([remedy for report in ordered for remedy in report.remedies])
