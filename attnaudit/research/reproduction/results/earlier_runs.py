"""Keep the numbers of rows that were measured several times with the same settings and seeds.

On one machine, a seed always gives the same model. Another processor, or another version of PyTorch, rounds
differently. Several epochs often have nearly the same score on dev. Another epoch is then chosen, and its attention can
be very different. A second run is therefore a second draw, and nobody should be able to choose the better one: the
results file keeps both, and each seed counts with the mean over its runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from attnaudit.research.reproduction.paper_report import Provenance
from attnaudit.research.reproduction.results.results_file import EarlierRun, MeasuredQuantity, MeasuredRow, RoleScores

#: Two runs gave the same number if it differs by at most this much.
SAME = 1e-6
_Values = Sequence[float | None]


def with_earlier_runs(
    row: MeasuredRow, before: MeasuredRow | None, *, planned: Container[int] | None = None
) -> MeasuredRow:
    """Return a newly measured row with the earlier runs of the row that it replaces.

    The replaced row becomes an earlier run if it has the same settings. Runs that gave the same numbers as the new row
    for the same seeds are left out. If the new row could not be measured, or lacks seeds of the replaced row, the
    replaced row is returned, with a note.

    Args:
        row: The new row.
        before: The row that it replaces. None if there is none.
        planned: The planned seeds. The new row may lack other seeds of the replaced row. None if there is no plan.
    """
    if before is None or before.provenance is None or not before.quantities:
        return row
    if row.provenance is None or not row.quantities:
        return _kept(before, f"not measured again: {row.missing}")
    if not row.setting or before.setting != row.setting:
        return row
    lost = sorted(
        seed for seed in set(before.provenance.seeds) - set(row.provenance.seeds) if planned is None or seed in planned
    )
    if lost:
        word = "seed" if len(lost) == 1 else "seeds"
        return _kept(before, f"measured again, but not with {word} {_listed(lost)}: not used")
    replaced = EarlierRun(provenance=before.provenance, quantities=before.quantities, scores=before.scores)
    new = set(row.provenance.seeds)
    runs = [
        run
        for run in (*before.earlier, replaced)
        if set(run.provenance.seeds) - new or _differs(row, row.provenance, run)
    ]
    return msgspec.structs.replace(row, earlier=tuple(runs))


def _kept(row: MeasuredRow, note: str) -> MeasuredRow:
    """Return a row with a note that says why it was not replaced."""
    return row if note in row.notes else msgspec.structs.replace(row, notes=(*row.notes, note))


def mean_of_runs(row: MeasuredRow) -> MeasuredRow:
    """Return a row in which each value and each score of a seed is the mean over the runs that have it.

    Runs with another number of texts are left out.
    """
    made, earlier = row.provenance, _comparable(row)
    if made is None or not earlier:
        return row

    def averaged(values: _Values, of_runs: Iterable[tuple[Provenance, _Values]]) -> list[float | None]:
        aligned = [values, *(_aligned(made, len(values), *of_run) for of_run in of_runs)]
        return [_mean(of_seed) for of_seed in zip(*aligned, strict=True)]

    def of_scores(role: str, scores: RoleScores, name: str) -> tuple[float | None, ...]:
        of_runs = [(run.provenance, getattr(run.scores.get(role, RoleScores()), name)) for run in earlier]
        return tuple(averaged(getattr(scores, name), of_runs))

    quantities = {
        name: MeasuredQuantity(
            n=found.n,
            values=averaged(
                found.values,
                [(run.provenance, run.quantities[name].values) for run in earlier if name in run.quantities],
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
    made = row.provenance
    if made is None:
        return ""
    seeds = set(made.seeds)
    again = [run.provenance for run in _comparable(row) if seeds & set(run.provenance.seeds)]
    notes = []
    if again:
        days = [one.created[:10] for one in (*again, made)]
        times = "twice" if len(days) == 2 else f"{len(days)} times"
        notes.append(
            f"trained and audited {times} with the same settings and seeds ({', '.join(days)}), and the numbers "
            "differ; each number is the mean over the runs that have it, and figures of texts show the last run"
        )
    others = [run.provenance for run in row.earlier if not seeds & set(run.provenance.seeds)]
    notes += [
        f"the run of {one.created[:10]} had other seeds ({_listed(one.seeds)}), which do not count" for one in others
    ]
    return "; ".join(notes)


def _listed(seeds: Sequence[int]) -> str:
    """Return seeds as a list, such as "0, 1, 2"."""
    return ", ".join(map(str, seeds))


def _comparable(row: MeasuredRow) -> list[EarlierRun]:
    """Return the earlier runs with the same number of texts."""
    return [one for one in row.earlier if row.provenance and one.provenance.instances == row.provenance.instances]


def _differs(row: MeasuredRow, made: Provenance, run: EarlierRun) -> bool:
    """Return whether a run has other numbers than a row, for a quantity or score and a seed that both have.

    A number also differs from an undefined one. Runs with another number of texts always differ.
    """
    if made.instances != run.provenance.instances:
        return True
    pairs: list[tuple[_Values, _Values]] = [
        (found.values, run.quantities[name].values) for name, found in row.quantities.items() if name in run.quantities
    ]
    for role, scores in row.scores.items():
        others = run.scores.get(role, RoleScores())
        pairs += [(scores.accuracy, others.accuracy), (scores.f1, others.f1)]
    shared = set(made.seeds) & set(run.provenance.seeds)
    for ours, theirs in pairs:
        aligned = _aligned(made, len(ours), run.provenance, theirs)
        of_seeds = len(made.seeds) == len(ours) and len(run.provenance.seeds) == len(theirs)
        compared = [seed in shared for seed in made.seeds] if of_seeds else [len(ours) == len(theirs)] * len(ours)
        for one, other, is_compared in zip(ours, aligned, compared, strict=True):
            if is_compared and (one is None) != (other is None):
                return True
            if one is not None and other is not None and abs(one - other) > SAME:
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
