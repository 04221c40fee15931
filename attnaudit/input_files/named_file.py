"""Find, read and validate the file that a row of a data set names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnaudit.errors import DataError, did_you_mean
from attnaudit.input_files import array_files, picture_files, recording_files
from attnaudit.input_files.file_contents import read_file

SUFFIXES = (*array_files.FORMATS, *picture_files.SUFFIXES, *recording_files.SUFFIXES)
#: The suffixes as a phrase, for messages.
SUFFIX_LIST = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """The path and the hash of a file that a row names and whose contents are valid.

    Attributes:
        path: The absolute path.
        sha256: The SHA-256 hash of the contents, in hexadecimal.
    """

    path: str
    sha256: str


def find_file(name: str, folder: Path | None, where: str) -> NamedFile:
    """Find the file that a row names, and validate its contents.

    Args:
        name: The path in the row.
        folder: The folder of the data file. The path in the row is relative to this folder and must not leave it.
            However, symbolic links in the folder may lead elsewhere. None for data sets in Python. Their paths may be
            absolute, or relative to the current directory.
        where: The row and the column, for messages.

    Raises:
        DataError: The path is absolute or leaves the folder, there is no such file, its suffix is not supported, or its
            contents are invalid.
    """
    given = Path(name)
    if folder is not None and (given.is_absolute() or ".." in given.parts):
        raise DataError(
            f"{where}: found the path '{name}', expected a path inside the folder of the data file. Move the data file "
            "to a folder that contains the files, or put a symbolic link to their folder next to the data file."
        )
    path = ((folder or Path()) / given).absolute()
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"{where}: '{name}' has the suffix '{path.suffix}', expected {SUFFIX_LIST}. Convert the file to one of "
            "these formats."
        )
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:  # such as a name that is too long, or that contains a null byte
        raise DataError(f"{where}: the path {name!r} is invalid: {error}. Correct the path.") from error
    if not exists:
        raise DataError(f"{where}: there is no file {path}. {_hint(path)}")
    content, sha256 = read_file(path, where)
    if suffix in array_files.FORMATS:
        array_files.parse_array(content, path, where)
    elif suffix in recording_files.SUFFIXES:
        recording_files.parse_wave(content, path, where)
    else:
        picture_files.parse_picture(content, path, where)
    return NamedFile(path=str(path), sha256=sha256)


def _hint(path: Path) -> str:
    """Return a hint for a file that does not exist."""
    if path.is_symlink():
        return "The symbolic link leads to a file that does not exist. Correct the link."
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist either. Correct the path, which is relative to the data file."
    names = [file.name for file in path.parent.iterdir() if file.suffix.lower() in SUFFIXES]
    return did_you_mean(path.name, names) or f"Correct the path, or add the file to {path.parent}."
