"""Compose the text of the pages: NAME.md for each report, PAPER.html for each paper, and claims.md for all papers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from attnaudit.formatting import number, plural
from attnaudit.report.heatmaps import Heatmap, token_row
from attnaudit.report.markdown import LONGEST_REASON, escape
from attnaudit.research.reproduction.corpora import EMBEDDED, corpus_title
from attnaudit.research.reproduction.figures.chart_numbers import chart_numbers
from attnaudit.research.reproduction.figures.figure_captions import full_caption
from attnaudit.research.reproduction.figures.figure_records import Counterfactual, Figure
from attnaudit.research.reproduction.figures.paper_figures import draw
from attnaudit.research.reproduction.figures.shared_axes import highest_values, share_axes
from attnaudit.research.reproduction.pages import paper_coverage
from attnaudit.research.reproduction.pages import paper_wording as wording
from attnaudit.research.reproduction.pages.deviations import HEADING, Deviations, deviations
from attnaudit.research.reproduction.pages.glossary import SYMBOLS, Symbol, symbols_in
from attnaudit.research.reproduction.pages.page_parts import Part, Picture
from attnaudit.research.reproduction.paper_report import ClaimVerdict, Finding, Reproduction, Table
from attnaudit.research.study.report_files import render_page
from attnaudit.research.study.text_tables import markdown_table


@dataclass(frozen=True, kw_only=True)
class Page:
    """The data for the HTML template.

    Attributes:
        parts: The reports of one paper, at least one.
    """

    parts: Sequence[Part]

    wording = wording
    number = staticmethod(number)
    plural = staticmethod(plural)
    deviations_heading = HEADING

    @functools.cached_property
    def deviations(self) -> Deviations:
        """What the reports do differently from the paper."""
        return deviations([part.report for part in self.parts])

    @property
    def first(self) -> Reproduction:
        """The first report."""
        return self.parts[0].report

    @property
    def claims(self) -> list[tuple[Finding, ...]]:
        """The answers of all reports to each claim."""
        return list(zip(*(part.report.findings for part in self.parts), strict=True))

    def by_part(self, answers: Sequence[Finding]) -> list[tuple[Part, Finding]]:
        """Return the answers to a claim, each with its report."""
        return list(zip(self.parts, answers, strict=True))

    @property
    def symbols(self) -> list[Symbol]:
        """The symbols that the page uses."""
        return symbols_in("\n".join(_read_text(part.report) for part in self.parts))

    @property
    def excluded(self) -> list[tuple[Part, list[tuple[str, str]]]]:
        """The reports with their rows that do not count, if any. `EXCLUDED_HEAD` names the columns."""
        found = [(part, wording.excluded_rows(part.report)) for part in self.parts]
        return [(part, rows) for part, rows in found if rows]

    @property
    def advised(self) -> list[Part]:
        """The reports that have remedies."""
        return [part for part in self.parts if part.report.remedies]

    @property
    def corpora(self) -> list[str]:
        """The corpora of the paper's tables."""
        return paper_coverage.corpora(part.report for part in self.parts)

    @property
    def causes(self) -> list[tuple[str, str, str]]:
        """Rows with the reasons why claims are undecided. `OPEN_HEAD` names the columns."""
        return wording.open_claims([part.report for part in self.parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The data for the HTML template of the index.

    Attributes:
        papers: The papers, without pictures.
    """

    papers: Sequence[Page]

    wording = wording
    coverage = paper_coverage
    verdicts = get_args(ClaimVerdict)
    corpus_title = staticmethod(corpus_title)

    @property
    def symbols(self) -> list[Symbol]:
        """The symbols that the page uses."""
        found = [one for paper in self.papers for part in paper.parts for one in part.report.findings]
        return symbols_in("\n".join(text for one in found for text in (one.sentence, one.reason)))

    @property
    def causes(self) -> list[tuple[str, str, str]]:
        """Rows with the reasons why claims are undecided. `OPEN_HEAD` names the columns."""
        return wording.open_claims([part.report for paper in self.papers for part in paper.parts])

    @property
    def alone(self) -> str:
        """A sentence with the number of claims that rest on a single row or pair of rows."""
        return wording.rests_on_one_row(part.report for paper in self.papers for part in paper.parts)

    @property
    def totals(self) -> str:
        """Sentences with the number of rows that have numbers."""
        return paper_coverage.totals(part.report for paper in self.papers for part in paper.parts)

    @staticmethod
    def count(report: Reproduction, verdict: ClaimVerdict) -> int:
        """Return how many claims of the paper have this verdict in a report."""
        return sum(one.verdict == verdict and not one.ours for one in report.findings)


def index_html(reports: Mapping[str, Reproduction]) -> str:
    """Return an HTML page that links to the pages of several reports and lists their verdicts.

    Args:
        reports: File name without extension -> report. The pages are PAPER.html in the same folder.
    """
    by_paper: dict[str, list[Part]] = {}
    for name, report in by_setting(reports).items():
        by_paper.setdefault(report.paper, []).append(Part(name=name, report=report, pictures={}))
    papers = [Page(parts=parts) for _, parts in sorted(by_paper.items())]
    return render_page("attnaudit.research.reproduction", "papers.html.j2", Index(papers=papers))


def html(reports: Mapping[str, Reproduction]) -> str:
    """Return the reports of one paper as one HTML page that opens offline.

    Figures of the same kind have the same axes in all reports.

    Args:
        reports: File name without extension -> report, at least one. The order of the page is that of `by_setting`.
    """
    shared = share_axes(by_setting(reports))
    highest = highest_values(shared)
    parts = [Part(name=name, report=report, pictures=_pictures(report, highest)) for name, report in shared.items()]
    return render_page("attnaudit.research.reproduction", "paper.html.j2", Page(parts=parts))


def by_setting(reports: Mapping[str, Reproduction]) -> dict[str, Reproduction]:
    """Return reports sorted by how much they tell about the papers, starting with the most informative ones.

    Reports on the corpora of the papers come before reports on the packaged sentences. In both groups, reports with
    word vectors come first, because the models of the papers use word vectors.
    """
    return dict(sorted(reports.items(), key=lambda item: (EMBEDDED in item[1].data, item[1].vectors is None)))


def _pictures(report: Reproduction, highest: Mapping[tuple[str, str], float]) -> dict[str, list[Picture]]:
    return {
        table.name: sorted(
            (
                _picture(figure, highest[table.name, figure.name], full_caption(figure, table, report.data))
                for figure in table.figures
            ),
            key=lambda picture: picture.heatmap is None,
        )
        for table in report.tables
    }


def _picture(figure: Figure, highest: float, caption: str) -> Picture:
    drawing = draw(figure, highest=highest)
    return Picture(
        figure=figure,
        drawing=drawing,
        heatmap=None if figure.counterfactual is None else _heatmap(figure.counterfactual),
        numbers=None if drawing is None else chart_numbers(figure),
        caption=caption,
    )


def _heatmap(pair: Counterfactual) -> Heatmap:
    positions = range(len(pair.tokens))
    return Heatmap(
        instance=pair.instance,
        value=f"JSD {number(pair.jsd)}",
        label=pair.label,
        predicted=pair.predicted,
        tokens=len(pair.tokens),
        shown_tokens=len(pair.tokens),
        rows=(
            token_row("attention", pair.attention, pair.tokens, positions),
            token_row("adversarial.0.01.attention", pair.adversarial, pair.tokens, positions),
        ),
    )


def markdown(report: Reproduction) -> str:
    """Return the report as Markdown, without figures."""
    lines = [f"# {wording.heading(report)}", "", report.citation, ""]
    lines += [*(f"* {texts} texts" for texts in wording.texts_of(report)), "", wording.COLUMNS, ""]
    body = _body(report)
    return "\n".join([*lines, *_symbols(symbols_in(_read_text(report))), *body]) + "\n"


def _read_text(report: Reproduction) -> str:
    """Return everything in a report that may contain symbols."""
    figures = [text for table in report.tables for one in table.figures for text in (one.title, one.caption)]
    return "\n".join([*_body(report), *figures])


def _symbols(symbols: Sequence[Symbol]) -> list[str]:
    """Return a section that explains symbols. The list is empty if there are none."""
    cells = [(symbol.name, symbol.meaning) for symbol in symbols]
    return [f"## {wording.SYMBOLS}", "", *markdown_table(wording.SYMBOLS_HEAD, cells)] if cells else []


def _body(report: Reproduction) -> list[str]:
    """Return the sections of the report in Markdown, without the section that explains symbols."""
    lines: list[str] = []
    if report.findings:
        lines += [f"## {wording.CLAIMS}", "", *_verdict_rules()]
        lines += [*([report.row_names, ""] if report.row_names else []), *_findings(report)]
    if report.goals:
        cells = [row[1:] for row in wording.goal_cells("", report)]
        lines += [f"### {wording.GOALS}", "", wording.GOALS_TEXT, "", *markdown_table(wording.GOALS_HEAD[1:], cells)]
    excluded = wording.excluded_rows(report)
    if excluded:
        lines += [f"### {wording.EXCLUDED}", "", *markdown_table(wording.EXCLUDED_HEAD, excluded)]
    if report.remedies:
        lines += [f"## {wording.REMEDIES}", "", *(f"* {remedy.words}" for remedy in report.remedies), ""]
    differences = deviations([report])
    if differences.shared:
        lines += [f"## {HEADING}", "", *(f"* {text}" for text in differences.shared), ""]
    for table in report.tables:
        lines += _table(table, differences.of_table.get(table.name, []))
    lines += ["## How these numbers were made", "", "```", *wording.commands(report), "```", ""]
    lines.append(
        f"attnaudit {report.attnaudit}, {plural(report.jobs, 'job')}; last run {report.created}. "
        f"{wording.made_with(report)}."
    )
    for environment, rows in wording.made_elsewhere(report):
        lines += ["", f"Made with {environment}: {'; '.join(rows)}."]
    return lines


def claims_page(reports: Mapping[str, Reproduction]) -> str:
    """Return a Markdown page with the claims of several reports and an overview of the rows that have been measured.

    Args:
        reports: File name without extension -> report.
    """
    titles = {report.paper: report.title for report in reports.values()}
    pages = [f"* [{title}](pages/{name}.html)" for name, title in titles.items()]
    lines = [f"# {wording.CLAIMS}", "", *_verdict_rules(), wording.PAGES, "", *pages, "", *_counts(reports)]
    lines += _open_claims(reports)
    claims: list[str] = []
    for stem, report in reports.items():
        if report.findings:
            claims += [f"## [{wording.heading(report)}]({stem}.md)", "", report.citation, ""]
            claims += [*([report.row_names, ""] if report.row_names else []), *_findings(report)]
    return "\n".join([*lines, *_symbols(SYMBOLS), *claims, *_goals(reports), *_coverage(reports)])


def _verdict_rules() -> list[str]:
    return [*(f"* {rule}" for rule in wording.VERDICTS), ""]


def _counts(reports: Mapping[str, Reproduction]) -> list[str]:
    """Return a table of how often each verdict was given."""
    verdicts = get_args(ClaimVerdict)
    cells = [
        (f"[{stem}]({stem}.md)", *(str(Index.count(report, verdict)) for verdict in verdicts))
        for stem, report in reports.items()
        if report.findings
    ]
    alone = wording.rests_on_one_row(reports.values())
    return [*markdown_table(("report", *verdicts), cells, numeric=verdicts), *([alone, ""] if alone else [])]


def _open_claims(reports: Mapping[str, Reproduction]) -> list[str]:
    """Return a table of why claims are undecided. The list is empty if none is."""
    causes = wording.open_claims(reports.values())
    if not causes:
        return []
    head = wording.OPEN_HEAD
    return [f"## {wording.OPEN}", "", *markdown_table(head, causes, numeric=head[1:2])]


def _goals(reports: Mapping[str, Reproduction]) -> list[str]:
    """Return a table of goals for the numbers of all reports. The list is empty if there are no goals."""
    cells = [row for stem, report in reports.items() for row in wording.goal_cells(stem, report)]
    if not cells:
        return []
    return [f"## {wording.GOALS}", "", wording.GOALS_TEXT, "", *markdown_table(wording.GOALS_HEAD, cells)]


def _coverage(reports: Mapping[str, Reproduction]) -> list[str]:
    names = paper_coverage.corpora(reports.values())
    lines = [
        f"## {paper_coverage.COVERAGE}",
        "",
        paper_coverage.totals(reports.values()),
        "",
        paper_coverage.COUNTED,
        "",
    ]
    cells = [
        (f"[{stem}]({stem}.md) {table.name}", *(paper_coverage.coverage(table, name) for name in names))
        for stem, report in reports.items()
        for table in report.tables
    ]
    return [*lines, *markdown_table(("table", *(corpus_title(name) for name in names)), cells)]


def _findings(report: Reproduction) -> list[str]:
    return markdown_table(
        wording.CLAIMS_HEAD,
        [
            (f"{finding.sentence} ({finding.paper})", finding.verdict, wording.verdict_text(finding))
            for finding in report.findings
        ],
    )


def _table(table: Table, own: Sequence[str]) -> list[str]:
    """Return the section of a table, with the deviations that concern only this table."""
    lines = [f"## {table.title}", "", f"In the paper: {table.source}.", ""]
    rows = wording.measured_rows(table)
    if rows:
        lines += [f"* {text}" for text in own]
        cells = [
            (wording.row_title(table, row) if place == 0 else "", *wording.cells(quantity))
            for row in rows
            for place, quantity in enumerate(row.lines)
        ]
        head = wording.head(table)
        lines += ["", *markdown_table(("model", *head), cells, numeric=head[1:])]
        lines += [f"* {row.title}: {wording.how_measured(row)}" for row in rows]
        lines += [f"* {row.title}: {escape(note, LONGEST_REASON)}" for row in rows for note in row.notes]
        lines.append("")
    closeness = wording.closeness_rows(table)
    if closeness:
        columns = wording.CLOSENESS_HEAD
        lines += [
            f"### {wording.closeness_heading(table)}",
            "",
            *markdown_table(columns, closeness, numeric=columns[1:]),
        ]
    for why, names in wording.missing_rows(table):
        lines += [f"{', '.join(f'`{name}`' for name in names)}: {escape(why, LONGEST_REASON)}", ""]
    return lines
