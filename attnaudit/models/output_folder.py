"""Check the output folder of `attnaudit train` before training, and leave it unchanged if training fails."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attnaudit.errors import ModelError, invalid_input


@contextlib.contextmanager
def reserved(folder: Path, *, overwrite: bool, pretrained: bool) -> Iterator[None]:
    """Return a context that creates the folder, and removes it again if the training inside the context fails.

    A folder is removed only if the context created it and it is still empty.

    Args:
        folder: The folder to which the checkpoint will be written.
        overwrite: Whether to accept a folder that is not empty.
        pretrained: Whether the checkpoint will be a fine-tuned encoder (True) or a reference model (False). A
            checkpoint of the other kind is never replaced.

    Raises:
        ModelError: The path is a file, the folder cannot be written, the folder is not empty although `overwrite` is
            False, or it contains a checkpoint of the other kind.
    """
    with invalid_input():
        _refuse_contents(folder, overwrite=overwrite, pretrained=pretrained)
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            with invalid_input():
                raise ModelError(
                    f"--out {folder}: this folder cannot be written ({error.strerror}). Give a folder that you may "
                    "write to."
                ) from error
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in created:
                path.rmdir()
        raise


def _refuse_contents(folder: Path, *, overwrite: bool, pretrained: bool) -> None:
    """Raise ModelError if the path is a file, or if the folder has contents that must not be replaced.

    Files of a stopped training run do not count as contents.
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
