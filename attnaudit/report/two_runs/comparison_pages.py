"""Write the comparison of two runs as one HTML page and as Markdown."""

from __future__ import annotations

from pathlib import Path

import msgspec

from attnaudit.errors import ReportError
from attnaudit.processes import replace_file
from attnaudit.records import RunRecord
from attnaudit.records.comparison_records import Comparison
from attnaudit.report.explorer.explorer_page import FOLDER, ExplorerView, explorer_of, listed_instances
from attnaudit.report.explorer.explorer_rows import CaseRows, read_rows
from attnaudit.report.render import environment
from attnaudit.report.run_files import Case, MeasurementsFile
from attnaudit.report.two_runs.comparison_markdown import comparison_markdown
from attnaudit.report.two_runs.comparison_view import ComparisonPage, assemble_comparison


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
    measurements = (MeasurementsFile(folders[0]), MeasurementsFile(folders[1]))
    page = assemble_comparison(comparison, *measurements)
    markdown_file = page_file.with_suffix(".md")
    run, rows = both_runs(comparison, measurements)
    try:
        page_file.parent.mkdir(parents=True, exist_ok=True)
        explorer = explorer_of(run, rows, page_file.parent / f"{page_file.stem}-{FOLDER}")
        replace_file(page_file, comparison_html(page, explorer).encode())
        replace_file(markdown_file, comparison_markdown(page, report=page_file.name).encode())
    except OSError as error:
        path = error.filename or page_file
        raise ReportError(f"{path}: cannot be written ({error.strerror}). Give a writable file with --out.") from error
    return page, (page_file, markdown_file)


def comparison_html(page: ComparisonPage, explorer: ExplorerView | None = None) -> str:
    """Return the comparison as HTML.

    Args:
        page: The content of the comparison.
        explorer: The explorer of the instances of both runs; None to leave it out.
    """
    return environment().get_template("comparison.html.j2").render(page=page, explorer=explorer)


def both_runs(
    comparison: Comparison, files: tuple[MeasurementsFile, MeasurementsFile]
) -> tuple[RunRecord, dict[Case, CaseRows]]:
    """Return one record for both runs, and the measurements of both, for the explorer.

    Each model is named after its run. If the runs name a data set differently, the name in the candidate run is used
    for both, so that the explorer shows each text under both models.

    Raises:
        ReportError: measurements.parquet of a run is corrupt.
    """
    runs = (comparison.candidate, comparison.base)
    listed = {*listed_instances(runs[0]), *listed_instances(runs[1])}
    measured = [read_rows(file.path, listed=listed) for file in reversed(files)]
    names: dict[tuple[int, Case], Case] = {}
    for subject in comparison.subjects:
        names_there = (subject.candidate_model, subject.base_model)
        data = (subject.candidate_data, subject.base_data)
        for i, which in enumerate(("candidate", "base")):
            case = (names_there[i], data[i], runs[i].seed)
            names[i, case] = (f"{names_there[i]} ({which})", subject.candidate_data, runs[i].seed)
    rows = {new: measured[i][case] for (i, case), new in names.items() if case in measured[i]}
    checks = [
        msgspec.structs.replace(record, model=names[key][0], data=names[key][1])
        for i, run in enumerate(runs)
        for record in run.checks
        if (key := (i, (record.model, record.data, record.seed))) in names
    ]
    models = [
        msgspec.structs.replace(model, name=f"{model.name} ({which})")
        for run, which in zip(runs, ("candidate", "base"), strict=True)
        for model in run.models
    ]
    return msgspec.structs.replace(comparison.candidate, models=models, checks=checks), rows
