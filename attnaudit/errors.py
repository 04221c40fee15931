"""Errors that a user can fix, and functions that validate paths and names.

Every message says where the problem is, what is wrong, what was expected and how to fix it.
"""

from __future__ import annotations

import difflib
import stat
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attnaudit.formatting import terminal_safe

#: Names of the folders that contain Python itself and installed packages. Users did not write the code in them.
LIBRARIES = {"site-packages", "dist-packages", Path(sysconfig.get_path("stdlib")).name}
#: How a file begins that Git LFS leaves instead of the real one.
POINTER = b"version https://git-lfs.github.com/spec/"


class AuditError(Exception):
    """An error that the user can fix. Users see its message without a traceback.

    Args:
        message: What is wrong, what was expected and how to fix it. `shown_error` joins it into one line.
        lines: Lines that are shown below the message, such as an example or the items of a list.

    Attributes:
        exit_status: The exit status of a command that the error ends: 1, or 2 if the command has not begun its work
            because an option is invalid (see `invalid_input`).
    """

    exit_status = 1

    def __init__(self, message: object = "", *, lines: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.lines = tuple(lines)

    def __str__(self) -> str:
        return "\n".join((super().__str__(), *self.lines))


@contextmanager
def invalid_input() -> Iterator[None]:
    """Give the errors inside the context the exit status 2.

    A command validates its options and the files that they name in this context, before it begins its work.
    """
    try:
        yield
    except AuditError as error:
        error.exit_status = 2
        raise


class DataError(AuditError):
    """Raised when a data set cannot be read or used. The message names the file and, if there is one, the row."""


class ModelError(AuditError):
    """Raised when a model or checkpoint cannot be found, loaded, trained or audited."""


class AdapterError(ModelError):
    """Raised when an adapter breaks its contract. The message names the method and the likely fix."""


class ChangedModelError(AdapterError):
    """Raised when a model changes while it is measured, which makes all of its measurements invalid."""


class CheckError(AuditError):
    """Raised when a check or policy is declared with invalid arguments, or when a check cannot reach a verdict."""


class UnknownCheckError(CheckError):
    """Raised when a policy names a check that is not registered."""


class ReportError(AuditError):
    """Raised when the files of a run cannot be written or read."""


def shown_error(error: BaseException) -> str:
    """Return the message of an error in a form that is safe in a terminal.

    A message may quote text from the user or from a library. In the result, such a quotation cannot add a line, move
    the cursor or act as a command of a CI system.

    Returns:
        The message as one line, followed by the `lines` of an AuditError.
    """
    lines = error.lines if isinstance(error, AuditError) else ()
    message = str(error)[: -sum(len(line) + 1 for line in lines) or None]
    return "\n".join(terminal_safe(_joined(line)) for line in (message, *lines))


def _joined(text: str) -> str:
    """Join the lines of a text with spaces. The first line keeps its indentation."""
    first, *others = text.strip("\r\n").splitlines() or [""]
    return " ".join([first.rstrip(), *filter(None, map(str.strip, others))])


def raised_at(error: BaseException) -> str:
    """Return the place in the user's code at which an error was raised.

    Args:
        error: An error that was raised.

    Returns:
        The innermost line of the traceback in the user's own files, such as " at conftest.py:121 in tokenize". Files of
        attnaudit, Python and installed packages do not count. "" if no line is in the user's files.
    """
    import traceback

    package = Path(__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and package not in path.parents and not LIBRARIES & set(path.parts):
            return f" at {path.name}:{frame.lineno} in {frame.name}"
    return ""


def similar_path(path: Path) -> str:
    """Return a question that suggests files or folders with names similar to a missing path; "" if there are none."""
    if not path.parent.is_dir():
        return ""
    others = [str(other) for other in path.parent.iterdir() if other.name != path.name]  # path can be a broken link
    return did_you_mean(str(path), others, cutoff=0.8)


def require_reachable(option: str, path: Path) -> None:
    """Require that the operating system can look up a path.

    Args:
        option: The option with which the path was given, such as "--data".
        path: The path. It need not exist.

    Raises:
        AuditError: The path cannot be looked up, for example because a name in it is too long.
    """
    try:
        path.exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        shortened = str(path) if len(str(path)) <= 80 else f"{str(path)[:77]}..."
        raise AuditError(
            f"{option} {shortened}: cannot be accessed ({reason}). Give a path that you may read."
        ) from error


MAYBE_UNSET = "If it comes from a variable, the variable may not be set."
#: The message about an option without a value.
EMPTY = f"{{option}}: the value is empty. {MAYBE_UNSET}"


def require_text(option: str, value: str, error: type[AuditError]) -> None:
    """Require that the value of an option is not empty.

    The value is empty if, for example, it comes from an environment variable that is not set.

    Args:
        option: The option, such as "--data".
        value: Its value.
        error: The class of the error to raise.
    """
    if not value.strip():
        raise error(EMPTY.format(option=option))


def require_regular_file(path: Path, what: str, error: type[AuditError]) -> None:
    """Refuse a path that exists but is not a regular file.

    Reading a pipe or a device might never end. If the path does not exist or cannot be looked up, this function raises
    no error. The function that reads the file must handle this case.

    Args:
        path: The path.
        what: The content of the file, such as "the policy", for the message.
        error: The class of the error to raise.

    Raises:
        AuditError: The path is a folder, a pipe, a device or a socket. The message says which.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise error(
            f"{path}: this is a folder, expected a file with {what}. Give the path of the file. If it "
            "comes from a variable, the variable may be empty."
        )
    kinds = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
    kind = kinds.get(stat.S_IFMT(mode), "special file")
    raise error(
        f"{path}: this is a {kind}, expected a regular file with {what}. Write the content to a file first, and give "
        "the path of that file."
    )


def require_regular_files(folder: Path, what: str, error: type[AuditError]) -> None:
    """Require that a folder contains only regular files and folders (see `require_regular_file`).

    The contents of the folder and of its immediate subfolders are examined.

    Args:
        folder: The folder.
        what: The content of the files, such as "the model", for the message.
        error: The class of the error to raise.

    Raises:
        AuditError: The folder contains a pipe, a device or a socket. The message gives its path.
    """
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if not path.is_dir():
            require_regular_file(path, what, error)


def refuse_pointer(path: Path, what: str, error: type[AuditError]) -> None:
    """Refuse a file that Git LFS left instead of the real one, as `git clone` does where Git LFS is not installed.

    If the path does not exist or cannot be read, this function raises no error.

    Args:
        path: The path.
        what: The content of the real file, such as "the data", for the message.
        error: The class of the error to raise.

    Raises:
        AuditError: The file is such a pointer.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(POINTER))
    except (OSError, ValueError):
        return
    if start == POINTER:
        raise error(
            f"{path}: this is a pointer of Git LFS, expected the file with {what}. Fetch it with git lfs pull (in "
            "GitHub Actions, set lfs: true for actions/checkout)."
        )


def require_seed(option: str, seed: int) -> None:
    """Raise AuditError if a seed is negative or has more than 63 bits, the most that the files of a run can store."""
    if not 0 <= seed < 2**63:
        raise AuditError(f"{option} {seed}: expected a whole number from 0 to 2^63 - 1.")


def ambiguous(option: str, name: str, kind: str, path: Path) -> str:
    """Return the error message for a name that is both a registered name and a path.

    Args:
        option: The option with which the name was given, such as "--model".
        name: The name.
        kind: The kind of the registered object, such as "model".
        path: The file or folder with the same name.
    """
    found = "folder" if path.is_dir() else "file"
    return (
        f"{option} {name}: this is both a registered {kind} and a {found}. Write {option} ./{name} for the {found}. "
        f"For the registered {kind}, rename the {found}."
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests known names instead of an unknown one.

    Args:
        name: The unknown name.
        known: All known names.

    Returns:
        "Did you mean 'x'?" with up to three similar names. If no name is similar, a list of all known names. If there
        are no names, "None is registered."
    """
    choices = sorted(set(known))
    listed = "Known: " + ", ".join(f"'{c}'" for c in choices) + "." if choices else "None is registered."
    return did_you_mean(name, choices) or listed


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return a question that suggests known names instead of an unknown one; "" if no name is similar.

    Args:
        name: The unknown name.
        known: All known names.
        cutoff: The smallest similarity of suggested names, from 0 to 1 (see `difflib.get_close_matches`).

    Examples:
        >>> did_you_mean("atention", ["attention", "label"])
        "Did you mean 'attention'?"
    """
    near = difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=cutoff)
    return "Did you mean " + " or ".join(f"'{n}'" for n in near) + "?" if near else ""
