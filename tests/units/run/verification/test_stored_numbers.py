"""The values of every built-in check follow from measurements.parquet, as far as it has their numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from attnaudit import checks
from attnaudit.checks.policies.effective_policy import effective_policy
from attnaudit.engine.measurements import Measurements
from attnaudit.instances import Instance
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.run.measurements_file import write_measurements
from attnaudit.run.verification.stored_numbers import (
    TableNotStoredError,
    differing_values,
    read_measurements,
    recomputable,
)
from tests.slow_cases import slow_except
from tests.units.checks import test_records, test_retraining_checks
from tests.units.checks.synthetic_measurements import measured
from tests.units.checks.test_readings import measured as measured_under_reading
from tests.units.report.example_runs import run_record

READING = "cls@layer=-1,heads=1"
UNDER_READING = (
    checks.UniformFragility(at_least=0.01, reading=READING),
    checks.PermutationFragility(at_least=0.01, reading=READING, where="layer"),
    checks.Agreement(severity="report", reading=READING),
    checks.Conicity(severity="report"),
)


def labelled(measurements: Measurements) -> Measurements:
    """Give the instances the labels of the measurements, as they have in a run."""
    labels = [None if i < 0 else measurements.classes[i] for i in measurements.labels]
    measurements.instances = [
        Instance(id=one.id, text=one.text, label=label, source=one.source)
        for one, label in zip(measurements.instances, labels, strict=True)
    ]
    return measurements


def run_with(measurements: Measurements, *judged: checks.Check) -> tuple[RunRecord, list[CheckRecord]]:
    """Return a run with the checks, and their records."""
    records = [check.judge(measurements) for check in judged]
    run = run_record(records)
    models = [msgspec.structs.replace(model, classes=list(measurements.classes)) for model in run.models]
    return msgspec.structs.replace(run, models=models, effective_policy=effective_policy(list(judged))), records


def write(folder: Path, measurements: Measurements) -> Path:
    """Write the measurements, and return the file."""
    path = folder / "measurements.parquet"
    write_measurements(labelled(measurements), path)
    return path


def stored(folder: Path, check: checks.Check, measurements: Measurements) -> tuple[RunRecord, CheckRecord]:
    """Write the measurements, and return a run with the check, and its record."""
    write(folder, measurements)
    run, (record,) = run_with(measurements, check)
    return run, record


def assert_follow(path: Path, measurements: Measurements, *judged: checks.Check) -> None:
    """Assert that the records of the checks follow from the file, and that three changed copies of each do not.

    The file is read once for all of them, because reading takes most of the time.
    """
    run, records = run_with(measurements, *judged)
    assert [one for one, _ in recomputable(run)] == records
    assert differing_values(run, path) == []
    changes = (
        (lambda record: {"value": record.value + 1e-4}, "its value is"),
        (lambda record: {"n": record.n + 1}, "instances have a value"),
        (lambda record: {"n_defined": record.n_defined - 1}, "instances have a value"),
    )
    changed = [msgspec.structs.replace(record, **change(record)) for record in records for change, _ in changes]
    found = differing_values(msgspec.structs.replace(run, checks=changed), path)
    expected = [(record.check, words) for record in records for _, words in changes]
    assert len(found) == len(expected)
    for one, (check, words) in zip(found, expected, strict=True):
        assert one.startswith(f"{check} for ")
        assert words in one


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Measurements]:
    """The measurements of every built-in check that retrains nothing, and their file."""
    measurements = measured(60, sources=20)
    return write(tmp_path_factory.mktemp("synthetic"), measurements), measurements


@pytest.fixture(scope="module")
def under_reading(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Measurements]:
    """Measurements under a reading, and their file."""
    measurements = measured_under_reading(*UNDER_READING)
    measurements.seed = 0
    return write(tmp_path_factory.mktemp("under_reading"), measurements), measurements


def test_values_follow(synthetic: tuple[Path, Measurements]) -> None:
    assert_follow(*synthetic, *test_records.EVERY)


@pytest.mark.parametrize(
    "check",
    slow_except(test_retraining_checks.EVERY, test_retraining_checks.EVERY[::3]),
    ids=range(len(test_retraining_checks.EVERY)),
)
def test_values_of_retrained_models_follow(tmp_path: Path, check: checks.Check) -> None:
    measurements = test_retraining_checks.with_copies(check)
    assert_follow(write(tmp_path, measurements), measurements, check)


def test_values_under_a_reading_follow(under_reading: tuple[Path, Measurements]) -> None:
    assert_follow(*under_reading, *UNDER_READING)


@pytest.mark.parametrize("limit", ["floor + 0.2", "0.5*(gradient_loo-floor)+floor"])
def test_relative_thresholds_follow_however_they_are_written(tmp_path: Path, limit: str) -> None:
    run, record = stored(tmp_path, checks.Agreement(at_least=limit), measured(60))
    path = tmp_path / "measurements.parquet"
    assert differing_values(run, path) == []
    assert record.requirement is not None
    assert run.effective_policy is not None
    (table,) = run.effective_policy.checks
    rewritten = {"floor + 0.2": "0.2 + 1 * floor"}.get(limit, "0.5 * floor + 0.5 * gradient_loo")
    policy = msgspec.structs.replace(
        run.effective_policy, checks=[{**table, "id": record.check, "at_least": rewritten}]
    )
    assert recomputable(msgspec.structs.replace(run, effective_policy=policy))
    requirement = msgspec.structs.replace(record.requirement, value=record.requirement.value - 0.01)
    changed = msgspec.structs.replace(run, checks=[msgspec.structs.replace(record, requirement=requirement)])
    (found,) = differing_values(changed, path)
    assert "its threshold is" in found


@pytest.mark.parametrize("unlabelled", [False, True])
def test_labels_are_read_back(tmp_path: Path, unlabelled: bool) -> None:
    measurements = measured(60, labelled=not unlabelled)
    check = checks.UniformFragility(at_least=0.01, measure="f1_drop")
    run, record = stored(tmp_path, check, measurements)
    assert (record.value is None) == unlabelled
    assert differing_values(run, tmp_path / "measurements.parquet") == []
    case = (record.model, record.data, record.seed)
    again = read_measurements(tmp_path / "measurements.parquet", case, measurements.classes, [(record, check)])
    assert again.labels.tolist() == measurements.labels.tolist()
    assert again.predicted.tolist() == measurements.predicted.tolist()
    assert again.lengths.tolist() == measurements.lengths.tolist()
    assert again.ids == measurements.ids


def test_tables_are_not_stored(tmp_path: Path) -> None:
    check = checks.InformationRanking(severity="report")
    _, record = stored(tmp_path, checks.Conicity(severity="report"), measured(60))
    case = (record.model, record.data, record.seed)
    path = tmp_path / "measurements.parquet"
    again = read_measurements(path, case, ("negative", "positive"), [(record, check)])
    with pytest.raises(TableNotStoredError):
        check.judge(again)
    assert np.isfinite(again.scalar("conicity")).all()
