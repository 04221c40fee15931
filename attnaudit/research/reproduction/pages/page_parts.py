"""The part of a paper's page that shows one report, and how its rows and pictures are grouped."""

from __future__ import annotations

from dataclasses import dataclass

from attnaudit.formatting import plural
from attnaudit.report.charts import Drawing
from attnaudit.report.heatmaps import Heatmap
from attnaudit.research.reproduction.corpora import CORPORA, corpus_title
from attnaudit.research.reproduction.figures.chart_numbers import ChartNumbers
from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.pages.paper_wording import measured_rows
from attnaudit.research.reproduction.paper_report import Reproduction, Row, Table

#: If a table has more pictures of single rows than this, they are folded.
MOST_SHOWN = 4
#: If a table has more rows than this, the rows of all corpora except the first are folded.
MOST_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure as the HTML page shows it.

    Attributes:
        figure: The record of the figure.
        drawing: The shapes of the figure. None for a counterfactual, and for an empty figure.
        heatmap: The coloured tokens of a counterfactual. None for all other figures.
        numbers: The numbers of the drawing as a table. None if there is no drawing.
        caption: The text below the figure.
    """

    figure: Figure
    drawing: Drawing | None
    heatmap: Heatmap | None
    numbers: ChartNumbers | None
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a page that shows one report.

    Attributes:
        name: The file name of the report, without extension.
        report: The report.
        pictures: Name of a table -> pictures of the table.
    """

    name: str
    report: Reproduction
    pictures: dict[str, list[Picture]]

    def table(self, name: str) -> Table:
        """Return the table with this name."""
        return next(table for table in self.report.tables if table.name == name)

    def row_groups(self, name: str) -> list[tuple[str, list[Row]]]:
        """Return the measured rows of a table in groups, each with a heading: one group per corpus.

        If there are few rows, they are one group with the heading "".
        """
        rows = measured_rows(self.table(name))
        if len(rows) <= MOST_ROWS:
            return [("", rows)] if rows else []
        by_corpus: dict[str, list[Row]] = {}
        for row in rows:
            by_corpus.setdefault(row.name.partition("/")[0], []).append(row)
        return [(corpus_title(one) if one in CORPORA else one.capitalize(), found) for one, found in by_corpus.items()]

    def picture_groups(self, name: str) -> list[tuple[str, list[Picture]]]:
        """Return the pictures of a table in groups, each with a heading.

        The first group has the heading "" and is shown; the other groups are folded. They contain the pictures of
        single rows, one group per corpus, if there are many.
        """
        pictures = self.pictures[name]
        of_rows = [one for one in pictures if "/" in one.figure.row]
        if len(of_rows) <= MOST_SHOWN:
            return [("", pictures)] if pictures else []
        shown = [one for one in pictures if "/" not in one.figure.row]
        by_corpus: dict[str, list[Picture]] = {}
        for one in of_rows:
            by_corpus.setdefault(one.figure.row.partition("/")[0], []).append(one)
        folded = [
            (f"{corpus_title(one)}: {plural(len(found), 'figure')} of single models", found)
            for one, found in by_corpus.items()
        ]
        return [("", shown), *folded] if shown else folded
