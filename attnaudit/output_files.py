"""Refuse output files that would replace a file that is read, or each other, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from attnaudit.errors import AuditError, require_reachable


def require_separate(outputs: Sequence[tuple[str, Path]], inputs: Iterable[tuple[str, Path]]) -> None:
    """Require that no output file is an input file or another output file. Links and spellings do not matter.

    Args:
        outputs: The option and the path of each output file, such as ("--json", Path("found.json")).
        inputs: For each file that is read, what it is, as in "this file is …", and its path. It need not exist.

    Raises:
        AuditError: Two of the paths are the same file.
    """
    taken = list(inputs)
    for option, path in outputs:
        require_reachable(option, path)
        for what, other in taken:
            if same_file(path, other):
                raise AuditError(f"{option} {path}: this file is {what}, and would be replaced. Choose another file.")
        taken.append((f"also the output of {option}", path))


def same_file(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file, or would if it existed."""
    try:
        if one.exists() and other.exists():
            return one.samefile(other)
        return one.resolve() == other.resolve()
    except (OSError, ValueError, RuntimeError):  # such a path is no file that could be replaced
        return False
