"""A cache of audit results. A run that was stopped resumes from it.

The cache is a folder with one JSON file per audited model. A stored result is reused only if the model, the data, the
seed, the device, the version of attnaudit and the code that computes the numbers are the same. A result stores the
arguments of each check. A later run therefore measures only new checks and checks with other arguments.
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
        fingerprints: Check id -> the check and its arguments as JSON (`check_fingerprint`). Skipped checks are
            included.
        checks: One record per judged check, sorted by check id.
        skipped: Check id -> why the check could not be judged.
        instances: The number of measured instances.
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
    """A folder of results that all have the same type.

    Attributes:
        folder: The folder with the results, one file per key.
        result_type: The type that the files are decoded to.
    """

    folder: Path
    result_type: type[ResultT]

    def create_folder(self) -> None:
        """Create the folder if it does not exist.

        Call this method before measuring, so that an invalid folder is reported at once.

        Raises:
            ReportError: The folder cannot be created.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_writable(self.folder, error) from error

    def read(self, key: str) -> ResultT | None:
        """Return the result stored under a key, or None if its file is missing, unreadable or not a valid result."""
        try:
            return msgspec.json.decode(self._path(key).read_bytes(), type=self.result_type)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def write(self, key: str, result: ResultT) -> None:
        """Store a result under a key.

        The file is replaced atomically. If the process is killed while it writes, the earlier result remains.

        Raises:
            ReportError: The file cannot be written.
        """
        path = self._path(key)
        try:
            replace_file(path, msgspec.json.encode(result))
        except OSError as error:
            raise not_writable(path, error) from error

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def cache_key(*, model_sha256: str, data_sha256: str, seed: int, device: str = "cpu", reading: str = "") -> str:
    """Return the key of an audit in the cache: 32 hexadecimal digits.

    The key is different if any argument, the version of attnaudit or the code that computes the numbers is different.

    Args:
        model_sha256: Hash of the model.
        data_sha256: Hash of the measured instances.
        seed: The seed of the audit.
        device: The device that the audit is computed on.
        reading: The reading of the attention. "" for the model's own reading.
    """
    inputs = (model_sha256, data_sha256, str(seed), device, reading, __version__, code_fingerprint())
    return hashlib.sha256("\x1f".join(inputs).encode()).hexdigest()[:32]


def outdated_checks(cached: CachedAudit | None, checks: Sequence[Check]) -> list[Check]:
    """Return the checks that must be measured.

    These are the checks that are missing from the cached result, and those whose arguments have changed. If there is no
    cached result, all checks are returned.
    """
    fingerprints = {} if cached is None else cached.fingerprints
    return [check for check in checks if fingerprints.get(check.id) != check_fingerprint(check)]


def merge_checks(cached: CachedAudit | None, checks: Sequence[Check], judged: JudgedChecks) -> dict[str, Any]:
    """Merge newly judged checks into a cached result.

    Args:
        cached: The earlier result, or None if there is none.
        checks: The newly measured checks. They replace earlier checks with the same ids.
        judged: The records of these checks, and the reasons why some of them could not be judged.

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
