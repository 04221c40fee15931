"""How many rows of each table have numbers, and the totals over several reports."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from attnaudit.research.reproduction.pages import paper_pages
from attnaudit.research.reproduction.pages.paper_coverage import COUNTED, ENCODERS, coverage, totals
from attnaudit.research.reproduction.paper_report import OUTDATED, Reproduction, Row, Table
from attnaudit.research.reproduction.paper_tables import ROW_NAMES
from attnaudit.research.reproduction.papers import PAPERS, paper
from tests.units.research.reproduction.synthetic_reports import reproduction, row


def measured(name: str, *, corpus: str = "sst", excluded: str = "") -> Row:
    return row(f"{corpus}/{name}", {"tau": [0.1, 0.2]}, corpus=corpus, excluded=excluded)


def absent(name: str, *, corpus: str = "sst", missing: str = "not run here") -> Row:
    return Row(name=f"{corpus}/{name}", title="", corpus=corpus, lines=[], missing=missing)


def table(*rows: Row, left_out: Sequence[str] = ()) -> Table:
    return msgspec.structs.replace(reproduction(t=rows).tables[0], left_out=tuple(left_out))


RUN, OLD, NEVER = measured("bilstm/a"), absent("bilstm/b", missing=OUTDATED), absent("bilstm/c")


@pytest.mark.parametrize(
    ("rows", "text", "left_out"),
    [
        ([RUN, OLD, NEVER], "1 of 3, 2 seeds; 1 outdated", "1 of 3, 2 seeds; not in the paper; 1 outdated"),
        ([OLD, NEVER], "none; 1 outdated", "not in the paper; 1 outdated"),
        ([NEVER], "none", "not in the paper"),
        ([absent("bilstm", corpus="imdb")], "", ""),
    ],
)
def test_the_rows_of_a_corpus_are_counted(rows: Sequence[Row], text: str, left_out: str) -> None:
    assert coverage(table(*rows), "sst") == text
    assert coverage(table(*rows, left_out=["sst"]), "sst") == left_out


def report(*tables: Table) -> Reproduction:
    return msgspec.structs.replace(reproduction(), tables=list(tables))


def test_the_totals_count_the_rows_of_corpora_in_the_paper() -> None:
    first = table(RUN, measured("cnn", excluded="accuracy 0.5"), OLD, NEVER, absent("transformer/dot"))
    mean = row("mean/additive", {"tau": [0.1]})
    second = table(measured("mlp", corpus="imdb"), absent("cnn"), mean, left_out=["imdb"])
    assert totals([report(first), report(second)]) == (
        "The tables of all reports together have 6 rows, without those of corpora that are not in the paper. Of these, "
        "2 have numbers, and 1 counts for claims. The only row with a Transformer has no numbers."
    )


def test_only_encoders_without_any_numbers_are_named() -> None:
    rows = [absent("cnn/a"), absent("cnn/b"), absent("transformer/a"), absent("mlp/a"), absent("tying/additive")]
    found = totals([report(table(*rows)), report(table(measured("mlp/b")))])
    assert found.endswith(
        "1 has numbers, and 1 counts for claims. None of the 3 rows with a CNN or a Transformer has numbers."
    )
    assert "None" not in totals([report(table(RUN, NEVER))])


@pytest.mark.parametrize("name", PAPERS)
def test_the_encoders_in_the_names_of_rows_are_known(name: str) -> None:
    declared = paper(name)
    names = {row.name for table in declared.tables for row in table.rows(declared.corpora)}
    if declared.row_names.startswith(ROW_NAMES):
        assert {row.split("/")[1] for row in names} <= set(ENCODERS)


def test_both_pages_show_the_totals_and_explain_blank_cells() -> None:
    reports = {"synthetic": report(table(RUN, OLD, NEVER))}
    pages = (paper_pages.claims_page(reports), paper_pages.index_html(reports).replace("&#39;", "'"))
    for text in pages:
        assert totals(reports.values()) in text
        assert COUNTED in text
        assert text.index(totals(reports.values())) < text.index("1 of 3, 2 seeds; 1 outdated")
    assert "A blank cell" in COUNTED
    assert "| 1 of 3, 2 seeds; 1 outdated |" in pages[0]
    assert "<td>1 of 3, 2 seeds; 1 outdated</td>" in pages[1]
