"""Write the comparison of two runs as one HTML page and as Markdown."""

from __future__ import annotations

from pathlib import Path

from attnaudit.errors import ReportError
from attnaudit.processes import replace_file
from attnaudit.records.comparison_records import Comparison
from attnaudit.report.comparison_markdown import comparison_markdown
from attnaudit.report.comparison_view import ComparisonPage, assemble_comparison
from attnaudit.report.render import environment
from attnaudit.report.run_files import MeasurementsFile


def write_comparison(
    comparison: Comparison, folders: tuple[Path, Path], page_file: Path
) -> tuple[ComparisonPage, tuple[Path, Path]]:
    """Write the comparison of two runs.

    Args:
        comparison: The comparison.
        folders: The folders of the base run and of the candidate run, with measurements.parquet.
        page_file: The HTML file to write. The Markdown file has the same name with the suffix .md.

    Returns:
        The content of the page, and the paths of both files.

    Raises:
        ReportError: A file cannot be read or written.
    """
    page = assemble_comparison(comparison, MeasurementsFile(folders[0]), MeasurementsFile(folders[1]))
    markdown_file = page_file.with_suffix(".md")
    for path, text in (
        (page_file, comparison_html(page)),
        (markdown_file, comparison_markdown(page, report=page_file.name)),
    ):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode())
        except OSError as error:
            raise ReportError(
                f"{path}: cannot be written ({error.strerror}). Give a writable file with --out."
            ) from error
    return page, (page_file, markdown_file)


def comparison_html(page: ComparisonPage) -> str:
    """Return the comparison as HTML."""
    return environment().get_template("comparison.html.j2").render(page=page)
