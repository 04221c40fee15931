"""Read a population: a folder of models whose attention is known to be faithful or unfaithful."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from attnaudit.errors import AuditError, nearest, require_regular_file
from attnaudit.research.validation.population_schema import Entry, Population
from attnaudit.targets import split_label

POPULATION_FILE = "population.json"
#: The label "faithful" requires a rank agreement and a share of at least FAITHFUL_FROM. The label "unfaithful" requires
#: at most UNFAITHFUL_TO for both. A number that is not given is not checked.
FAITHFUL_FROM = 0.9
UNFAITHFUL_TO = 0.1
#: Name of a data set in a population that `attnaudit plant` built -> registered name of the data set.
DATASET_ALIASES = {"synthetic": "planted-cue"}


class PopulationError(AuditError):
    """Raised if a population is invalid or cannot be read.

    The message names the file and, if an entry is invalid, the entry and the key.
    """


def read_population(folder: Path) -> Population:
    """Read population.json and validate each entry.

    An unknown key is an error, because a misspelt "half" would put a model into the wrong half. The rank agreement of a
    faithful model must be at least 0.9, and that of an unfaithful model at most 0.1. If the rank agreement of a model
    contradicts its label, its truth becomes "trend" (unknown). The model is then not scored, and a note reports this.

    Args:
        folder: The folder with population.json.

    Raises:
        PopulationError: The file cannot be read, an entry is malformed, a share contradicts a label, a checkpoint
            folder is missing, or two entries have the same folder and reading.
    """
    path = Path(folder) / POPULATION_FILE
    entries: list[Entry] = []
    notes: list[str] = []
    numbers: dict[str, int] = {}
    for number, row in enumerate(_rows(path), 1):
        entry = _entry(row, f"{path}: entry {number}")
        if entry.name in numbers:
            reading = f" and the reading '{entry.reading}'" if entry.reading else ""
            raise PopulationError(
                f"{path}: entries {numbers[entry.name]} and {number} both have the folder '{entry.folder}'{reading}. "
                "Remove one of them, or name another reading."
            )
        numbers[entry.name] = number
        if not (path.parent / split_label(entry.folder, path.parent)[0]).is_dir():
            raise PopulationError(
                f"{path}: entry {number}: there is no folder '{entry.folder}' next to {POPULATION_FILE}. Expected a "
                "checkpoint folder of the kind that `--model` accepts. Remove the entry, or build the population again."
            )
        entries.append(_with_supported_label(entry, notes))
    return Population(entries=entries, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), notes=notes)


def dataset_of(entry: Entry, folder: Path) -> str:
    """Return the data set of an entry: the path of a file, or the name of a registered data set.

    Args:
        entry: The entry.
        folder: The folder of the population. A file is looked up in this folder, and then in the checkpoint folder.

    Raises:
        PopulationError: The data set is neither a file nor registered. The message names the nearest registered data
            set.
    """
    from attnaudit.registry import datasets

    for path in (Path(folder) / entry.data, Path(folder) / entry.folder / entry.data):
        if path.is_file():
            return str(path)
    if entry.data in datasets:
        return entry.data
    if entry.data in DATASET_ALIASES:
        return DATASET_ALIASES[entry.data]
    raise PopulationError(
        f"{Path(folder) / POPULATION_FILE}: entry '{entry.folder}': data {entry.data!r} is neither a file in the "
        f"population nor a registered data set. {nearest(entry.data, datasets.names())}"
    )


def _rows(path: Path) -> list[Any]:
    require_regular_file(path, "the population", PopulationError)
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise PopulationError(
            f"{path}: there is no such file. Expected a population of models. Build one with `attnaudit plant "
            f"--out {path.parent}`, or give the folder of another population with --population."
        ) from None
    except OSError as error:
        raise PopulationError(f"{path}: cannot be read ({error.strerror or error}). Make the file readable.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PopulationError(f"{path}: the file is not valid JSON ({error}). Expected a list of entries.") from error
    if not isinstance(content, list):
        raise PopulationError(f"{path}: found {_json_type(content)}, expected a list of entries, one per model.")
    if not content:
        raise PopulationError(f"{path}: the list is empty. Expected one entry per model.")
    return content


def _entry(row: Any, place: str) -> Entry:
    if not isinstance(row, dict):
        raise PopulationError(
            f"{place}: found {_json_type(row)}, expected an object with folder, kind, truth and data."
        )
    known = [field.name for field in msgspec.structs.fields(Entry)]
    for key in row:
        if key not in known:
            raise PopulationError(f"{place}: unknown key '{key}'. {nearest(key, known)}")
    try:
        entry = msgspec.convert(row, Entry)
    except msgspec.ValidationError as error:
        raise PopulationError(f"{place}: {error}.") from error
    if not entry.folder or not entry.kind or not entry.data:
        raise PopulationError(f"{place}: folder, kind and data must not be empty.")
    _require_matching_share(entry, place)
    return entry


def _with_supported_label(entry: Entry, notes: list[str]) -> Entry:
    """Return the entry. If its rank agreement contradicts its label, its truth becomes "trend", and a note is added."""
    agreement = entry.rank_agreement
    if entry.truth in ("trend", "graded") or agreement is None:
        return entry
    if (entry.truth == "faithful" and agreement >= FAITHFUL_FROM) or (
        entry.truth == "unfaithful" and agreement <= UNFAITHFUL_TO
    ):
        return entry
    required = f"at least {FAITHFUL_FROM:g}" if entry.truth == "faithful" else f"at most {UNFAITHFUL_TO:g}"
    notes.append(
        f"{entry.folder}: the model is labelled {entry.truth}, but its rank agreement is {agreement:.2f}, expected "
        f"{required}. It is listed as a trend (truth unknown) and not scored."
    )
    return msgspec.structs.replace(entry, truth="trend")


def _require_matching_share(entry: Entry, place: str) -> None:
    """Require that the share of an entry is a number from 0 to 1 that agrees with its label.

    Raises:
        PopulationError: The share is missing, is out of range or contradicts the label.
    """
    share = entry.share
    if share is None:
        if entry.truth == "graded":
            raise PopulationError(
                f"{place}: a graded model needs a 'share', the part on which its attention is right "
                "(a number from 0 to 1)."
            )
        return
    if not 0 <= share <= 1:
        raise PopulationError(f"{place}: share is {share:g}; expected a number from 0 to 1.")
    contradicts = (entry.truth == "faithful" and share < FAITHFUL_FROM) or (
        entry.truth == "unfaithful" and share > UNFAITHFUL_TO
    )
    if contradicts:
        raise PopulationError(
            f"{place}: the model is labelled {entry.truth}, but share is {share:g}. Expected at least "
            f"{FAITHFUL_FROM:g} for a faithful and at most {UNFAITHFUL_TO:g} for an unfaithful model. Use the truth "
            "'graded' for others."
        )


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a Boolean", type(None): "null"}
    return names.get(type(value), "a number")
