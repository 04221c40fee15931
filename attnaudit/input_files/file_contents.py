"""Reading of a whole file into memory, with a limit on its size, and its SHA-256 hash."""

from __future__ import annotations

import hashlib
from pathlib import Path

from attnaudit.errors import DataError, require_regular_file
from attnaudit.instances import Instance

#: The largest file that is read, in bytes. A file is in memory as a whole while its batch runs.
LARGEST_FILE = 2**31


def place(instance: Instance) -> str:
    """Return the row of an instance, for messages."""
    return f"{instance.where or instance.id}: column 'file'"


def read_file(path: Path, where: str) -> tuple[bytes, str]:
    """Read a file.

    Args:
        path: The file.
        where: The row and the column that name the file, for messages.

    Returns:
        The contents, and their SHA-256 hash in hexadecimal.

    Raises:
        DataError: The file cannot be read, is not a regular file, is empty, or is larger than `LARGEST_FILE`.
    """
    try:
        require_regular_file(path, "an array, a picture or a recording", DataError)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise DataError(
                f"{where}: {path} has {size:,} bytes, expected at most {LARGEST_FILE:,}, because a whole file is read "
                "into memory. Store fewer units, or numbers with fewer bytes, such as float16."
            )
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{where}: {path} cannot be read: {error.strerror or error}. Check its permissions.") from error
    if not content:
        raise DataError(f"{where}: {path} is empty. Write the file again, or remove the row.")
    return content, hashlib.sha256(content).hexdigest()


def contents_of(instance: Instance) -> bytes:
    """Read the file of an instance, and require that its contents have not changed since the data were loaded.

    Raises:
        DataError: The instance names no file, or the file cannot be read or has changed.
    """
    if instance.file is None:
        raise DataError(
            f"{instance.where or instance.id}: the row names no file, but the model reads files. Name an array, a "
            "picture or a recording in the column 'file', or audit a model that reads texts."
        )
    content, sha256 = read_file(Path(instance.file), place(instance))
    if instance.file_sha256 and sha256 != instance.file_sha256:
        raise DataError(
            f"{place(instance)}: {instance.file} changed after the data were loaded. Run the audit again when no "
            "program writes to the file."
        )
    return content
