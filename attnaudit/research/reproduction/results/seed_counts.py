"""Leave out the seeds of a row that were added after the planned ones, and note rows with too few seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from attnaudit.formatting import plural
from attnaudit.research.reproduction.paper_report import Provenance
from attnaudit.research.reproduction.paper_tables import Paper
from attnaudit.research.reproduction.results.results_file import MeasuredQuantity, MeasuredRow, Results, RoleScores
from attnaudit.research.reproduction.results.row_exclusions import RowKey
from attnaudit.research.reproduction.results.seed_plan import SeedPlan


def planned_seeds(
    results: Results, paper: Paper, corpora: Sequence[str], plan: SeedPlan | None, report: str
) -> dict[RowKey, int]:
    """Return the planned number of seeds of the measured rows.

    Rows whose models have different seeds (`RowPlan.once`) are left out, because the declaration of the paper fixes
    their number of seeds.

    Args:
        results: The measured results.
        paper: The declaration of the paper.
        corpora: The names of the corpora of the run.
        plan: The plan of seeds. None if there is none.
        report: The name of the report, which is the file name of the results without extension.
    """
    if plan is None:
        return {}
    once = {(table.name, row.name) for table in paper.tables for row in table.rows(corpora) if row.once}
    keys = [(row.table, row.name) for row in results.rows if (row.table, row.name) not in once]
    counts = {key: plan.count(report, key[1]) for key in keys}
    return {key: count for key, count in counts.items() if count is not None}


def with_planned_seeds(
    results: Results, seeds: Mapping[RowKey, int]
) -> tuple[Results, dict[RowKey, str], dict[RowKey, str]]:
    """Leave out the seeds that a row has in addition to its planned seeds.

    Args:
        results: The measured results.
        seeds: (table, row) -> planned number of seeds. Other rows are not changed.

    Returns:
        The results, (table, row) -> note on added seeds, and (table, row) -> note on missing seeds.
    """
    rows, added, missing = [], {}, {}
    for row in results.rows:
        key, made = (row.table, row.name), row.provenance
        count = seeds.get(key)
        if count is None or made is None:
            rows.append(row)
            continue
        if len(made.seeds) < count:
            missing[key] = f"{len(made.seeds)} of {count} planned seeds"
        if len(made.seeds) > count:
            later = ", ".join(map(str, made.seeds[count:]))
            more = plural(len(made.seeds) - count, "seed")
            added[key] = f"dropped: {more} ({later}), added after the plan"
            row = _first_seeds(row, made, count)
        rows.append(row)
    return replace(results, rows=tuple(rows)), added, missing


def _first_seeds(row: MeasuredRow, made: Provenance, count: int) -> MeasuredRow:
    return msgspec.structs.replace(
        row,
        provenance=msgspec.structs.replace(made, seeds=made.seeds[:count]),
        quantities={
            name: MeasuredQuantity(n=measured.n, values=measured.values[:count])
            for name, measured in row.quantities.items()
        },
        scores={
            role: RoleScores(accuracy=scores.accuracy[:count], f1=scores.f1[:count])
            for role, scores in row.scores.items()
        },
    )
