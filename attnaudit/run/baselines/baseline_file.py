"""Baseline files: read, validate and write them.

A file is JSON with one line per instance, sorted by id, so that a change is easy to review. Only `attnaudit baseline
accept` writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from attnaudit.errors import ReportError, require_regular_file
from attnaudit.processes import replace_file
from attnaudit.records import BASELINE_FORMAT, Baseline, BaselineName

RESTORE = "Restore the file from version control, or accept a run again: attnaudit baseline accept RUN --out"


class _Format(msgspec.Struct):
    format: int


def baseline_path(folder: Path, name: BaselineName) -> Path:
    """Return the path of a baseline file."""
    return folder / f"{name}.json"


def sealed(baseline: Baseline) -> Baseline:
    """Return the baseline with its hash."""
    return msgspec.structs.replace(baseline, sha256=_hash_of(baseline))


def write_baseline(folder: Path, baseline: Baseline) -> Path:
    """Write a baseline file. If this fails, an existing file remains unchanged.

    Args:
        folder: The folder of the baseline files. It is created if there is none.
        baseline: The baseline, with its hash (see `sealed`).

    Returns:
        The path of the file.

    Raises:
        ReportError: The file cannot be written.
    """
    path = baseline_path(folder, baseline.baseline_name)
    try:
        replace_file(path, f"{_shown(msgspec.to_builtins(baseline))}\n".encode("ascii"))
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be written ({error.strerror or error}). Choose another folder with --out."
        ) from error
    return path


def read_baseline(folder: Path, name: BaselineName) -> Baseline | None:
    """Read a baseline file.

    Returns:
        The baseline; None if there is no such file.

    Raises:
        ReportError: The file cannot be read, is invalid or was edited.
    """
    path = baseline_path(folder, name)
    if not path.exists():
        return None
    require_regular_file(path, "the baseline", ReportError)
    restore = f"{RESTORE} {folder} --name {name}"
    try:
        raw = path.read_bytes()
        version = msgspec.json.decode(raw, type=_Format).format
        if version != BASELINE_FORMAT:
            raise ReportError(
                f"{path}: the format is {version}, expected {BASELINE_FORMAT}. Another version of attnaudit wrote it: "
                f"install that version, or accept a run again: attnaudit baseline accept RUN --out {folder} --name "
                f"{name}"
            )
        baseline = msgspec.json.decode(raw, type=Baseline)
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror}). Make the file readable.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: not a valid baseline: {error}. {restore}") from error
    if baseline.baseline_name != name:
        raise ReportError(f"{path}: contains the baseline '{baseline.baseline_name}', expected '{name}'. {restore}")
    if baseline.sha256 != _hash_of(baseline):
        raise ReportError(f"{path}: the file was edited or damaged after the baseline was accepted. {restore}")
    for subject in baseline.subjects:
        if any(len(numbers) != len(subject.checks) for numbers in subject.values.values()):
            raise ReportError(
                f"{path}: {subject.model} on {subject.data}: expected {len(subject.checks)} numbers for each instance. "
                f"{restore}"
            )
    return baseline


def _hash_of(baseline: Baseline) -> str:
    """Return the SHA-256 hash of a baseline without its field `sha256`. The layout of the file makes no difference."""
    encoded = msgspec.json.encode(msgspec.structs.replace(baseline, sha256=""))
    read_back = msgspec.json.decode(encoded, type=Baseline)  # 1 in a field for floats becomes 1.0
    return hashlib.sha256(msgspec.json.encode(read_back, order="sorted")).hexdigest()


def _shown(value: Any, indent: str = "") -> str:
    """Format a value as JSON. An object has a line per key; a list without objects is on one line."""
    inner = f"{indent} "
    if isinstance(value, Mapping) and value:
        lines = [f"{inner}{json.dumps(key)}: {_shown(one, inner)}" for key, one in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        return "[\n" + ",\n".join(f"{inner}{_shown(one, inner)}" for one in value) + f"\n{indent}]"
    return json.dumps(value)
