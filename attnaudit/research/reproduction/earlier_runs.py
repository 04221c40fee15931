"""Keep the numbers of rows that were measured several times with the same settings and seeds.

On one machine, a seed always gives the same model. Another processor, or another version of PyTorch, rounds
differently. Several epochs often have nearly the same score on dev. Another epoch is then chosen, and its attention can
be very different. A second run is therefore a second draw, and nobody should be able to choose the better one: the
results file keeps both, and each seed counts with the mean over its runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from attnaudit.research.reproduction.paper_report import Provenance
from attnaudit.research.reproduction.results_file import EarlierRun, MeasuredQuantity, MeasuredRow, RoleScores

#: Two runs gave the same number if it differs by at most this much.
SAME = 1e-6
_Values = Sequence[float | None]


def with_earlier_runs(row: MeasuredRow, before: MeasuredRow | None) -> MeasuredRow:
    """Return a newly measured row with the earlier runs of the row that it replaces.

    The replaced row becomes an earlier run if it has the same settings and the same number of texts. Runs that gave the
    same numbers as the new row are left out.

    Args:
        row: The new row.
        before: The row that it replaces. None if there is none.
    """
    if before is None or before.provenance is None or row.provenance is None or not row.quantities:
        return row
    if not row.setting or before.setting != row.setting or before.provenance.instances != row.provenance.instances:
        return row
    replaced = EarlierRun(provenance=before.provenance, quantities=before.quantities, scores=before.scores)
    runs = [run for run in (*before.earlier, replaced) if _differs(row, row.provenance, run)]
    return msgspec.structs.replace(row, earlier=tuple(runs))


def mean_of_runs(row: MeasuredRow) -> MeasuredRow:
    """Return a row in which each value and each score of a seed is the mean over the runs that have it."""
    made = row.provenance
    if made is None or not row.earlier:
        return row

    def averaged(values: _Values, of_runs: Iterable[tuple[Provenance, _Values]]) -> list[float | None]:
        aligned = [values, *(_aligned(made, len(values), *of_run) for of_run in of_runs)]
        return [_mean(of_seed) for of_seed in zip(*aligned, strict=True)]

    def of_scores(role: str, scores: RoleScores, name: str) -> tuple[float | None, ...]:
        of_runs = [(run.provenance, getattr(run.scores.get(role, RoleScores()), name)) for run in row.earlier]
        return tuple(averaged(getattr(scores, name), of_runs))

    quantities = {
        name: MeasuredQuantity(
            n=found.n,
            values=averaged(
                found.values,
                [(run.provenance, run.quantities[name].values) for run in row.earlier if name in run.quantities],
            ),
        )
        for name, found in row.quantities.items()
    }
    scores = {
        role: RoleScores(accuracy=of_scores(role, found, "accuracy"), f1=of_scores(role, found, "f1"))
        for role, found in row.scores.items()
    }
    return msgspec.structs.replace(row, quantities=quantities, scores=scores)


def note_on_runs(row: MeasuredRow) -> str:
    """Return a note on the runs of a row. It is "" if there was only one run."""
    if not row.earlier or row.provenance is None:
        return ""
    days = [run.provenance.created[:10] for run in row.earlier] + [row.provenance.created[:10]]
    return (
        f"trained and audited {len(days)} times with the same settings and seeds ({', '.join(days)}), with different "
        "results; each value is the mean over the runs that have it"
    )


def _differs(row: MeasuredRow, made: Provenance, run: EarlierRun) -> bool:
    """Return whether a run gave another value than a row, for a quantity and a seed that both have."""
    for name, found in row.quantities.items():
        if name in run.quantities:
            others = _aligned(made, len(found.values), run.provenance, run.quantities[name].values)
            pairs = zip(found.values, others, strict=True)
            if any(ours is not None and theirs is not None and abs(ours - theirs) > SAME for ours, theirs in pairs):
                return True
    return False


def _aligned(made: Provenance, count: int, other: Provenance, values: _Values) -> _Values:
    """Return the values of another run in the order of the seeds of a run. A value is None if the run has none.

    If the models of a row have different seeds (`RowPlan.once`), the values are not those of single seeds. The order of
    the values is then the same in both runs.

    Args:
        made: How the row was measured.
        count: The number of its values.
        other: How the other run was made.
        values: The values of the other run.
    """
    places: Mapping[int, int] = {seed: place for place, seed in enumerate(other.seeds)}
    if len(other.seeds) != len(values) or len(made.seeds) != count:
        return values if len(values) == count else [None] * count
    return [values[places[seed]] if seed in places else None for seed in made.seeds]


def _mean(values: _Values) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
