"""List what reproductions do differently from the paper, each deviation as few times as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.research.reproduction.corpora import corpus_title
from attnaudit.research.reproduction.pages import paper_wording as wording
from attnaudit.research.reproduction.paper_report import Reproduction

HEADING = "Where we deviate from the paper"

#: A table with numbers in a report: the number of the report, and the name of the table.
Place = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """The deviations in reports on the same paper.

    Attributes:
        shared: The deviations that concern a corpus, or all tables of a report. If reports differ in a deviation, the
            setting of those that it concerns follows in brackets.
        of_table: Name of a table -> its other deviations, in every report that has numbers for the table.
        of_report: Place -> its other deviations, which are not in every report.
    """

    shared: list[str]
    of_table: dict[str, list[str]]
    of_report: dict[Place, list[str]]


def deviations(reports: Sequence[Reproduction]) -> Deviations:
    """Collect the deviations of all tables that have numbers."""
    places: list[Place] = []
    found: dict[str, list[Place]] = {}
    for k, report in enumerate(reports):
        for table in report.tables:
            if wording.measured_rows(table):
                places.append((k, table.name))
                for text in table.deviations:
                    found.setdefault(text, []).append((k, table.name))
    shared: list[str] = []
    of_table: dict[str, list[str]] = {}
    of_report: dict[Place, list[str]] = {}
    for text, where in found.items():
        chosen = list(dict.fromkeys(k for k, _ in where))
        concerned = [k for k, report in enumerate(reports) if _has_corpus_of(text, report)]
        if concerned or len(where) == sum(k in chosen for k, _ in places):
            every = set(concerned or (k for k, _ in places)) <= set(chosen)
            settings = "; ".join(wording.setting(reports[k]) for k in chosen)
            shared.append(text if every else f"{text} ({settings}.)")
            continue
        for name in dict.fromkeys(name for _, name in where):
            of_name = [place for place in where if place[1] == name]
            if len(of_name) == sum(other == name for _, other in places):
                of_table.setdefault(name, []).append(text)
            else:
                for place in of_name:
                    of_report.setdefault(place, []).append(text)
    return Deviations(shared=shared, of_table=of_table, of_report=of_report)


def _has_corpus_of(text: str, report: Reproduction) -> bool:
    """Return whether a deviation starts with a corpus of which the report has numbers, as in "bAbI-2:" or "bAbI:"."""
    start, colon, _ = text.partition(":")
    titles = {corpus_title(row.corpus) for table in report.tables for row in wording.measured_rows(table)}
    return bool(colon) and any(title == start or title.startswith(f"{start}-") for title in titles)
