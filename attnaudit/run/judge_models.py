"""Checks judged on one measurement, and what decides their numbers: shared by all that audit many models."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from attnaudit.checks.base import Check
from attnaudit.checks.policy import to_table
from attnaudit.errors import AuditError
from attnaudit.instances import Dataset
from attnaudit.records import CheckRecord

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel
    from attnaudit.engine.measurements import Measurements

#: Folders and files whose code decides the numbers: a change in them makes what was kept stale.
DECIDING = ("adapters", "checks", "engine", "measures", "metrics", "models", "statistics")
DECIDING_FILES = ("instances.py", "readings.py", "retraining.py", "seeding.py")


def judge_together(
    loaded: LoadedModel, dataset: Dataset, checks: Sequence[Check], *, name: str, seed: int, device: str = "cpu"
) -> tuple[list[CheckRecord], dict[str, str], list[Measurements]]:
    """Records, why a check has none, and what was measured. One measurement serves all; only where a need cannot be met
    is each check measured alone, to learn which."""
    from attnaudit.data import label_indices
    from attnaudit.engine.measuring import measure

    labels = label_indices(dataset, loaded.adapter.capabilities.classes)

    def judged(some: Sequence[Check]) -> tuple[list[CheckRecord], Measurements]:
        needs = sorted({need for one in some for need in one.needs()})
        measurements, _ = measure(loaded.adapter, dataset, needs, model=name, seed=seed, labels=labels, device=device)
        return [one.judge(measurements) for one in some], measurements

    try:
        records, measurements = judged(checks)
        return records, {}, [measurements]
    except AuditError:
        found: list[CheckRecord] = []
        skipped: dict[str, str] = {}
        taken: list[Measurements] = []
        for one in checks:
            try:
                records, measurements = judged([one])
            except AuditError as error:
                skipped[one.id] = str(error)
            else:
                found += records
                taken.append(measurements)
        return found, skipped, taken


def without_charts(record: CheckRecord) -> CheckRecord:
    """The record without its charts and instances."""
    return msgspec.structs.replace(
        record, distribution=None, charts=[], worst=[], token_columns=[], message=record.message.partition("\n")[0]
    )


def words_of(check: Check) -> str:
    """The check and its arguments as JSON: equal words, equal check."""
    return msgspec.json.encode(to_table(check), order="sorted").decode()


@lru_cache(maxsize=1)
def code_sha256() -> str:
    """Of the code that decides the numbers."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    rooms = [path for room in DECIDING for path in (package / room).rglob("*.py")]
    for path in sorted([*rooms, *(package / name for name in DECIDING_FILES)]):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
