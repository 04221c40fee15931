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
        places = [place for place, seed in enumerate(made.seeds) if seed in seeds]
        others = [seed for seed in made.seeds if seed not in seeds]
        if not places or min(made.seeds) < seeds.start:
            not_run.add(key)
            day = made.created[:10]
            why = f"the planned seeds have not been run yet; the run of {day} with other seeds does not count"
            row = msgspec.structs.replace(row, provenance=None, quantities={}, scores={}, missing=why)
        else:
            if others:
                named = ", ".join(map(str, others))
                dropped[key] = f"dropped: {plural(len(others), 'seed')} ({named}), added after the plan"
                row = _with_seeds(row, made, places)
            if len(places) < len(seeds):
                missing[key] = f"{len(places)} of {len(seeds)} planned seeds"
        rows.append(row)
    figures = tuple(one for one in results.figures if (one.table, one.figure.row) not in not_run)
    return replace(results, rows=tuple(rows), figures=figures), dropped, missing


def _with_seeds(row: MeasuredRow, made: Provenance, places: Sequence[int]) -> MeasuredRow:
    """Return a row with some of its seeds.

    Args:
        row: The row.
        made: How the row was measured.
        places: The places of the seeds in its values.
    """

    def kept(values: Sequence[float | None]) -> list[float | None]:
        return [values[place] for place in places] if values else []

    return msgspec.structs.replace(
        row,
        provenance=msgspec.structs.replace(made, seeds=[made.seeds[place] for place in places]),
        quantities={
            name: MeasuredQuantity(n=measured.n, values=kept(measured.values))
            for name, measured in row.quantities.items()
        },
        scores={
            role: RoleScores(accuracy=tuple(kept(scores.accuracy)), f1=tuple(kept(scores.f1)))
            for role, scores in row.scores.items()
        },
    )
