"""The reproduced papers of the gallery, from the results of `attnaudit reproduce`."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from attnaudit.research.gallery.gallery_records import PaperExhibit, PaperNumber
from attnaudit.research.gallery.measure_exhibits import rounded
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.papers import PAPERS, paper
from attnaudit.research.reproduction.render_reports import read_reports

#: Quantities that say nothing about attention.
_OTHER = re.compile(r"accuracy|^F1$|standard deviation")


def paper_exhibits(reports_folder: Path, families: Collection[str]) -> list[PaperExhibit]:
    """Return the reproduced papers that have results in a folder.

    Args:
        reports_folder: The folder with the results, NAME.jsonl.
        families: The kinds of checks of the gallery. Other kinds are left out.

    Raises:
        ReportError: A results file cannot be read.
    """
    reports = read_reports(reports_folder)
    exhibits = []
    for name in PAPERS:
        own = {stem: report for stem, report in reports.items() if report.paper == name and not report.quick}
        if not own:
            continue
        audits = [audit for table in paper(name).tables for audit in table.audits]
        used = dict.fromkeys(check.family for audit in audits for check in audit.checks)
        first = next(iter(own.values()))
        exhibits.append(
            PaperExhibit(
                name=name,
                title=paper(name).title,
                citation=first.citation,
                families=[family for family in used if family in families],
                reports=sorted(own),
                numbers=_numbers(list(own.values())),
            )
        )
    return exhibits


def _numbers(reports: list[Reproduction]) -> list[PaperNumber]:
    """Return the numbers about attention that both the paper and a report give.

    If several reports give the same number, it comes from a report with word vectors.
    """
    found: dict[tuple[str, str, str], PaperNumber] = {}
    for report in sorted(reports, key=lambda one: one.vectors is not None):
        for table in report.tables:
            for row in table.rows:
                for line in row.lines:
                    if line.paper is not None and line.ours is not None and not _OTHER.search(line.words):
                        found[table.name, row.name, line.quantity] = PaperNumber(
                            table=table.title,
                            row=row.title,
                            quantity=line.words,
                            paper=rounded(line.paper),
                            ours=rounded(line.ours),
                        )
    return list(found.values())
