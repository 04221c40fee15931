"""Put the instance explorer into the report: its script, and its data in the page or in files next to it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from attnaudit.processes import replace_file
from attnaudit.records import RunRecord, UnitNames
from attnaudit.records.unit_names import TOKENS_OF_TEXTS, common_names
from attnaudit.report.explorer.explorer_data import compressed, encode, to_json
from attnaudit.report.explorer.explorer_rows import CaseRows, read_rows
from attnaudit.report.run_files import Case, MeasurementsFile

if TYPE_CHECKING:
    from markupsafe import Markup

#: Data of at most this many characters are in the page itself.
MOST_IN_PAGE = 2_000_000
#: The folder for larger data, next to report.html.
FOLDER = "explorer"
#: The scripts, in the order in which they are joined.
SCRIPTS = (
    "explorer_data.js",
    "explorer_filter.js",
    "explorer_list.js",
    "explorer_text.js",
    "explorer_instance.js",
    "explorer.js",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerView:
    """The instance explorer of a report.

    Attributes:
        instances: The largest number of instances of a model that are in the explorer.
        total: The largest number of instances that a model was measured on.
        manifest: The description of the data, compressed and in base64.
        parts: Name of a part -> its content in base64, for the parts in the page.
        script: The script.
        names: The names of the units and rows.
        script_sources: The value of the directive script-src of the Content Security Policy.
    """

    instances: int
    total: int
    manifest: str
    parts: Mapping[str, str]
    script: Markup
    script_sources: str
    names: UnitNames = TOKENS_OF_TEXTS


def write_explorer(folder: Path, run: RunRecord, measurements: MeasurementsFile) -> ExplorerView | None:
    """Return the instance explorer of a run. Data that are too large for the page are written next to it.

    Args:
        folder: The folder of the run.
        run: The record of the run.
        measurements: The measurements of the run.

    Returns:
        The explorer; None if there are no measurements.

    Raises:
        ReportError: measurements.parquet is corrupt.
        OSError: A file cannot be written.
    """
    rows = read_rows(measurements.path, listed=listed_instances(run)) if measurements.measured else {}
    return explorer_of(run, rows, folder / FOLDER)


def listed_instances(run: RunRecord) -> set[str]:
    """Return the ids of the instances that the checks of a run list. The report links them to the explorer."""
    return {one.instance for record in run.checks for one in (*record.worst, *record.typical)}


def explorer_of(run: RunRecord, rows: Mapping[Case, CaseRows], parts_folder: Path) -> ExplorerView | None:
    """Return the explorer of some measurements. Data that are too large for the page are written to a folder.

    Args:
        run: The record with the models and checks.
        rows: Model, data set and seed -> the measurements. The first case is shown at first.
        parts_folder: A folder next to the page. Files in it that an earlier page left behind are removed.

    Returns:
        The explorer; None if there are no measurements.

    Raises:
        OSError: A file cannot be written.
    """
    from markupsafe import Markup

    if not rows:
        _remove_parts(parts_folder, keep=())
        return None
    data = encode(run, rows)
    in_page = data.size <= MOST_IN_PAGE
    key = hashlib.sha256("\n".join(f"{name} {part}" for name, part in data.parts.items()).encode()).hexdigest()[:16]
    if not in_page:
        for name, part in data.parts.items():
            replace_file(parts_folder / f"{name}.js", f'attnauditPart("{key}","{name}","{part}");\n'.encode())
    _remove_parts(parts_folder, keep=() if in_page else tuple(data.parts))
    script = "".join(files("attnaudit.report").joinpath("templates", name).read_text("utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return ExplorerView(
        instances=max(len(case.ids) for case in rows.values()),
        total=max(case.total for case in rows.values()),
        manifest=compressed(to_json({**data.manifest, "key": key, "folder": "" if in_page else parts_folder.name})),
        parts=data.parts if in_page else {},
        script=Markup(script),
        names=common_names(run.measured),
        # 'strict-dynamic' allows the script with this hash, and no other, to load the files next to the page.
        script_sources=f"'sha256-{digest}'" + ("" if in_page else " 'strict-dynamic'"),
    )


def _remove_parts(parts_folder: Path, *, keep: tuple[str, ...]) -> None:
    """Remove the files of an earlier page that the new page does not use."""
    kept = {f"{name}.js" for name in keep}
    for path in parts_folder.glob("case*-*.js"):
        if path.name not in kept:
            path.unlink()
    if not keep and parts_folder.is_dir() and not any(parts_folder.iterdir()):
        parts_folder.rmdir()
