"""Seal the record of a run with a digest, and recognise a record that was changed after the run.

The digest shows that a file was changed. It is not a signature: whoever can write to the folder can also compute the
digest again. Therefore, it is also checked that values, intervals, verdicts, gates and status do not contradict each
other. To prove who wrote audit.json, sign it, for example with the GitHub action actions/attest.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from attnaudit.checks.policies.effective_policy import hash_of
from attnaudit.errors import ReportError
from attnaudit.records import RunRecord
from attnaudit.report.run_files import read_run
from attnaudit.run.verification.consistency import contradictions
from attnaudit.run.verification.stored_numbers import differing_values

MEASUREMENTS = "measurements.parquet"
#: How many contradictions a message lists.
MOST_LISTED = 10


def digest(run: RunRecord) -> str:
    """Return the SHA-256 hash of everything in a record except its digest.

    The record is hashed as JSON with sorted keys, so that a record that is read from audit.json has the same hash.
    """
    encoded = msgspec.json.encode(msgspec.structs.replace(run, digest=""))
    read_back = msgspec.json.decode(encoded, type=RunRecord)  # 1 in a field for floats becomes 1.0
    return hashlib.sha256(msgspec.json.encode(read_back, order="sorted")).hexdigest()


def seal(run: RunRecord) -> RunRecord:
    """Return the record with its digest. `require_unedited` recognises every change that is made after this call."""
    return msgspec.structs.replace(run, digest=digest(run))


def read_unedited(folder: Path) -> RunRecord:
    """Read audit.json of a run that has ended, and require that no file was changed after the run.

    Raises:
        ReportError: The file is missing, unreadable or was changed, or the run has not ended.
    """
    run = read_run(folder)
    require_ended(run, folder)
    require_unedited(run, folder)
    return run


def require_ended(run: RunRecord, folder: Path) -> None:
    """Require that a run has ended.

    Raises:
        ReportError: Its status is "running".
    """
    if run.status == "running":
        raise ReportError(
            f"{folder / 'audit.json'}: its status is 'running': the run has not ended, or its process was killed, so "
            "there are no verdicts. Wait for the run to end, or run the audit again."
        )


def require_unedited(run: RunRecord, folder: Path) -> None:
    """Require that the record and the measurements of a run that has ended are as the run wrote them.

    Args:
        run: The content of audit.json.
        folder: The folder of the run.

    Raises:
        ReportError: Something does not match. The message lists what.
    """
    found = mismatches(run, folder)
    if not found:
        return
    lines = [f"  {what}" for what in found[:MOST_LISTED]]
    if len(found) > MOST_LISTED:
        lines.append(f"  and {len(found) - MOST_LISTED} more")
    raise ReportError(
        "\n".join(
            [
                f"{folder / 'audit.json'}: this file or {MEASUREMENTS} was edited or damaged after the run. Restore "
                "the folder that the run wrote, or run the audit again. What does not match:",
                *lines,
            ]
        )
    )


def mismatches(run: RunRecord, folder: Path) -> list[str]:
    """List what does not match in the record and the measurements of a run that has ended, one clause each.

    Raises:
        ReportError: measurements.parquet cannot be read.
    """
    found = [] if run.digest == digest(run) else ["the digest in the file does not match its content"]
    found += contradictions(run)
    if run.effective_policy is not None and run.effective_policy.sha256 != hash_of(run.effective_policy):
        found.append("the hash of the effective policy does not match its content")
    path = folder / MEASUREMENTS
    actual = file_sha256(path)
    if actual != run.measurements_sha256:
        expected = run.measurements_sha256 or "no file"
        found.append(
            f"{MEASUREMENTS}: its SHA-256 is {actual}, expected {expected}"
            if actual
            else f"{MEASUREMENTS}: the file is missing, expected the one with the SHA-256 {expected}"
        )
    elif actual:
        found += differing_values(run, path)
    return found


def file_sha256(path: Path) -> str:
    """Return the SHA-256 hash of a file; "" if there is no such file.

    Raises:
        ReportError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror}). Make the file readable.") from error
