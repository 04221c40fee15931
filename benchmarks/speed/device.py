"""The device that both sides of a comparison compute on, and the clock that measures their time.

On the CPU, CPU time is measured. On a GPU, wall time is measured, and the clock waits until the GPU has finished.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

_NAME = "cpu"


def use(name: str) -> None:
    """Let comparisons that are made from now on compute on a device, such as "cuda"."""
    global _NAME
    _NAME = name


def name() -> str:
    """Return the name of the device."""
    return _NAME


def on_gpu() -> bool:
    """Return whether the device is a GPU."""
    return torch.device(_NAME).type == "cuda"


def times(factor: int) -> int:
    """Return the factor on a GPU, which is idle with few instances, and 1 on a CPU."""
    return factor if on_gpu() else 1


def there(tensor: Tensor) -> Tensor:
    """Return a tensor on the device."""
    return tensor.to(_NAME)


def now() -> float:
    """Return the time in seconds. Only differences have a meaning."""
    if not on_gpu():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()
