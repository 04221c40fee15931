"""The instances whose values changed most between two runs, each under both models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.formatting import number
from attnaudit.records import UnitNames
from attnaudit.records.comparison_records import ComparedSubject
from attnaudit.records.unit_names import TOKENS_OF_TEXTS, names_of
from attnaudit.report.run_files import Case, MeasuredInstance, MeasurementsFile
from attnaudit.report.two_runs.paired_heatmaps import PairedMap, columns_of, paired_map

#: Largest number of instances that are shown for a check.
MOST_INSTANCES = 5
#: How many of these are open at first if the check is a gate.
OPEN_INSTANCES = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedView:
    """The instances whose values of one check differ most between the runs, or whose attention differs most.

    Attributes:
        anchor: The fragment identifier.
        title: The title of the check, or "Attention".
        about: A description of the number that is shown with each instance.
        maps: The instances.
        open: The number of instances that are open at first.
        names: The names of the units and rows.
    """

    anchor: str
    title: str
    about: str
    maps: tuple[PairedMap, ...]
    open: int
    names: UnitNames


def anchors_of(subject: ComparedSubject, position: int) -> dict[str, str]:
    """Return a unique fragment identifier for the instances of each check: id of the check -> identifier."""
    found: dict[str, str] = {}
    for i, check in enumerate(subject.checks):
        words = re.sub(r"[^a-z0-9]+", "-", check.candidate.check.lower()).strip("-")[:60]
        found[check.candidate.check] = f"moved-{position}-{i}-{words}"
    return found


def moved_views(
    subject: ComparedSubject,
    anchors: dict[str, str],
    cases: tuple[Case, Case],
    files: tuple[MeasurementsFile, MeasurementsFile],
    *,
    most_cells: int,
) -> list[MovedView]:
    """Return the instances whose values changed most, for each check and for the attention itself."""
    measured = [(file.measured or {}).get(case, set()) for file, case in zip(files, cases, strict=True)]
    columns = {one.candidate.check: columns_of(one.candidate, measured) for one in subject.checks}
    ids = {moved.instance for check in subject.checks for moved in check.moved[:MOST_INSTANCES]}
    ids |= {moved.instance for moved in subject.attention_moved[:MOST_INSTANCES]}
    wanted = {"attention", *(name for names in columns.values() for name in names)}
    found = [
        file.instances([(case, one) for one in sorted(ids)], wanted) for file, case in zip(files, cases, strict=True)
    ]

    unit_names = {names_of(one.candidate.unit_names) for one in subject.checks}
    own_names = unit_names.pop() if len(unit_names) == 1 else TOKENS_OF_TEXTS

    def maps(moved: Sequence[tuple[str, str]], names: Sequence[str]) -> tuple[PairedMap, ...]:
        shown: list[PairedMap] = []
        cells = 0
        for instance, change in moved[:MOST_INSTANCES]:
            both: list[MeasuredInstance | None] = [
                rows.get((case, instance)) for rows, case in zip(found, cases, strict=True)
            ]
            view = paired_map(instance, change, both, names, own_names)
            cells += sum(len(row.cells) for _, row in view.rows)
            if shown and cells > most_cells:
                break
            shown.append(view)
        return tuple(shown)

    views = []
    for check in subject.checks:
        changes = [(one.instance, f"{number(one.base)} → {number(one.candidate)}") for one in check.moved]
        if changes:
            record = check.candidate
            about = record.distribution.label if record.distribution else record.value_name
            views.append(
                MovedView(
                    anchor=anchors[record.check],
                    title=record.title,
                    about=about,
                    maps=maps(changes, columns[record.check]),
                    open=OPEN_INSTANCES if check.is_gate else 0,
                    names=own_names,
                )
            )
    distances = [(one.instance, number(one.distance)) for one in subject.attention_moved]
    if distances:
        views.append(
            MovedView(
                anchor=f"{next(iter(anchors.values()), 'moved')}-attention",
                title="Attention itself",
                about="total variation distance between the weights of the two models",
                maps=maps(distances, ["attention"]),
                open=0,
                names=own_names,
            )
        )
    return views
