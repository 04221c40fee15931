"""Names of the devices on which measures are computed, in the form that torch uses, such as "cuda:0".

Importing this module does not import torch. `require_device` imports torch to look for a GPU.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from attnaudit.errors import AuditError

#: The valid names, for help texts and messages.
NAMES = "cpu, cuda or cuda:N"
#: The name that stands for "cuda" where torch finds a CUDA device, and for "cpu" elsewhere.
AUTO = "auto"
#: In torch/version.py, the version of CUDA or ROCm that torch was built for; None for a build that has no such devices.
_BUILT_FOR = re.compile(r"^(?:cuda|hip)\b.*= *(.+)$", re.MULTILINE)
_NAME = re.compile(r"cpu|cuda(?::(\d+))?")


def let_waiting_threads_sleep() -> None:
    """Stop the threads of OpenMP from spinning while they wait. Call this before torch is imported.

    torch reads this setting when it is imported. If other processes use the same cores, threads that spin make an audit
    many times slower. If the environment variable OMP_WAIT_POLICY is already set, its value is kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def require_name(option: str, device: str) -> None:
    """Require that a device has a valid name. This does not import torch.

    Args:
        option: The option with which the name was given, for the message.
        device: The name, such as "cuda:0".

    Raises:
        AuditError: The name is invalid, or measures cannot be computed on this kind of device.
    """
    if device.partition(":")[0] == "mps":
        raise AuditError(f"{option} {device}: Metal has no float64, which the measures need. Use {option} cpu.")
    if not _NAME.fullmatch(device):
        raise AuditError(f"{option} {device}: expected {NAMES}, such as cuda:0.")


def require_device(option: str, device: str) -> None:
    """Require that a device has a valid name and that torch finds the device.

    Args:
        option: The option with which the name was given, for the message.
        device: The name, such as "cuda:0".

    Raises:
        AuditError: The name is invalid, measures cannot be computed on this kind of device, or torch does not find the
            device.
    """
    require_name(option, device)
    if device == "cpu":
        return
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(device.partition(":")[2] or 0) >= count:
        if count:
            known = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
            raise AuditError(f"{option} {device}: torch finds only {known}. Use {option} cuda:0 or {option} cpu.")
        raise AuditError(
            f"{option} {device}: torch finds no CUDA device. Use {option} cpu, or install a torch build for your GPU."
        )


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable TF32 and autocast inside the context, and restore the settings afterwards. This imports torch."""
    import torch

    before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    flags = {"enabled": cudnn.enabled, "benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    torch.set_float32_matmul_precision("highest")
    try:
        with ExitStack() as stack:
            stack.enter_context(cudnn.flags(**flags, allow_tf32=False))
            for kind in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def gpu_name(device: str) -> str:
    """Return the name of a GPU, such as "NVIDIA H100 80GB HBM3"; "" for a CPU. For a GPU, this imports torch.

    Args:
        device: The name of the device, such as "cuda:0".
    """
    if device.partition(":")[0] != "cuda":
        return ""
    import torch

    return torch.cuda.get_device_name(device)


def chosen_device(device: str) -> str:
    """Return the device that a name stands for. For "auto", this imports torch.

    Args:
        device: A valid name, or "auto".
    """
    if device != AUTO:
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def device_in_advance(device: str) -> str:
    """Return the device that a name stands for, as far as this is known without importing torch.

    If torch is imported already, or was built without support for GPUs, "auto" has a known device. Otherwise, the name
    is returned unchanged.

    Args:
        device: A valid name, or "auto".
    """
    if device != AUTO or "torch" in sys.modules:
        return chosen_device(device)
    spec = find_spec("torch")
    path = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        return device
    versions = _BUILT_FOR.findall(path.read_text(encoding="utf-8"))
    return "cpu" if versions and all(version.strip() == "None" for version in versions) else device
