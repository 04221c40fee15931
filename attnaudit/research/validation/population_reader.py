"""Read a population: a folder of models whose attention is known to be faithful or unfaithful."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from attnaudit.errors import AuditError, nearest, require_regular_file
from attnaudit.research.validation.validation_schema import Entry, Population, Truth

POPULATION_FILE = "population.json"
#: The label "faithful" is accepted if the rank agreement is at least FAITHFUL_FROM, and the label "unfaithful" if it is
#: at most UNFAITHFUL_TO.
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
    faithful model must be at least 0.9, and that of an unfaithful model at most 0.1. A model whose rank agreement
    contradicts its label becomes a trend. It is then not scored, and a note reports this.

    Args:
        folder: The folder with population.json.

    Raises:
        PopulationError: The file cannot be read, an entry is malformed, a checkpoint folder is missing or listed twice,
            or a kind has both faithful and unfaithful models.
    """
    path = Path(folder) / POPULATION_FILE
    entries: list[Entry] = []
    notes: list[str] = []
    numbers: dict[str, int] = {}
    for number, row in enumerate(_rows(path), 1):
        entry = _entry(row, f"{path}: entry {number}")
        if entry.folder in numbers:
            raise PopulationError(
                f"{path}: entries {numbers[entry.folder]} and {number} both have the folder '{entry.folder}'. Remove "
                "one of them."
            )
        numbers[entry.folder] = number
        if not (path.parent / entry.folder).is_dir():
            raise PopulationError(
                f"{path}: entry {number}: there is no folder '{entry.folder}' next to {POPULATION_FILE}. Expected a "
                "checkpoint folder, as `--model` takes it. Remove the entry, or build the population again."
            )
        entries.append(_with_supported_label(entry, notes))
    _require_one_truth_per_kind(entries, path)
    return Population(entries=entries, notes=notes)


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
        raise PopulationError(f"{path}: not valid JSON ({error}). Expected a list of entries.") from error
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
    return entry


def _with_supported_label(entry: Entry, notes: list[str]) -> Entry:
    """Return the entry. If its rank agreement contradicts its label, it becomes a trend, and a note is added."""
    agreement = entry.rank_agreement
    if entry.truth == "trend" or agreement is None:
        return entry
    if (entry.truth == "faithful" and agreement >= FAITHFUL_FROM) or (
        entry.truth == "unfaithful" and agreement <= UNFAITHFUL_TO
    ):
        return entry
    required = f"at least {FAITHFUL_FROM:g}" if entry.truth == "faithful" else f"at most {UNFAITHFUL_TO:g}"
    notes.append(
        f"{entry.folder}: labelled {entry.truth}, but its rank agreement is {agreement:.2f}, expected {required}. "
        "The model is listed as a trend and not scored."
    )
    return msgspec.structs.replace(entry, truth="trend")


def _require_one_truth_per_kind(entries: list[Entry], path: Path) -> None:
    truths: dict[str, Truth] = {}
    for entry in entries:
        if entry.truth == "trend":
            continue
        if truths.setdefault(entry.kind, entry.truth) != entry.truth:
            raise PopulationError(
                f"{path}: kind '{entry.kind}' holds both faithful and unfaithful models. Give them different kind "
                "names, because intervals resample kinds."
            )


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a Boolean", type(None): "null"}
    return names.get(type(value), "a number")
