"""The instances that the report shows for each case: the worst ones, and typical ones for gates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from attnaudit.records import CheckRecord, RankedInstance, RunRecord
from attnaudit.report.heatmaps import OUTPUT_COLUMNS, Heatmap, columns_to_show, heatmap
from attnaudit.report.pictures import PictureStore
from attnaudit.report.run_files import Case, MeasuredInstance, MeasurementsFile

#: Largest number of the worst instances that the report shows for a case.
MOST_INSTANCES = 5
#: Largest number of typical instances that the report shows for a gate.
MOST_TYPICAL = 3
#: Largest number of coloured tokens in the whole report. They take about 1 MB.
MOST_TOKEN_CELLS = 14_000

RecordKey: TypeAlias = tuple[str, str, str, int]  # model, data, check, seed


def shown_instances(
    run: RunRecord, measurements: MeasurementsFile, pictures: PictureStore
) -> tuple[dict[RecordKey, tuple[Heatmap, ...]], dict[RecordKey, tuple[Heatmap, ...]]]:
    """Return the heatmaps of the worst and of the typical instances of each case.

    MOST_TOKEN_CELLS limits the number of the worst instances. Typical instances are shown for gates only. The pictures
    that the heatmaps show are added to `pictures`.
    """
    measured = measurements.measured or {}
    pairs: list[tuple[Case, str]] = []
    columns: set[str] = set(OUTPUT_COLUMNS)
    for record in run.checks:
        case = (record.model, record.data, record.seed)
        pairs += [(case, ranked.instance) for ranked in (*record.worst[:MOST_INSTANCES], *_typical_of_gate(record))]
        columns.update(columns_to_show(record, measured.get(case, ())))
    instances = measurements.instances(pairs, columns)
    classes = {model.name: model.classes for model in run.models}
    cells_per_case = MOST_TOKEN_CELLS // max(1, sum(bool(record.worst) for record in run.checks))
    worst, typical = {}, {}
    for record in run.checks:
        draw = partial(
            _heatmaps_of_case,
            record,
            measurements=measurements,
            instances=instances,
            classes=classes.get(record.model, []),
            most_cells=cells_per_case,
            pictures=pictures,
        )
        worst[record.key] = draw(record.worst[:MOST_INSTANCES])
        typical[record.key] = draw(_typical_of_gate(record))
    return worst, typical


def _typical_of_gate(record: CheckRecord) -> list[RankedInstance]:
    return record.typical[:MOST_TYPICAL] if record.severity == "gate" else []


def _heatmaps_of_case(
    record: CheckRecord,
    ranked_instances: Sequence[RankedInstance],
    *,
    measurements: MeasurementsFile,
    instances: dict[tuple[Case, str], MeasuredInstance],
    classes: Sequence[str],
    most_cells: int,
    pictures: PictureStore,
) -> tuple[Heatmap, ...]:
    """Return the heatmaps of some instances of one case.

    The first instance is always included. Others are added until all rows together would have more than `most_cells`
    tokens.
    """
    case = (record.model, record.data, record.seed)
    heatmaps: list[Heatmap] = []
    cells = 0
    for ranked in ranked_instances:
        view = heatmap(
            record,
            ranked.instance,
            ranked.value,
            instances.get((case, ranked.instance)),
            (measurements.measured or {}).get(case, ()),
            classes=classes,
            file_absent=measurements.measured is None,
            pictures=pictures,
        )
        cells += sum(len(row.cells) for row in view.rows)
        if heatmaps and cells > most_cells:
            break
        heatmaps.append(view)
    return tuple(heatmaps)
