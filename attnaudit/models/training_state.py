"""What training leaves behind after an epoch, so that a killed one goes on there and ends with the same model."""

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

#: The file in the folder of the model that is being made.
UNFINISHED = "unfinished.pt"


@dataclass(slots=True, kw_only=True)
class Unfinished:
    """A file for training that is under way, from now on. key: of all that decides the model; what another training
    left there is not gone on from. every: seconds between two writes, so that short epochs are not slowed down."""

    path: Path
    key: str
    every: float = 60.0
    _begun: tuple[float, float] = field(default_factory=lambda: (time.perf_counter(), time.process_time()))
    _before: tuple[float, float] = (0.0, 0.0)
    _written: float = field(default_factory=lambda: time.monotonic())

    @property
    def spent(self) -> tuple[float, float]:
        """Seconds of the wall clock and of this process, with those of the runs that were stopped, until their last
        write."""
        now = time.perf_counter(), time.process_time()
        wall, cpu = (before + end - start for before, end, start in zip(self._before, now, self._begun, strict=True))
        return wall, cpu

    def keep(self, state: dict[str, Any]) -> None:
        """Write tensors and plain values, unless that was done just now. Raises ModelError where it cannot be."""
        if time.monotonic() - self._written < self.every:
            return
        content = io.BytesIO()
        torch.save({"key": self.key, "spent": self.spent, "state": state}, content)
        try:
            replace_file(self.path, content.getvalue())
        except OSError as error:
            raise ModelError(
                f"{self.path}: cannot be written ({error.strerror}). Give --out a folder with room that can be."
            ) from error
        self._written = time.monotonic()

    def kept(self) -> dict[str, Any] | None:
        """What was last written under this key, None without; nothing is unpickled but tensors and plain values."""
        try:
            found = torch.load(self.path, weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError):
            return None
        if not isinstance(found, dict) or found.get("key") != self.key:
            return None
        self._before = found["spent"]
        state: dict[str, Any] = found["state"]
        return state

    def forget(self) -> None:
        """Remove the file. Raises ModelError where that is not possible."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be removed ({error.strerror}). Remove it by hand.") from error
