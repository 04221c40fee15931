"""Find the newest run in a folder."""

from __future__ import annotations

import re
import stat
from datetime import datetime
from pathlib import Path

import msgspec

from attnaudit.errors import ReportError, require_reachable, require_regular_file, similar_path
from attnaudit.records import RunRecord

LATEST = "latest.txt"
RECORD = "audit.json"
#: The beginning of the names that pytest gives to the folders of runs: date and time.
NAME = re.compile(r"\d{8}-\d{6}-")


def require_run_folder(command: str, folder: Path) -> Path:
    """Return a folder that the user gave, if it exists. It may contain one run, or all runs.

    Args:
        command: The name of the command, for the message if the path cannot be accessed.
        folder: The folder.

    Raises:
        ReportError: There is no such folder. The message suggests similar ones.
    """
    require_reachable(command, folder)
    if folder.exists() and not folder.is_dir():
        raise ReportError(
            f"{folder}: this is a file. Expected the folder of a run, such as reports/<run>, or the folder that pytest "
            "writes the runs to, such as reports."
        )
    if not folder.is_dir():
        question = similar_path(folder)
        raise ReportError(
            f"{folder}: there is no such folder. {f'{question} ' if question else ''}Expected the folder of a run, "
            "such as reports/<run>, or the folder that pytest writes the runs to, such as reports."
        )
    return folder


def newest_run(folder: Path) -> Path:
    """Return the run folder that latest.txt names. If the given folder is that of one run, return it unchanged.

    Args:
        folder: The folder of one run, or of all runs.

    Raises:
        ReportError: latest.txt is absent or cannot be read, or names no folder next to it.
    """
    latest = folder / LATEST
    if is_run_folder(folder) and not latest.exists():  # an audit.json next to latest.txt is a copy
        return folder
    require_regular_file(latest, "the name of the newest run", ReportError)
    try:
        name = latest.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise ReportError(
            f"{latest}: there is no such file. Expected the folder that pytest writes the runs to, such as reports, "
            "or the folder of one run. Run the audit, or give the folder."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{latest}: cannot be read ({error}). Run the audit again.") from error
    if not name or Path(name).name != name or name in (".", ".."):
        raise ReportError(
            f"{latest}: the file names '{name}', expected the name of a folder next to this file. Run the audit again."
        )
    if not (folder / name).is_dir():
        raise ReportError(f"{latest}: the file names '{name}', but there is no such folder. Run the audit again.")
    return folder / name


def newer_runs(folder: Path, run: RunRecord) -> list[str]:
    """Return why a run is not the newest one in its folder. Each reason has one or two sentences and says what to do.

    Runs are compared by the time at which they began, or continued. Names decide only between runs of the same second,
    and where another run has no readable audit.json: a name that pytest gives begins with the time, but the folder of
    merged shards can have any name, and an older run can be resumed.

    Args:
        folder: The folder of the run.
        run: The content of its audit.json.
    """
    found = []
    if run.run != folder.name:
        found.append(
            f"The folder {folder.name} contains the run {run.run}, so it is a copy. Run the audit again, or give the "
            "path of this folder to verify the copy."
        )
    for other in sorted(folder.parent.iterdir()):
        if other.name != folder.name and is_run_folder(other) and _is_newer(other, folder, run):
            found.append(
                f"{other.name} is a newer run than {folder.name}, which latest.txt names. Run the audit again, or give "
                "the folder of the run that you want."
            )
    return found


def _is_newer(other: Path, folder: Path, run: RunRecord) -> bool:
    """Return whether the run in one folder is newer than the run in another one.

    Args:
        other: The folder of the run that may be newer.
        folder: The folder of the run that it is compared with.
        run: The content of audit.json in that folder.
    """
    by_name = other.name > folder.name
    try:
        require_regular_file(other / RECORD, "the record of a run", ReportError)
        other_began, began = _began((other / RECORD).read_bytes()), datetime.fromisoformat(run.created)
        return other_began > began or (other_began == began and by_name)
    except (ReportError, OSError, TypeError, ValueError, msgspec.MsgspecError):  # TypeError: a time without a zone
        return by_name and NAME.match(other.name) is not None


class _Began(msgspec.Struct):
    created: str


def _began(content: bytes) -> datetime:
    """Return the time at which a run began, from the content of its audit.json.

    Raises:
        msgspec.MsgspecError: The content is no record of a run.
        ValueError: The time has another format.
    """
    return datetime.fromisoformat(msgspec.json.decode(content, type=_Began).created)


def require_newest(given: Path, folder: Path, run: RunRecord) -> None:
    """If the folder that pytest writes the runs to was given, require that a run is the newest one in it.

    Args:
        given: The folder that the user gave.
        folder: The folder of the run, as `newest_run` returns it for `given`.
        run: The content of its audit.json.

    Raises:
        ReportError: latest.txt does not name the newest run, or names a copy.
    """
    reasons = newer_runs(folder, run) if folder != given else []
    if reasons:
        raise ReportError(f"{given}: {reasons[0]}")


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder contains the files of one run, finished or not.

    A folder that cannot be read counts as a run if it has the name of one. Other folders, such as lost+found, do not.
    """
    for name, has_type in ((RECORD, bool), ("parts", stat.S_ISDIR)):
        try:
            if has_type((folder / name).stat().st_mode):
                return True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return NAME.match(folder.name) is not None
    return False
