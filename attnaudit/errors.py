"""Errors that a user can fix.

Every message says where the problem is, what is wrong, what was expected and how to fix it.
"""

from __future__ import annotations

import difflib
import stat
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from attnaudit.formatting import terminal_safe

#: Folders of installed code, which users did not write.
LIBRARIES = {"site-packages", "dist-packages", Path(sysconfig.get_path("stdlib")).name}


class AuditError(Exception):
    """A problem that the user can fix. Users see its message without a traceback.

    Args:
        message: What is wrong, what was expected and how to fix it. `shown_error` shows it as one line.
        lines: Lines to show below the message, such as an example or the parts of a list.
    """

    def __init__(self, message: object = "", *, lines: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.lines = tuple(lines)

    def __str__(self) -> str:
        return "\n".join((super().__str__(), *self.lines))


class DataError(AuditError):
    """A data set cannot be read or used. The message names the file and the row."""


class ModelError(AuditError):
    """A model or checkpoint cannot be found, loaded or audited."""


class AdapterError(ModelError):
    """An adapter breaks its contract. The message names the method and the likely fix."""


class ChangedModelError(AdapterError):
    """A model did not stay the same while it was measured, so that no number measured with it describes it."""


class CheckError(AuditError):
    """A check or policy is declared with invalid arguments."""


class ReportError(AuditError):
    """The files of a run cannot be written or read."""


def shown_error(error: BaseException) -> str:
    """Return the message of an error for a terminal.

    The text of the user and of libraries that a message quotes cannot add a line, move the cursor or act as a command
    of a CI system.

    Returns:
        One line, followed by one line for each of the `lines` of an AuditError.
    """
    lines = error.lines if isinstance(error, AuditError) else ()
    message = str(error)[: -sum(len(line) + 1 for line in lines) or None]
    return "\n".join(terminal_safe(_joined(line)) for line in (message, *lines))


def _joined(text: str) -> str:
    """Join the lines of a text with spaces. The first one keeps its indentation."""
    first, *others = text.strip("\r\n").splitlines() or [""]
    return " ".join([first.rstrip(), *filter(None, map(str.strip, others))])


def raised_at(error: BaseException) -> str:
    """Return the place in the user's code at which an error was raised.

    Args:
        error: An error that was raised.

    Returns:
        The innermost line of the traceback that belongs neither to this package nor to installed packages, such as
        " at conftest.py:121 in tokenize"; "" if there is no such line.
    """
    import traceback

    package = Path(__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and package not in path.parents and not LIBRARIES & set(path.parts):
            return f" at {path.name}:{frame.lineno} in {frame.name}"
    return ""


def require_reachable(option: str, path: Path) -> None:
    """Raise AuditError for a path that the system refuses to look up, such as one with a name that is too long.

    Args:
        option: The option that the path was given to, such as "--data".
        path: The path. It need not exist.
    """
    try:
        path.exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        shortened = str(path) if len(str(path)) <= 80 else f"{str(path)[:77]}..."
        raise AuditError(
            f"{option} {shortened}: cannot be accessed ({reason}). Give a path that you may read."
        ) from error


def require_regular_file(path: Path, what: str, error: type[AuditError]) -> None:
    """Require that a path is not a folder, a pipe or a device, since reading a pipe or a device may never end.

    A path that does not exist or cannot be looked up is left to the function that reads it.

    Args:
        path: The path.
        what: What the file holds, such as "the policy".
        error: The class of the error.

    Raises:
        AuditError: The path is none of a regular file. The message names its kind.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise error(f"{path}: this is a folder, expected a file with {what}. Give the path of the file.")
    kinds = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
    kind = kinds.get(stat.S_IFMT(mode), "special file")
    raise error(
        f"{path}: this is a {kind}, expected a regular file with {what}. Write the content to a file first, and give "
        "the path of that file."
    )


def require_regular_files(folder: Path, what: str, error: type[AuditError]) -> None:
    """Require that a folder and its subfolders contain only regular files and folders (see `require_regular_file`).

    Only the folder itself and its immediate subfolders are looked at.

    Args:
        folder: The folder.
        what: What the files hold, such as "the model".
        error: The class of the error.

    Raises:
        AuditError: An entry is a pipe, a device or a socket. The message names it.
    """
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if not path.is_dir():
            require_regular_file(path, what, error)


def require_seed(option: str, seed: int) -> None:
    """Raise AuditError for a seed that is negative or does not fit into 63 bits, the most that files can hold."""
    if not 0 <= seed < 2**63:
        raise AuditError(f"{option} {seed}: expected a whole number from 0 to 2^63 - 1.")


def ambiguous(option: str, name: str, kind: str, path: Path) -> str:
    """Return the error message for a name that is both registered and a path, so that it is unclear which is meant.

    Args:
        option: The option that the name was given to, such as "--model".
        name: The name.
        kind: What is registered, such as "model".
        path: The file or folder of the same name.
    """
    found = "folder" if path.is_dir() else "file"
    return (
        f"{option} {name}: is both a registered {kind} and a {found}. Write {option} ./{name} for the {found}. For the "
        f"registered {kind}, rename the {found}."
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Write a sentence that helps with an unknown name.

    Args:
        name: The unknown name.
        known: All known names.

    Returns:
        "Did you mean 'x'?" with up to three similar names; all known names if none is similar; "None is registered." if
        there are no names.
    """
    choices = sorted(set(known))
    near = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
    if near:
        return "Did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
    return "Known: " + ", ".join(f"'{c}'" for c in choices) + "." if choices else "None is registered."
