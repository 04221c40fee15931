"""A run whose processes audited different models or rows under the same name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from attnaudit.checks import Conicity
from attnaudit.checks.policies.effective_policy import effective_policy
from attnaudit.run.conflicting_parts import conflicts
from attnaudit.run.measurements_file import write_measurements
from attnaudit.run.plan import Plan
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


@pytest.mark.parametrize(
    ("change", "agree"), [(1e-6, True), (1e-2, False), ("one row", True), ("undefined", False), ("fewer", False)]
)
def test_other_numbers_of_the_same_model_are_found(folder: RunFolder, change: Any, agree: bool) -> None:
    """A tensor that is neither a parameter nor a buffer is not part of the hash of a model."""
    measured = made_up_measurements(*PAIR)
    changed, vectors = measured.scalars["uniform.tvd"].copy(), measured.vectors
    if change == "one row":  # rounding may break a tie
        changed[5] += 1e-3
    elif change == "undefined":
        changed[5:10] = np.nan
    elif change == "fewer":
        vectors = {"attention": [row[:1] for row in vectors["attention"]]}
    else:
        changed += change
    others = replace(measured, scalars={**measured.scalars, "uniform.tvd": changed}, vectors=vectors)
    write_measurements(others, folder.numbers_of(folder.read_parts()[1]))
    found = conflicts(folder)
    if agree:
        assert found == []
    else:
        assert "The model release gave different numbers on reviews in gw0 and gw1" in found[0]


def test_another_policy_is_found(folder: RunFolder) -> None:
    """Between the start of two workers, the policy file or the code of a check may change."""
    for worker, threshold in (("gw0", 0.9), ("gw1", 0.8)):
        policy = effective_policy([Conicity(at_most=threshold)])
        folder.write_plan(Plan(effective_policy=policy), worker=worker)
    folder.write_plan(Plan(), worker="gw2")  # a worker with usage errors
    (found,) = conflicts(folder)
    assert "The policy was not the same in all processes" in found
    assert "in gw0, sha256" in found


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
