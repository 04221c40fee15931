"""List the files that are shipped, with their hashes, and find out whether they contain the audited model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnaudit.errors import ReportError, require_reachable, require_regular_file
from attnaudit.formatting import INVISIBLE
from attnaudit.model_families import audited_family
from attnaudit.records import ModelRecord
from attnaudit.registry import checkpoint_formats
from attnaudit.run.verification.integrity import file_sha256
from attnaudit.targets import labels_in


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedFile:
    """A file that is shipped with the release.

    Attributes:
        name: Its name. For a file in a folder, the name of the folder and the path in it, separated by "/".
        sha256: Its SHA-256 hash.
    """

    name: str
    sha256: str


def shipped_files(paths: Sequence[Path]) -> list[ShippedFile]:
    """Return the given files and all files in the given folders and their subfolders.

    Raises:
        ReportError: A path does not exist, cannot be read, or is a pipe or a device. A folder contains no files, or
            contains a link to a folder. Two files have the same name. A name contains an invisible character.
    """
    found: dict[str, ShippedFile] = {}
    for name, path in (pair for one in paths for pair in _named_files(one)):
        if INVISIBLE.search(name) or "\n" in name or "\t" in name:
            raise ReportError(
                f"--subject {path}: the name contains an invisible character, so it cannot be listed. Rename the file."
            )
        require_regular_file(path, "a part of the model", ReportError)
        file = ShippedFile(name=name, sha256=file_sha256(path))
        if not file.sha256:
            raise ReportError(
                f"--subject {path}: the target of this link does not exist. Replace the link with the file, or remove "
                "the link."
            )
        if found.setdefault(name, file) != file:
            raise ReportError(
                f"--subject {path}: two different files have the name {name}. Rename one of them, or give the folder "
                "that contains both."
            )
    return list(found.values())


def _named_files(path: Path) -> Iterator[tuple[str, Path]]:
    require_reachable("--subject", path)
    if path.is_file():
        yield path.name, path
        return
    if not path.exists():
        raise ReportError(f"--subject {path}: there is no such file or folder. Give the files that are shipped.")
    if not path.is_dir():
        require_regular_file(path, "a part of the model", ReportError)
    entries = sorted(path.rglob("*"))
    if linked := [entry for entry in entries if entry.is_symlink() and entry.is_dir()]:
        raise ReportError(
            f"--subject {linked[0]}: this is a link to a folder. Replace the link with the folder, or remove the link."
        )
    files = [entry for entry in entries if not entry.is_dir()]
    if not files:
        raise ReportError(f"--subject {path}: this folder contains no file. Give the files that are shipped.")
    for file in files:
        yield f"{path.resolve().name}/{file.relative_to(path).as_posix()}", file


def compare_checkpoints(paths: Sequence[Path], audited: ModelRecord, *, unit: str) -> list[Path]:
    """Load the checkpoint folders among the given paths, and require that each contains the audited model.

    Files and other folders cannot be compared, because only the code that loads them knows what is in them.

    Args:
        paths: Files and folders.
        audited: The record of the audited model.
        unit: The units of the audit.

    Returns:
        The checkpoint folders.

    Raises:
        ReportError: A folder contains another model.
        ModelError: A model cannot be loaded.
    """
    is_label = audited.target is not None and audited.target.kind == "label"
    label = f"[{audited.target.name}]" if audited.target is not None and is_label else ""
    formats = [checkpoint_formats.get(name) for name in checkpoint_formats.names()]
    folders = [path for path in paths if path.is_dir() and any(one.recognises(path) for one in formats)]
    for folder in folders:
        from attnaudit.adapters.loading import load_model

        loaded = load_model(f"{folder.resolve()}{label}")
        if (loaded.sha256, audited_family(loaded.family, unit)) != (audited.sha256, audited.family):
            raise ReportError(
                f"--subject {folder}: the model in this folder is not the audited one. Its hash is {loaded.sha256}, "
                f"but the run audited {audited.name} with the hash {audited.sha256}. Give the audited checkpoint, or "
                "audit this one."
            )
    return folders


def labels_left_out(folders: Sequence[Path], audited: ModelRecord) -> list[str]:
    """Return a warning for each checkpoint folder whose attnaudit.toml lists labels that were not audited.

    Args:
        folders: The checkpoint folders that contain the audited model.
        audited: The record of the audited model.
    """
    name = audited.target.name if audited.target is not None else ""
    found = []
    for folder in folders:
        if others := [label for label in labels_in(folder) if label != name]:
            found.append(
                f"{folder.name}: only the label '{name}' was audited. The run says nothing about "
                f"{', '.join(repr(label) for label in others)}."
            )
    return found
