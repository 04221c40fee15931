"""Runs whose units are parts of a picture or of a recording, for the tests of the report."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from attnaudit.checks import Agreement
from attnaudit.checks.unit_texts import with_unit_names
from attnaudit.records import RankedInstance, UnitNames
from attnaudit.records.unit_names import TOKENS_OF_TEXTS, recorded
from attnaudit.run.measurements_file import PLACES
from tests.units.report.example_checks import seven_checks
from tests.units.report.example_runs import run_record, token_rows, write_run

ROWS, COLUMNS = 4, 6


def write_picture(path: Path) -> str:
    """Write a picture of 90 × 60 pixels, and return the SHA-256 hash of the file."""
    values = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    Image.fromarray(values).save(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run_with_places(folder: Path, *, pictures: bool = True, names: UnitNames = TOKENS_OF_TEXTS) -> Path:
    """Write a run with one picture of 4 × 6 patches, or with one recording of 24 spans of half a second.

    Args:
        folder: The folder of the run.
        pictures: Whether the run has a picture.
        names: The names of the units and rows, with which the checks are judged.
    """
    checks = [
        with_unit_names(
            msgspec.structs.replace(one, worst=[RankedInstance(instance="r0", value=0.1)], typical=[]),
            names,
            Agreement(severity="report"),
            (),
        )
        for one in seven_checks()
    ]
    folder.mkdir(parents=True)
    units = [f"row {r + 1}, column {c + 1}" for r in range(ROWS) for c in range(COLUMNS)]
    run = run_record(checks)
    measured = [msgspec.structs.replace(one, unit_names=recorded(names)) for one in run.measured]
    write_run(folder, msgspec.structs.replace(run, measured=measured), token_rows(checks[0], "r0", units))
    table = pq.read_table(folder / "measurements.parquet")
    boxes = [[c / COLUMNS, r / ROWS, 1 / COLUMNS, 1 / ROWS] for r in range(ROWS) for c in range(COLUMNS)]
    times = [[i / 2, (i + 1) / 2] for i in range(len(units))]
    sha256 = write_picture(folder / "picture.png") if pictures else ""
    places = {
        "file": str(folder / "picture.png") if pictures else None,
        "file_sha256": sha256 or None,
        "boxes": boxes if pictures else None,
        "times": None if pictures else times,
    }
    for name, value in places.items():
        column = pa.array([json.loads(json.dumps(value))] * len(table), type=PLACES.field(name).type)
        table = table.append_column(PLACES.field(name), column)
    pq.write_table(table, folder / "measurements.parquet")
    return folder
