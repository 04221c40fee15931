"""Refuse output files that would replace a file that is read, or each other, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from attnaudit.errors import AuditError, require_reachable

#: Endings of files in an input folder that an output may replace, because no model or data set needs them.
REPLACEABLE = (".xml", ".log", ".md")


def require_separate(outputs: Sequence[tuple[str, Path]], inputs: Iterable[tuple[str, Path]]) -> None:
    """Require that no output file is an input file, another output file, or a file that exists in an input folder.

    Links and spellings of paths do not matter.

    Args:
        outputs: The option and the path of each output file, such as ("--json", Path("found.json")).
        inputs: For each file that is read, what it is, as in "this file is …", and its path. It need not exist.

    Raises:
        AuditError: Two of the paths are the same file, or an output would replace a file in an input folder.
    """
    taken = list(inputs)
    for option, path in outputs:
        require_reachable(option, path)
        for what, other in taken:
            if same_file(path, other):
                raise AuditError(f"{option} {path}: this file is {what}, and would be replaced. Choose another file.")
            if _replaces_file_in(other, path):
                raise AuditError(
                    f"{option} {path}: this file is in the folder {other}, which is {what}, and would be replaced. "
                    "Choose another file."
                )
        taken.append((f"also the output of {option}", path))


def same_file(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file, or would if it existed."""
    try:
        if one.exists() and other.exists():
            return one.samefile(other)
        return one.resolve() == other.resolve()
    except (OSError, ValueError, RuntimeError):  # such a path is no file that could be replaced
        return False


def _replaces_file_in(folder: Path, path: Path) -> bool:
    """Return whether a path is an existing file in a folder or in one of its subfolders that must not be replaced."""
    try:
        inside = folder.is_dir() and path.is_file() and path.resolve().is_relative_to(folder.resolve())
        return inside and path.suffix.lower() not in REPLACEABLE
    except (OSError, ValueError, RuntimeError):  # such a path is no file that could be replaced
        return False
