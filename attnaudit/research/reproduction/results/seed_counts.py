"""Leave out the seeds of a row that were not planned, and note rows that lack planned seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from attnaudit.formatting import plural
from attnaudit.research.reproduction.paper_report import Provenance
from attnaudit.research.reproduction.paper_tables import Paper
from attnaudit.research.reproduction.results.results_file import MeasuredQuantity, MeasuredRow, Results, RoleScores
from attnaudit.research.reproduction.results.row_exclusions import RowKey
from attnaudit.research.reproduction.results.seed_plan import SeedPlan


class RowSeeds(NamedTuple):
    """The planned seeds of a row.

    Attributes:
        counted: The seeds that count.
        pending: New seeds that are planned and have not been run. The seeds in `counted` count until then, so that no
            verdict changes because of a plan. None if there are none.
    """

    counted: range
    pending: range | None = None


def planned_seeds(
    results: Results, paper: Paper, corpora: Sequence[str], plan: SeedPlan | None, report: str
) -> dict[RowKey, RowSeeds]:
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
    found = {}
    for row in results.rows:
        key = (row.table, row.name)
        matching = list(plan.matching(report, *key))
        if key not in once and matching:
            found[key] = _row_seeds(matching, row.provenance)
    return found


def _row_seeds(matching: Sequence[range], made: Provenance | None) -> RowSeeds:
    """Return which of the matching entries counts: the first one that does not begin after the seeds of the run."""
    planned = matching[0]
    counted = planned if made is None else next((one for one in matching if one.start <= min(made.seeds)), planned)
    return RowSeeds(counted, None if counted is planned else planned)


def with_planned_seeds(
    results: Results, planned: Mapping[RowKey, RowSeeds]
) -> tuple[Results, dict[RowKey, str], dict[RowKey, str]]:
    """Leave out the seeds of each row that were not planned.

    If a row was run only with seeds below its first planned one, it counts as not run, and its figures are left out.

    Args:
        results: The measured results.
        planned: (table, row) -> planned seeds. Other rows are not changed.

    Returns:
        The results, (table, row) -> note on the seeds of the row, and (table, row) -> note on missing seeds.
    """
    rows, notes, missing, not_run = [], {}, {}, set()
    for row in results.rows:
        key, made = (row.table, row.name), row.provenance
        if key not in planned or made is None:
            rows.append(row)
            continue
        seeds, pending = planned[key]
        if pending is not None:
            notes[key] = (
                f"new seeds are planned ({pending[0]} to {pending[-1]}); seeds {seeds[0]} to {seeds[-1]} count until "
                "they have been run"
            )
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
                added = f"dropped: {plural(len(later), 'seed')} ({named}), added after the plan"
                notes[key] = "; ".join(filter(None, (notes.get(key), added)))
                row = _first_seeds(row, made, found)
            if found < len(seeds):
                missing[key] = f"{found} of {len(seeds)} planned seeds"
        rows.append(row)
    figures = tuple(one for one in results.figures if (one.table, one.figure.row) not in not_run)
    return replace(results, rows=tuple(rows), figures=figures), notes, missing


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
