"""Reading a population: a folder of models whose attention is known to be right or wrong, made here or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from attnaudit.errors import AuditError, nearest
from attnaudit.research.validation.validation_records import Entry, Population, Truth

NAME = "population.json"
FAITHFUL_FROM = 0.9
UNFAITHFUL_TO = 0.1
#: What populations of `attnaudit plant` call a data set -> its registered name.
ALSO_CALLED = {"synthetic": "planted-cue"}


class PopulationError(AuditError):
    """A population cannot be read; the message names the file, the entry and the key."""


def read_population(folder: Path) -> Population:
    """The entries of `folder`/population.json, checked one by one.

    Unknown keys are refused with the nearest known one, since a misspelt "half" would put a model into the wrong half.
    A label that its own rank agreement contradicts (faithful needs at least .9, unfaithful at most .1) is not scored:
    the model becomes a trend, and a note says so. Raises PopulationError.
    """
    path = Path(folder) / NAME
    entries: list[Entry] = []
    notes: list[str] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(_rows(path), 1):
        entry = _entry(row, f"{path}: entry {number}")
        if entry.folder in seen:
            raise PopulationError(
                f"{path}: entries {seen[entry.folder]} and {number} are both folder '{entry.folder}'. Keep one."
            )
        seen[entry.folder] = number
        if not (path.parent / entry.folder).is_dir():
            raise PopulationError(
                f"{path}: entry {number}: there is no folder '{entry.folder}' beside {NAME}. Expected a checkpoint "
                "folder, as `--model` takes it; remove the entry, or build the population again."
            )
        entries.append(_borne_out(entry, notes))
    _one_truth_per_kind(entries, path)
    return Population(entries=entries, notes=notes)


def dataset_of(entry: Entry, folder: Path) -> str:
    """What the entry's data set is loaded by: a path where there is such a file, else the registered name.

    Raises PopulationError with the nearest registered names."""
    from attnaudit.registry import datasets

    for path in (Path(folder) / entry.data, Path(folder) / entry.folder / entry.data):
        if path.is_file():
            return str(path)
    if entry.data in datasets:
        return entry.data
    if entry.data in ALSO_CALLED:
        return ALSO_CALLED[entry.data]
    raise PopulationError(
        f"{Path(folder) / NAME}: entry '{entry.folder}': data {entry.data!r} is neither a file in the population nor a "
        f"registered data set. {nearest(entry.data, datasets.names())}"
    )


def _rows(path: Path) -> list[Any]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise PopulationError(
            f"{path}: there is no such file. Expected a population: make one with `attnaudit plant --out "
            f"{path.parent}`, or give its folder with --population."
        ) from None
    except OSError as error:
        raise PopulationError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PopulationError(f"{path}: not valid JSON ({error}). Expected a list of entries.") from error
    if not isinstance(content, list):
        raise PopulationError(f"{path}: holds {_kind(content)}, expected a list of entries, one per model.")
    if not content:
        raise PopulationError(f"{path}: the list is empty. Expected one entry per model.")
    return content


def _entry(row: Any, place: str) -> Entry:
    if not isinstance(row, dict):
        raise PopulationError(f"{place}: is {_kind(row)}, expected an object with folder, kind, truth and data.")
    known = [field.name for field in msgspec.structs.fields(Entry)]
    for key in row:
        if key not in known:
            raise PopulationError(f"{place}: unknown key '{key}'. {nearest(key, known)}")
    try:
        entry = msgspec.convert(row, Entry)
    except msgspec.ValidationError as error:
        raise PopulationError(f"{place}: {error}.") from error
    if not entry.folder or not entry.kind or not entry.data:
        raise PopulationError(f"{place}: folder, kind and data may not be empty.")
    return entry


def _borne_out(entry: Entry, notes: list[str]) -> Entry:
    found = entry.rank_agreement
    if entry.truth == "trend" or found is None:
        return entry
    if (entry.truth == "faithful" and found >= FAITHFUL_FROM) or (
        entry.truth == "unfaithful" and found <= UNFAITHFUL_TO
    ):
        return entry
    wanted = f"at least {FAITHFUL_FROM:g}" if entry.truth == "faithful" else f"at most {UNFAITHFUL_TO:g}"
    notes.append(
        f"{entry.folder}: labelled {entry.truth}, but its rank agreement is {found:.2f}, expected {wanted}: "
        "shown as a trend, not scored"
    )
    return msgspec.structs.replace(entry, truth="trend")


def _one_truth_per_kind(entries: list[Entry], path: Path) -> None:
    truths: dict[str, Truth] = {}
    for one in entries:
        if one.truth == "trend":
            continue
        if truths.setdefault(one.kind, one.truth) != one.truth:
            raise PopulationError(
                f"{path}: kind '{one.kind}' holds both faithful and unfaithful models. Intervals resample kinds, so "
                "give the two different names."
            )


def _kind(value: object) -> str:
    words = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return words.get(type(value), "a number")
