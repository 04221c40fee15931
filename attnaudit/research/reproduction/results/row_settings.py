"""Compute a hash of the settings of a row, and find the rows that were measured with other settings.

The settings of a row are the plans of its models, the rules by which its corpus is prepared, and a number that is
increased when the definition of one of its quantities changes. Measurements with other settings are not shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from attnaudit.models.word_vectors import Vectors
from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.paper_report import WordVectors
from attnaudit.research.reproduction.paper_tables import RowPlan
from attnaudit.research.reproduction.results.results_file import Results
from attnaudit.research.reproduction.results.row_exclusions import RowKey

LENGTH = 16


def row_setting(row: RowPlan, vectors: WordVectors | None) -> str:
    """Return a hash of the settings of a row, as 16 hexadecimal digits.

    Args:
        row: The row.
        vectors: The word vectors that the embeddings start from. None for random embeddings.
    """
    start = None if vectors is None else Vectors(path="", width=vectors.width, sha256=vectors.sha256)
    plans = {role: plan.starting_from(start) for role, plan in row.models.items()}
    parts = (row.build, corpus(row.corpus).rules, {role: plan.digest for role, plan in plans.items()})
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:LENGTH]


def without_outdated_rows(results: Results, plans: Mapping[RowKey, RowPlan]) -> tuple[Results, set[RowKey]]:
    """Leave out the rows that were measured with other settings, and their figures.

    Args:
        results: The measured results.
        plans: (table, row) -> declaration of the row.

    Returns:
        The other results, and (table, row) of the rows that were left out.
    """
    outdated: set[RowKey] = set()
    for row in results.rows:
        key = (row.table, row.name)
        if row.quantities and row.setting != row_setting(plans[key], results.header.vectors):
            outdated.add(key)
    kept = replace(
        results,
        rows=tuple(row for row in results.rows if (row.table, row.name) not in outdated),
        figures=tuple(one for one in results.figures if (one.table, one.figure.row) not in outdated),
    )
    return kept, outdated
