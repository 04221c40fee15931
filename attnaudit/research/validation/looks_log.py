"""Log every run that scores the held-out half.

Such a run is called a look. A policy that is changed after a look at the held-out figures has been tuned on them. The
log shows how often this could have happened.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from attnaudit.errors import ReportError
from attnaudit.research.study.report_files import not_writable
from attnaudit.research.validation.population_schema import Family
from attnaudit.research.validation.validation_schema import Look

LOOKS = "looks.jsonl"


def log_look(folder: Path, look: Look) -> int:
    """Append a look to looks.jsonl, and return how many looks the file has for the look's family and population.

    Args:
        folder: The folder of the file. It is created if it does not exist.
        look: The look.

    Raises:
        ReportError: The file cannot be read or written, or is not a log of looks.
    """
    path = folder / LOOKS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(msgspec.json.encode(look) + b"\n")
    except OSError as error:
        raise not_writable(path, error) from error
    return count_looks(path, family=look.family, population_sha256=look.population_sha256)


def count_looks(path: Path, *, family: Family, population_sha256: str) -> int:
    """Return how many logged runs scored the held-out models of a family in a population.

    Raises:
        ReportError: The file cannot be read, or is not a log of looks.
    """
    try:
        lines = path.read_bytes().splitlines()
        looks = [msgspec.json.decode(line, type=Look) for line in lines if line.strip()]
    except (OSError, msgspec.DecodeError) as error:
        raise ReportError(
            f"{path}: cannot be read as the log of how often the held-out models were scored ({error}). Expected the "
            f"{LOOKS} that `attnaudit validate` writes. Move the file away or restore it."
        ) from error
    return sum(look.family == family and look.population_sha256 == population_sha256 for look in looks)
