"""Compute a hash of the settings of a row, and find the rows that were measured with other settings.

The settings of a row are the plans of its models, the rules by which its corpus is prepared, and the definition of its
table. If they change, earlier measurements of the row say nothing about the present declaration of the paper.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec

from attnaudit.models.word_vectors import Vectors
from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.paper_report import WordVectors
from attnaudit.research.reproduction.paper_tables import RowPlan, TablePlan
from attnaudit.research.reproduction.results_file import Results
from attnaudit.research.reproduction.row_exclusions import RowKey

LENGTH = 16


def row_setting(table: TablePlan, row: RowPlan, vectors: WordVectors | None) -> str:
    """Return a hash of the settings of a row, as 16 hexadecimal digits.

    Args:
        table: The table of the row.
        row: The row.
        vectors: The word vectors that the embeddings start from. None for random embeddings.
    """
    start = None if vectors is None else Vectors(path="", width=vectors.width, sha256=vectors.sha256)
    plans = {role: plan if start is None else plan.starting_from(start) for role, plan in row.models.items()}
    parts = (table.build, corpus(row.corpus).rules, {role: plan.digest for role, plan in plans.items()})
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:LENGTH]


def without_outdated_rows(
    results: Results, tables: dict[str, tuple[TablePlan, dict[str, RowPlan]]]
) -> tuple[Results, set[RowKey]]:
    """Leave out the rows that were measured with other settings, and their figures.

    Args:
        results: The measured results.
        tables: Name of a table -> the table and its rows by name.

    Returns:
        The other results, and (table, row) of the rows that were left out.
    """
    outdated: set[RowKey] = set()
    for row in results.rows:
        table, plans = tables[row.table]
        if row.quantities and row.setting != row_setting(table, plans[row.name], results.header.vectors):
            outdated.add((row.table, row.name))
    kept = replace(
        results,
        rows=tuple(row for row in results.rows if (row.table, row.name) not in outdated),
        figures=tuple(one for one in results.figures if (one.table, one.figure.row) not in outdated),
    )
    return kept, outdated
