"""Leave out the seeds of a row that were not planned, and note rows that lack planned seeds."""

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
) -> dict[RowKey, range]:
    """Return the planned seeds of the measured rows.

    Rows whose models have different seeds (`RowPlan.once`) are left out, because the declaration of the paper fixes
    their seeds.

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
    found = {key: plan.seeds(report, *key) for key in keys}
    return {key: seeds for key, seeds in found.items() if seeds is not None}


def with_planned_seeds(
    results: Results, planned: Mapping[RowKey, range]
) -> tuple[Results, dict[RowKey, str], dict[RowKey, str]]:
    """Leave out the seeds of each row that were not planned.

    If a row was run with seeds below its first planned one, its results had been seen before the plan. It then counts
    as not run, even if it has some of the planned seeds, and its figures are left out.

    Args:
        results: The measured results.
        planned: (table, row) -> planned seeds. Other rows are not changed.

    Returns:
        The results, (table, row) -> note on dropped seeds, and (table, row) -> note on missing seeds.
    """
    rows, dropped, missing, not_run = [], {}, {}, set()
    for row in results.rows:
        key, made = (row.table, row.name), row.provenance
        seeds = planned.get(key)
        if seeds is None or made is None:
            rows.append(row)
            continue
        found = sum(seed in seeds for seed in made.seeds)
        if not found or min(made.seeds) < seeds.start:
            not_run.add(key)
            day = made.created[:10]
            why = f"the planned seeds have not been run yet; the run of {day} with other seeds does not count"
            row = msgspec.structs.replace(row, provenance=None, quantities={}, scores={}, missing=why)
        else:
            if found < len(made.seeds):  # Seeds are in ascending order, so the planned ones come first.
                later = made.seeds[found:]
                named = ", ".join(map(str, later))
                dropped[key] = f"dropped: {plural(len(later), 'seed')} ({named}), added after the plan"
                row = _first_seeds(row, made, found)
            if found < len(seeds):
                missing[key] = f"{found} of {len(seeds)} planned seeds"
        rows.append(row)
    figures = tuple(one for one in results.figures if (one.table, one.figure.row) not in not_run)
    return replace(results, rows=tuple(rows), figures=figures), dropped, missing


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
