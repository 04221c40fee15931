"""Judge several checks on one model with as few passes as possible, and compute fingerprints of checks and code.

This module serves the commands that audit many models and keep the results. Such a command recomputes a result if a
fingerprint has changed since the result was computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from attnaudit.checks.base import Check
from attnaudit.checks.policies.policy import to_table
from attnaudit.code_identity.source_text import statements_of
from attnaudit.errors import AuditError
from attnaudit.instances import Dataset
from attnaudit.records import CheckRecord

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel
    from attnaudit.engine.batches.clean_pass import Unit
    from attnaudit.engine.measurements import Measurements

#: Folders of the package whose code decides the numbers of a check. A change in them makes every kept result outdated.
NUMERIC_FOLDERS = (
    *("adapters", "checks", "data", "disk_arrays", "engine", "input_files", "measures", "metrics", "models"),
    "statistics",
)
#: Modules of the package root that decide numbers as well.
NUMERIC_MODULES = (
    *("instances.py", "precision.py", "readings.py", "retraining.py", "seeding.py", "targets.py", "unit_samples.py"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedChecks:
    """The verdicts on one model.

    Attributes:
        records: One record per check that could be judged.
        skipped: Check id -> why the check could not be judged.
        measurements: The measurements: a single one if all checks shared it, else one per judged check.
    """

    records: list[CheckRecord]
    skipped: dict[str, str]
    measurements: list[Measurements]


def judge_model(
    loaded: LoadedModel,
    dataset: Dataset,
    checks: Sequence[Check],
    *,
    name: str,
    seed: int,
    device: str = "cpu",
    unit: Unit = "tokens",
) -> JudgedChecks:
    """Measure a model once and judge every check on that measurement.

    If the shared measurement fails, each check is measured on its own. Only the checks whose own measurement fails are
    then skipped.

    Args:
        loaded: The model, as `load_model` returns it.
        dataset: The instances, with labels that the model knows.
        checks: The checks to judge.
        name: The name of the model in the records.
        seed: The seed of permutations and intervals.
        device: Where torch computes: "cpu", "cuda" or "cuda:N".
        unit: The units of the audit.
    """
    from attnaudit.data import label_indices
    from attnaudit.engine.measuring import measure

    capabilities = loaded.adapter.capabilities
    labels = label_indices(dataset, capabilities.classes, capabilities.target, capabilities.labels)

    def judge(some_checks: Sequence[Check]) -> tuple[list[CheckRecord], Measurements]:
        needs = sorted({need for check in some_checks for need in check.needs_under_reading()})
        measurements, _ = measure(
            loaded.adapter, dataset, needs, model=name, seed=seed, labels=labels, device=device, unit=unit
        )
        return [check.judge(measurements) for check in some_checks], measurements

    try:
        records, measurements = judge(checks)
    except AuditError:
        return _judge_one_by_one(checks, judge)
    return JudgedChecks(records=records, skipped={}, measurements=[measurements])


def compact_record(record: CheckRecord) -> CheckRecord:
    """Return the record without its histogram, charts, worst instances and token columns."""
    return msgspec.structs.replace(record, distribution=None, charts=[], worst=[], token_columns=[])


def check_fingerprint(check: Check) -> str:
    """Return the check and all its arguments as JSON. Two checks are the same if their fingerprints are equal."""
    return msgspec.json.encode(to_table(check), order="sorted").decode()


def _numeric_files() -> list[tuple[str, Path]]:
    """Return the files whose code decides the numbers: their path in the package, and their path on this machine."""
    package = Path(__file__).parents[1]
    in_folders = [path for folder in NUMERIC_FOLDERS for path in (package / folder).rglob("*.py")]
    files = sorted([*in_folders, *(package / name for name in NUMERIC_MODULES)])
    return [(path.relative_to(package).as_posix(), path) for path in files]


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """Return the SHA-256 of the code that decides the numbers: `NUMERIC_FOLDERS` and `NUMERIC_MODULES`.

    Comments, docstrings and white space do not affect it. All files are parsed, which takes most of a second.
    """
    digest = hashlib.sha256()
    for name, path in _numeric_files():
        digest.update(name.encode())
        digest.update(statements_of(path.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def source_fingerprint() -> str:
    """Return the SHA-256 of the files whose code decides the numbers.

    It takes a few milliseconds. Unlike `code_fingerprint`, comments and white space affect it, too. Use it for results
    that are kept only until an interrupted run resumes.
    """
    digest = hashlib.sha256()
    for name, path in _numeric_files():
        content = path.read_bytes()
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def _judge_one_by_one(
    checks: Sequence[Check], judge: Callable[[Sequence[Check]], tuple[list[CheckRecord], Measurements]]
) -> JudgedChecks:
    records: list[CheckRecord] = []
    skipped: dict[str, str] = {}
    all_measurements: list[Measurements] = []
    for check in checks:
        try:
            judged, measurements = judge([check])
        except AuditError as error:
            skipped[check.id] = str(error)
        else:
            records += judged
            all_measurements.append(measurements)
    return JudgedChecks(records=records, skipped=skipped, measurements=all_measurements)
