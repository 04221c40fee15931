"""A folder of audit results, one JSON file per model, from which a stopped run resumes.

A stored result is reused only if the model, the data, the seed, the device, the version of attnaudit and the code that
computes the numbers are the same. A result stores the arguments of each check, so that a later run measures only checks
that are new or have changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from attnaudit import __version__
from attnaudit.checks.base import Check
from attnaudit.processes import replace_file
from attnaudit.records import CheckRecord, Record
from attnaudit.research.study.report_files import not_writable
from attnaudit.run.judge_models import JudgedChecks, check_fingerprint, code_fingerprint, compact_record


class CachedAudit(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The check records of one model, without their charts and instances.

    Attributes:
        fingerprints: Check id -> the check and its arguments as JSON (`check_fingerprint`).
        checks: One record per judged check, sorted by check id.
        skipped: Check id -> why the check could not be judged.
        instances: How many instances were measured.
        seconds: Wall-clock time of measuring and judging, summed over the runs that added to this result.
    """

    fingerprints: dict[str, str]
    checks: list[CheckRecord]
    skipped: dict[str, str]
    instances: int
    seconds: float


ResultT = TypeVar("ResultT", bound=CachedAudit)


@dataclass(frozen=True, slots=True)
class ResultCache(Generic[ResultT]):
    """Results of one type in one folder.

    Attributes:
        folder: The folder with the results, one file per key.
        result_type: The type that the files are decoded to.
    """

    folder: Path
    result_type: type[ResultT]

    def create_folder(self) -> None:
        """Create the folder. Raises ReportError if that is impossible, before anything is measured."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_writable(self.folder, error) from error

    def read(self, key: str) -> ResultT | None:
        """Return the stored result; None if there is none, or if its file cannot be read or decoded."""
        try:
            return msgspec.json.decode(self._path(key).read_bytes(), type=self.result_type)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def write(self, key: str, result: ResultT) -> None:
        """Store a result. The file is replaced atomically: if the process is killed, the earlier result remains."""
        path = self._path(key)
        try:
            replace_file(path, msgspec.json.encode(result))
        except OSError as error:
            raise not_writable(path, error) from error

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def cache_key(*, model_sha256: str, data_sha256: str, seed: int, device: str = "cpu") -> str:
    """Return 32 hexadecimal digits that change with every input of an audit, and with the code that computes it."""
    inputs = (model_sha256, data_sha256, str(seed), device, __version__, code_fingerprint())
    return hashlib.sha256("\x1f".join(inputs).encode()).hexdigest()[:32]


def outdated_checks(cached: CachedAudit | None, checks: Sequence[Check]) -> list[Check]:
    """Return the checks that the cached result does not have, or has with other arguments."""
    fingerprints = {} if cached is None else cached.fingerprints
    return [check for check in checks if fingerprints.get(check.id) != check_fingerprint(check)]


def merge_checks(cached: CachedAudit | None, checks: Sequence[Check], judged: JudgedChecks) -> dict[str, Any]:
    """Merge newly judged checks into a cached result.

    Args:
        cached: The earlier result, or None.
        checks: The checks that were measured now; they replace earlier records of the same id.
        judged: Their records, and the reasons why some could not be judged.

    Returns:
        The fields `fingerprints`, `checks` and `skipped` of the new result.
    """
    measured = {check.id for check in checks}
    earlier_records = [] if cached is None else [record for record in cached.checks if record.check not in measured]
    earlier_skips = {} if cached is None else {id_: why for id_, why in cached.skipped.items() if id_ not in measured}
    return {
        "fingerprints": {
            **({} if cached is None else cached.fingerprints),
            **{check.id: check_fingerprint(check) for check in checks},
        },
        "checks": sorted([*earlier_records, *map(compact_record, judged.records)], key=lambda record: record.check),
        "skipped": {**earlier_skips, **judged.skipped},
    }
