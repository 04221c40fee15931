"""The folder of temporary files, and errors that name it. This module does not import torch."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attnaudit.errors import AuditError


def temporary_folder() -> str:
    """Return the folder of temporary files.

    Raises:
        AuditError: The environment variable TMPDIR names a folder that cannot be used. Python would use another folder
            without notice.
    """
    named = os.environ.get("TMPDIR")
    if named and not (Path(named).is_dir() and os.access(named, os.W_OK | os.X_OK)):
        raise AuditError(
            f"TMPDIR {named}: this is not a folder that can be written to. Set the environment variable TMPDIR to the "
            "folder for temporary files, or unset it."
        )
    return tempfile.gettempdir()


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """Raise an error that names the folder of temporary files if one of them cannot be written or read.

    Raises:
        AuditError: The code in the context raised an OSError.
    """
    try:
        yield
    except OSError as error:
        try:
            folder = tempfile.gettempdir()
        except OSError:  # no folder can be written to
            folder = os.environ.get("TMPDIR", "the usual folders")
        raise AuditError(
            f"Temporary files cannot be written in {folder}: {error.strerror or error}. Free some space there, or set "
            "the environment variable TMPDIR to another folder. Then start the audit again; with --audit-resume, it "
            "keeps the shards that it has measured."
        ) from error
