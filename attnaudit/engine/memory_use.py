"""The memory that measures need while one batch is measured."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from attnaudit.processes import return_free_memory

#: Linux reports the memory of this process here, in KiB: now (VmRSS), and the largest amount so far (VmHWM).
STATUS = Path("/proc/self/status")
#: Writing "5" to this file of Linux resets VmHWM to VmRSS.
RESET = Path("/proc/self/clear_refs")


class MemoryMeter:
    """A context that measures how much the memory grows inside it.

    On the CPU, it measures the memory of this process; free memory is given back to the operating system before. On a
    CUDA device, it measures the memory of the tensors.

    Args:
        device: The device.

    Attributes:
        before: The memory before the context, in bytes.
        growth: The largest growth in the context, in bytes. If the context is used several times, the largest growth of
            all of them.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self.before = self.growth = 0

    def __enter__(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            return_free_memory(libraries=False)
            RESET.write_text("5", encoding="ascii")
        self.before = self._memory()[0]

    def __exit__(self, *_error: object) -> None:
        self.growth = max(self.growth, self._memory()[1] - self.before)

    def _memory(self) -> tuple[int, int]:
        """Return the current memory, and the largest memory since the last reset, in bytes."""
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)
        lines = dict(line.split(":", 1) for line in STATUS.read_text(encoding="utf-8").splitlines() if ":" in line)
        now, highest = (int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        return now, highest


def can_measure_memory(device: str) -> bool:
    """Return whether `MemoryMeter` can be used: on CUDA devices, and on CPUs under Linux."""
    if torch.device(device).type == "cuda":
        return True
    if sys.platform != "linux":
        return False
    try:
        RESET.write_text("5", encoding="ascii")
        return "VmHWM" in STATUS.read_text(encoding="utf-8")
    except OSError:  # Some containers allow neither.
        return False
