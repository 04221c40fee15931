"""Give figures of the same kind the same axes in several reports on one paper, so that they can be compared by eye."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from attnaudit.research.reproduction.figures.figure_records import Boxes, Curves, Figure, Strips
from attnaudit.research.reproduction.paper_report import Reproduction


def share_axes(reports: Mapping[str, Reproduction]) -> dict[str, Reproduction]:
    """Return the same reports, with figures whose axes cover the values of all reports.

    All strip plots of a table whose axes have the same label get the same axis. All box plots of a table get the same
    axis, and all curves of a table with the same name get the same axes. The records of violins and bars do not store
    an axis: draw them with `highest_values`.

    Args:
        reports: Name -> report. All are about the same paper.
    """
    figures = [
        (table.name, figure) for report in reports.values() for table in report.tables for figure in table.figures
    ]
    strips: dict[tuple[str, str], list[Strips]] = {}
    boxes: dict[str, list[Boxes]] = {}
    curves: dict[tuple[str, str], list[Curves]] = {}
    for table_name, figure in figures:
        if figure.strips is not None:
            strips.setdefault((table_name, figure.strips.x_label), []).append(figure.strips)
        if figure.boxes is not None:
            boxes.setdefault(table_name, []).append(figure.boxes)
        if figure.curves is not None:
            curves.setdefault((table_name, figure.name), []).append(figure.curves)

    def shared(table_name: str, figure: Figure) -> Figure:
        if figure.strips is not None:
            same = strips[table_name, figure.strips.x_label]
            return msgspec.structs.replace(figure, strips=_covering_strips(figure.strips, same))
        if figure.boxes is not None:
            return msgspec.structs.replace(figure, boxes=_covering_boxes(figure.boxes, boxes[table_name]))
        if figure.curves is not None:
            alike = curves[table_name, figure.name]
            return msgspec.structs.replace(figure, curves=_covering_curves(figure.curves, alike))
        return figure

    return {
        name: msgspec.structs.replace(
            report,
            tables=[
                msgspec.structs.replace(table, figures=[shared(table.name, figure) for figure in table.figures])
                for table in report.tables
            ],
        )
        for name, report in reports.items()
    }


def highest_values(reports: Mapping[str, Reproduction]) -> dict[tuple[str, str], float]:
    """Return the values that the axes of violins and bars must reach to be the same in all reports.

    Args:
        reports: Name -> report. All are about the same paper.

    Returns:
        (name of a table, name of a figure) -> largest value on the axis that depends on the data.
    """
    found: dict[tuple[str, str], float] = {}
    for report in reports.values():
        for table in report.tables:
            for figure in table.figures:
                key = (table.name, figure.name)
                found[key] = max(found.get(key, 0.0), *_values(figure), 0.0)
    return found


def _values(figure: Figure) -> list[float]:
    if figure.violins is not None:
        return [position for violin in figure.violins.violins for position in violin.at]
    if figure.chart is not None:
        return [y for series in figure.chart.series for y in series.y if y is not None]
    return []


def _covering_strips(strips: Strips, alike: Sequence[Strips]) -> Strips:
    return msgspec.structs.replace(strips, low=min(one.low for one in alike), high=max(one.high for one in alike))


def _covering_boxes(boxes: Boxes, alike: Sequence[Boxes]) -> Boxes:
    values = [value for one in alike for box in one.boxes for value in box.values]
    return msgspec.structs.replace(
        boxes,
        low=min(*values, *(one.low for one in alike)),
        high=max(*values, *(one.high for one in alike)),
    )


def _covering_curves(curves: Curves, alike: Sequence[Curves]) -> Curves:
    return msgspec.structs.replace(
        curves,
        x_low=min(one.x_low for one in alike),
        x_high=max(one.x_high for one in alike),
        y_low=min(one.y_low for one in alike),
        y_high=max(one.y_high for one in alike),
    )
