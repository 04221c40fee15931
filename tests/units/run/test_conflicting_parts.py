"""A run whose processes audited different models or rows under the same name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnaudit.run.conflicting_parts import conflicts
from attnaudit.run.measurements_file import write_measurements
from attnaudit.run.run_folder import MeasuredPart, RunFolder
from tests.consistent_runs import made_up_measurements
from tests.units.run.whole_runs import write_part

PAIR = ("release", "reviews")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of two workers that measured the same."""
    folder = RunFolder(tmp_path, "run")
    folder.create()
    for worker in ("gw0", "gw1"):
        write_part(folder, worker, PAIR)
    return folder


def change(folder: RunFolder, field: str, **values: Any) -> None:
    """Change the record of the model or of the data in the part of the second worker."""
    (path,) = (folder.path / "parts").glob("gw1-*.part.json")
    part = msgspec.json.decode(path.read_bytes(), type=MeasuredPart)
    record = msgspec.structs.replace(getattr(part, field), **values)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(part, **{field: record})))


def test_equal_parts_agree(folder: RunFolder) -> None:
    assert conflicts(folder) == []


def test_another_model_or_other_rows_under_the_same_name_are_found(folder: RunFolder) -> None:
    change(folder, "model", sha256="5" * 64)
    (found,) = conflicts(folder)
    assert "The model release was not the same in all processes" in found
    assert "sha256 555555555555 in gw1" in found
    change(folder, "data", sha256="6" * 64)
    assert "The rows of the data set reviews were not the same in all processes" in conflicts(folder)[1]


@pytest.mark.parametrize(("hashed", "agree"), [("rows", False), ("audited rows", True)])
def test_fewer_rows_of_a_stream_have_another_hash(folder: RunFolder, hashed: str, agree: bool) -> None:
    first = folder.read_parts()[0].data
    change(folder, "data", sha256="6" * 64, audited=first.audited - 1, hashed=hashed)
    assert (conflicts(folder) == []) is agree


def test_fewer_rows_of_a_stream_that_are_not_among_the_others_are_found(folder: RunFolder) -> None:
    first, second = folder.read_parts()
    change(folder, "data", sha256="6" * 64, audited=first.data.audited - 1, hashed="audited rows")
    measured = made_up_measurements(*PAIR)
    others = [replace(instance, id=f"other {instance.id}") for instance in measured.instances]
    write_measurements(replace(measured, instances=others), folder.numbers_of(second))
    assert "The rows of the data set reviews" in conflicts(folder)[0]
