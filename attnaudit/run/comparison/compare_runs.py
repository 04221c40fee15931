"""Compare two runs on the same data: paired differences with intervals, and the instances that changed most.

The numbers are computed from measurements.parquet of both runs. Instances are paired by their id and resampled by their
source. Nothing is measured again, so neither the models nor the data are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.checks.policies.policy_diff import differences
from attnaudit.errors import ReportError
from attnaudit.records import CheckRecord, Direction, RunRecord
from attnaudit.records.comparison_records import (
    ComparedCheck,
    ComparedSubject,
    Comparison,
    MovedAttention,
    MovedInstance,
    PairedValue,
    PolicyChange,
)
from attnaudit.run.comparison.attention_distance import attention_distances
from attnaudit.run.comparison.run_pairs import Names, Pair, exact, pairs_of, remarks, why_not_comparable
from attnaudit.run.verification.integrity import MEASUREMENTS, read_unedited
from attnaudit.run.verification.stored_numbers import (
    Case,
    StoredMeasurements,
    TableNotStoredError,
    read_measurements,
    recomputable,
)
from attnaudit.seeding import keyed_generator
from attnaudit.statistics.detectable_change import detectable_difference
from attnaudit.statistics.f1_drop import F1Drop
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.paired_difference import paired_difference

if TYPE_CHECKING:
    from attnaudit.checks.base import Check
    from attnaudit.engine.measurements import Measurements

Mask = np.typing.NDArray[np.bool_]
#: How many of the instances that changed most are listed for a check.
MOST_MOVED = 10
#: The confidence of the intervals of accuracy and F1. The interval of a check has the confidence of the check.
CONFIDENCE = 0.95
NOT_STORED = "measurements.parquet does not contain the numbers per instance from which the value is computed"


def compare_runs(base_folder: Path, candidate_folder: Path, names: Names | None = None) -> Comparison:
    """Compare a candidate run with a base run.

    Args:
        base_folder: The folder of the base run, with audit.json and measurements.parquet.
        candidate_folder: The folder of the candidate run.
        names: The models to compare; None for those that the runs have in common.

    Raises:
        ReportError: A run was edited, has not ended, or has no measurements; or the runs are not comparable.
    """
    base, candidate = (_read(folder) for folder in (base_folder, candidate_folder))
    return compare_records((base, base_folder), (candidate, candidate_folder), names)


def compare_records(
    base_run: tuple[RunRecord, Path], candidate_run: tuple[RunRecord, Path], names: Names | None = None
) -> Comparison:
    """Compare two runs by their records. A record need not be written to a file yet.

    Args:
        base_run: The record of the base run, and its folder with measurements.parquet.
        candidate_run: The record of the candidate run, and its folder.
        names: The models to compare; None for those that the runs have in common.

    Raises:
        ReportError: The runs are not comparable.
    """
    (base, base_folder), (candidate, candidate_folder) = base_run, candidate_run
    pairs, left_out = pairs_of(base, candidate, names or Names())
    subjects = []
    for pair in pairs:
        subject = _compared(pair, (base, candidate), (base_folder, candidate_folder))
        if subject is None:
            left_out.append(
                f"The model {pair.candidate_model.name} was not compared on {pair.candidate_data.name}, because the "
                "runs audited different samples, which have no instance in common. Give the same --audit-max-instances "
                "and --audit-seed."
            )
        else:
            subjects.append(subject)
    if not subjects:
        raise ReportError(" ".join([f"{base.run} and {candidate.run} are not comparable.", *left_out]))
    changes = None
    if base.effective_policy is not None and candidate.effective_policy is not None:
        found = differences(base.effective_policy, candidate.effective_policy)
        changes = [PolicyChange(kind=one.kind, subject=one.subject, text=one.text) for one in found]
    return Comparison(
        base=base,
        candidate=candidate,
        subjects=subjects,
        left_out=left_out,
        notes=remarks(base, candidate, pairs),
        policy_changes=changes,
    )


def _read(folder: Path) -> RunRecord:
    run = read_unedited(folder)
    if not run.models or not run.measurements_sha256:
        raise ReportError(f"{folder}: the run measured nothing, so it cannot be compared. Run the audit again.")
    return run


NO_INTERVAL = "no interval can be computed, because there are too few sources or all differences are equal"


@dataclass(frozen=True, slots=True)
class _Both:
    """The measurements of both runs on the same n instances, in the same order.

    Attributes:
        base: The measurements of the base run.
        candidate: The measurements of the candidate run.
        sources: The group of each of the n instances. Instances that share a group in either run share one here.
        distances: (n,) total variation distances between the attention weights; NaN where they cannot be compared.
        unpaired: The number of instances that only one of the runs measured.
    """

    base: StoredMeasurements
    candidate: StoredMeasurements
    sources: list[str]
    distances: Floats
    unpaired: int

    @property
    def ids(self) -> Sequence[str]:
        """The ids of the instances."""
        return self.base.ids

    def groups(self, chosen: Mask | None = None) -> Groups:
        """Group instances by source. `chosen` is an (n,) mask; None for all instances."""
        mask = np.ones(len(self.ids), dtype=np.bool_) if chosen is None else chosen
        return Groups.of(self.sources, self.ids, mask)


def _compared(pair: Pair, runs: tuple[RunRecord, RunRecord], folders: tuple[Path, Path]) -> ComparedSubject | None:
    """Compare a model and a data set; None if the runs measured no instance in common."""
    cases = pair.cases(*runs)
    records = [
        {one.check: one for one in run.checks if (one.model, one.data, one.seed) == case}
        for run, case in zip(runs, cases, strict=True)
    ]
    checks = [{one.check: check for one, check in recomputable(run)} for run in runs]
    both = _both(pair, cases, folders, records, checks)
    if both is None:
        return None
    names = [name for name in records[1] if name in records[0]]
    compared = [
        _check(records[0][name], records[1][name], runs, [known.get(name) for known in checks], both) for name in names
    ]
    order = np.array([both.candidate.classes.index(name) for name in both.base.classes], dtype=np.int64)
    earlier = order[both.base.predicted]  # the classes of the candidate, which may be in another order
    task = _task(both, earlier)
    if pair.same_model:
        task, compared = exact(task, compared)
    alike = int(np.count_nonzero(~np.isnan(both.distances)))
    return ComparedSubject(
        base_model=pair.base_model.name,
        candidate_model=pair.candidate_model.name,
        base_data=pair.base_data.name,
        candidate_data=pair.candidate_data.name,
        paired=len(both.ids),
        unpaired=both.unpaired,
        sources=len(set(both.sources)),
        task=task,
        predictions_changed=int((earlier != both.candidate.predicted).sum()),
        attention_distance=float(np.nanmean(both.distances)) if alike else None,
        attention_compared=alike,
        attention_moved=_attention_moved(both),
        checks=sorted(compared, key=lambda one: not one.is_gate),
        only_base=[name for name in records[0] if name not in records[1]],
        only_candidate=[name for name in records[1] if name not in records[0]],
    )


def _both(
    pair: Pair,
    cases: tuple[Case, Case],
    folders: tuple[Path, Path],
    records: Sequence[dict[str, CheckRecord]],
    checks: Sequence[dict[str, Check]],
) -> _Both | None:
    paths = [folder / MEASUREMENTS for folder in folders]
    models = (pair.base_model, pair.candidate_model)
    measured = [
        read_measurements(
            paths[i],
            cases[i],
            models[i].classes,
            [(records[i][name], check) for name, check in checks[i].items() if name in records[i]],
            no_decision=models[i].no_decision,
        )
        for i in range(2)
    ]
    common = set(measured[0].ids) & set(measured[1].ids)
    if not common:
        return None
    base, candidate = (one.only(np.array([i in common for i in one.ids], dtype=np.bool_)) for one in measured)
    distances = attention_distances((paths[0], cases[0]), (paths[1], cases[1]))
    return _Both(
        base,
        candidate,
        joined_sources(base.stored_sources, candidate.stored_sources),
        np.array([distances.get(i, np.nan) for i in base.ids]),
        len(measured[0]) + len(measured[1]) - 2 * len(common),
    )


def joined_sources(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Combine two groupings of the same instances. Instances that share a group in either one share one in the result.

    Args:
        first: The name of each instance's group in the first grouping.
        second: The name of each instance's group in the second grouping.

    Returns:
        The name of each instance's group. If several groups of `first` are joined, the name that comes first in the
        alphabet is kept.
    """
    parent: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for before, after in zip(first, second, strict=True):
        one, other = sorted((root((0, before)), root((1, after))))
        parent[other] = one
    return [root((0, name))[1] for name in first]


def _check(
    before: CheckRecord,
    after: CheckRecord,
    runs: tuple[RunRecord, RunRecord],
    checks: Sequence[Check | None],
    both: _Both,
) -> ComparedCheck:
    """Compare the values of a check, if both runs stored the numbers that it is computed from."""
    reason = why_not_comparable(before, after, runs)
    check = checks[1]
    if not reason and (check is None or checks[0] is None):
        reason = NOT_STORED
    if reason or check is None:
        return ComparedCheck(base=before, candidate=after, paired=None, reason=reason)
    try:
        return _paired(check, before, after, both)
    except TableNotStoredError:
        return ComparedCheck(base=before, candidate=after, paired=None, reason=NOT_STORED)


def _paired(check: Check, before: CheckRecord, after: CheckRecord, both: _Both) -> ComparedCheck:
    views = [one.under(one.readings_of(check.reading or "")[0]) for one in (both.base, both.candidate)]
    old, new = (_judged(check, view) for view in views)
    interval, reason = None, check.not_linearised
    if not reason:
        numbers = [check.linearised_values(view) for view in views]
        interval = paired_difference(
            numbers[1],
            numbers[0],
            both.groups(),
            confidence=check.confidence,
            generator=keyed_generator(after.seed, "compare", check.id),
            bounds=check.bounds,
        ).interval
        reason = "" if interval else NO_INTERVAL
    paired = _paired_value(
        after.value_name,
        (old.value, new.value),
        interval,
        n=int((old.defined & new.defined).sum()),
        changed=0 if old.values is None or new.values is None else int(_differ(old.values, new.values).sum()),
        direction=_direction(check),
    )
    return ComparedCheck(
        base=before,
        candidate=after,
        paired=paired,
        reason=reason,
        warning=interval.coverage_warning if interval else "",
        moved=_moved(old.values, new.values, both),
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a check computed from the instances of a run that it judges.

    Attributes:
        value: The value; None if it is undefined.
        defined: (n,) mask, True at the judged instances that have a value.
        values: (n,) values, NaN at all other instances; None if the check has no values per instance.
    """

    value: float | None
    defined: Mask
    values: Floats | None


def _judged(check: Check, view: Measurements) -> _Judged:
    rows = check.judged_rows(view)
    evidence = check.evidence(view if rows.all() else view.only(rows))
    defined, values = np.zeros(len(view), dtype=np.bool_), None
    defined[rows] = evidence.defined
    if evidence.values is not None:
        values = np.full(len(view), np.nan)
        values[rows] = evidence.values
    return _Judged(evidence.value, defined, values)


def _differ(before: Floats, after: Floats) -> Mask:
    """Return an (n,) mask, True at the instances whose values differ. Two undefined values do not differ."""
    differ: Mask = (before != after) & ~(np.isnan(before) & np.isnan(after))
    return differ


def _paired_value(
    name: str,
    values: tuple[float | None, float | None],
    estimate: IntervalEstimate | None,
    *,
    n: int,
    changed: int,
    direction: Direction | None,
) -> PairedValue:
    """Return the record of a paired difference. The values are those of the base run and of the candidate run."""
    base, candidate = values
    difference = None if base is None or candidate is None else candidate - base
    return PairedValue(
        name=name,
        base=base,
        candidate=candidate,
        difference=difference,
        interval=estimate.at(estimate.confidence) if estimate else None,
        detectable=None if estimate is None or difference is None else detectable_difference(estimate, difference),
        n=n,
        changed=changed,
        direction=direction,
    )


def _direction(check: Check) -> Direction | None:
    """Return in which direction the value of a check is better; None if the check accepts both directions."""
    if check.threshold is not None:
        return check.threshold[0]
    return check.directions[0] if len(check.directions) == 1 else None


def _moved(before: Floats | None, after: Floats | None, both: _Both) -> list[MovedInstance]:
    """List the instances whose values differ most.

    Instances with the same difference are sorted by the distance of their attention weights, largest first, and then by
    id.
    """
    if before is None or after is None:
        return []
    change = np.abs(after - before)
    distances = np.nan_to_num(both.distances)
    rows = sorted(np.flatnonzero(change > 0).tolist(), key=lambda i: (-change[i], -distances[i], both.ids[i]))
    return [
        MovedInstance(instance=str(both.ids[i]), base=float(before[i]), candidate=float(after[i]))
        for i in rows[:MOST_MOVED]
    ]


def _attention_moved(both: _Both) -> list[MovedAttention]:
    """List the instances whose attention weights are furthest apart. Equal distances are sorted by id."""
    distances = np.nan_to_num(both.distances)
    rows = sorted(np.flatnonzero(distances > 0).tolist(), key=lambda i: (-distances[i], both.ids[i]))
    return [MovedAttention(instance=str(both.ids[i]), distance=float(distances[i])) for i in rows[:MOST_MOVED]]


def _task(both: _Both, earlier: Integers) -> list[PairedValue]:
    """Return the accuracy and F1 of both models. `earlier` are the (n,) predictions of the base model."""
    classes = both.candidate.classes
    labels, predicted = both.candidate.labels, both.candidate.predicted
    labelled = labels >= 0
    if not labelled.any():
        return []
    count = int(labelled.sum())
    right = [np.where(labelled, one == labels, np.nan).astype(np.float64) for one in (earlier, predicted)]
    groups = both.groups(labelled)
    accuracy = paired_difference(
        right[1],
        right[0],
        groups,
        confidence=CONFIDENCE,
        generator=keyed_generator(both.candidate.seed, "compare", "accuracy"),
        bounds=(0.0, 1.0),
    )
    columns = (one.astype(np.float64)[:, None] for one in (predicted, earlier))
    # With three classes or more, F1 is the macro average. Classes that neither occur nor are predicted do not count.
    f1 = F1Drop.of(labels, *columns, classes=max(3, len(classes)))
    new, old, _ = (None if np.isnan(one) else one for one in f1.value(groups))
    return [
        _paired_value(
            "accuracy",
            (float(np.nanmean(right[0])), float(np.nanmean(right[1]))),
            accuracy.interval,
            n=count,
            changed=int((right[0] != right[1])[labelled].sum()),
            direction="at_least",
        ),
        _paired_value(
            "macro F1",
            (old, new),
            f1.interval(groups, confidence=CONFIDENCE),
            n=count,
            changed=int((earlier != predicted)[labelled].sum()),
            direction="at_least",
        ),
    ]
