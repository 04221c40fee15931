"""The folder that `attnaudit train` writes to: checked before training, and left as it was if training fails."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attnaudit.errors import ModelError


@contextlib.contextmanager
def reserved(folder: Path, *, overwrite: bool, pretrained: bool) -> Iterator[None]:
    """Create the folder; if the body of the `with` statement fails, remove the created folders that are still empty.

    Args:
        folder: Where the checkpoint will be written.
        overwrite: Accept a folder that is not empty.
        pretrained: Whether a fine-tuned encoder will be written, rather than a reference model. A checkpoint of the
            other kind is never replaced.

    Raises:
        ModelError: The folder is a file, cannot be written, is not empty (and `overwrite` is False), or contains a
            checkpoint of the other kind.
    """
    _refuse_contents(folder, overwrite=overwrite, pretrained=pretrained)
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ModelError(
                f"--out {folder}: this folder cannot be written ({error.strerror}). Give a folder that you may write "
                "to."
            ) from error
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in created:
                path.rmdir()
        raise


def _refuse_contents(folder: Path, *, overwrite: bool, pretrained: bool) -> None:
    """Raise ModelError if the folder is a file, or has contents that must not be replaced.

    Files of a stopped training do not count as contents.
    """
    from attnaudit.models.checkpoint_folder import CARD as REFERENCE_CARD
    from attnaudit.models.pretrained import CARD, CONFIG, TEMPORARY_FOLDER
    from attnaudit.models.training_state import STATE_FILE

    if folder.exists() and not folder.is_dir():
        raise ModelError(f"--out {folder}: this is a file. Give a folder.")
    leftovers = {TEMPORARY_FOLDER} if pretrained else {TEMPORARY_FOLDER, STATE_FILE}
    contents = {path.name for path in folder.iterdir()} - leftovers if folder.is_dir() else set()
    if contents and not overwrite:
        raise ModelError(
            f"--out {folder}: this folder is not empty. Give another one, or add --overwrite to replace the checkpoint "
            "in it."
        )
    if contents & {REFERENCE_CARD, CARD, CONFIG} and (CARD if pretrained else REFERENCE_CARD) not in contents:
        raise ModelError(
            f"--out {folder}: this folder contains a checkpoint of another kind, which is never replaced. Give another "
            "folder."
        )
