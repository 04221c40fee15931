"""Errors that a user can mend. Every message says what was found, where, what was expected and the mend."""

from __future__ import annotations

import difflib
import sysconfig
from collections.abc import Iterable
from pathlib import Path

#: Folders of code that users do not write.
LIBRARIES = {"site-packages", "dist-packages", Path(sysconfig.get_path("stdlib")).name}


class AuditError(Exception):
    """A problem in what the user gave: shown as its message alone, never as a traceback."""


class DataError(AuditError):
    """A data set cannot be read or used; the message names the file and the row."""


class ModelError(AuditError):
    """A model or checkpoint cannot be found, loaded or audited."""


class AdapterError(ModelError):
    """An adapter broke its contract; the message names the method and the likely mend."""


class CheckError(AuditError):
    """A check or policy is declared with arguments that cannot be meant."""


class ReportError(AuditError):
    """The files of a run cannot be written or read."""


def raised_at(error: BaseException) -> str:
    """ " at conftest.py:121 in tokenize": where code of the user's raised it; "" where none of it is on the way."""
    import traceback

    ours = Path(__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and ours not in path.parents and not LIBRARIES & set(path.parts):
            return f" at {path.name}:{frame.lineno} in {frame.name}"
    return ""


def require_reachable(option: str, path: Path) -> None:
    """Raises AuditError for a path that cannot be looked for: its name is too long, or a folder may not be entered.

    option: what it was given as, such as "--data"."""
    try:
        path.exists()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        shown = str(path) if len(str(path)) <= 80 else f"{str(path)[:77]}..."
        raise AuditError(f"{option} {shown}: cannot be looked for ({why}). Give a path that you may read.") from error


def require_seed(option: str, seed: int) -> None:
    """Raises AuditError unless the seed fits what random generators and files take."""
    if not 0 <= seed < 2**63:
        raise AuditError(f"{option} {seed}: expected a whole number from 0 to 2^63 - 1.")


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the known words nearest to `name`: "Did you mean 'x'?" or the whole list."""
    choices = sorted(set(known))
    near = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    if near:
        return "Did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
    return "Known: " + ", ".join(f"'{c}'" for c in choices) + "." if choices else "None is registered."
