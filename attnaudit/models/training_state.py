"""The file in which a training run saves its state after an epoch.

A stopped run resumes from this file. It then ends with the same model as a run without interruption.
"""

from __future__ import annotations

import io
import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attnaudit.errors import ModelError
from attnaudit.processes import replace_file

#: Name of the file. It is in the folder to which the checkpoint will be written.
STATE_FILE = "training_state.pt"


@dataclass(slots=True, kw_only=True)
class TrainingStateFile:
    """A file with the state of a training run in progress.

    Attributes:
        path: Path of the file.
        key: A hash of everything that determines the trained model. A state that was saved with another key is ignored.
        save_interval: Smallest number of seconds between two writes, so that short epochs are not slowed down.
    """

    path: Path
    key: str
    save_interval: float = 60.0
    _started: tuple[float, float] = field(default_factory=lambda: (time.perf_counter(), time.process_time()))
    _seconds_before: tuple[float, float] = (0.0, 0.0)
    _last_saved: float = field(default_factory=lambda: time.monotonic())

    @property
    def seconds(self) -> tuple[float, float]:
        """The wall-clock time and the CPU time of the training, in seconds, counted from the creation of this object.

        After `load`, both times also include the time of earlier, interrupted runs, up to the last state that each run
        wrote.
        """
        now = time.perf_counter(), time.process_time()
        clocks = zip(self._seconds_before, now, self._started, strict=True)
        wall, cpu = (before + end - start for before, end, start in clocks)
        return wall, cpu

    def save(self, state: dict[str, Any]) -> None:
        """Write the state, unless the last write was less than `save_interval` seconds ago.

        Args:
            state: A dict of tensors and plain values.

        Raises:
            ModelError: The file cannot be written.
        """
        if time.monotonic() - self._last_saved < self.save_interval:
            return
        content = io.BytesIO()
        torch.save({"key": self.key, "seconds": self.seconds, "state": state}, content)
        try:
            replace_file(self.path, content.getvalue())
        except OSError as error:
            raise ModelError(
                f"{self.path}: the training state cannot be written ({error.strerror}). Give --out a folder that you "
                "may write to and that has free space."
            ) from error
        self._last_saved = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """Return the last state that was written with the same key.

        Return None if there is no such state, or if the file cannot be read. Only tensors and plain values are
        unpickled.
        """
        try:
            content = torch.load(self.path, weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
            return None
        if not isinstance(content, dict) or content.get("key") != self.key:
            return None
        self._seconds_before = content["seconds"]
        state: dict[str, Any] = content["state"]
        return state

    def delete(self) -> None:
        """Delete the file, if it exists.

        Raises:
            ModelError: The file cannot be deleted.
        """
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise ModelError(
                f"{self.path}: the training state cannot be deleted ({error.strerror}). Delete it yourself."
            ) from error
