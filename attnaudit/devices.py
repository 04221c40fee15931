"""Names of the devices to measure on, as torch writes them. Imports torch only to look for a GPU."""

from __future__ import annotations

import re

from attnaudit.errors import AuditError

#: The accepted names, for help texts and messages.
NAMES = "cpu, cuda or cuda:N"
_NAME = re.compile(r"cpu|cuda(?::(\d+))?")


def require_name(option: str, device: str) -> None:
    """Check the spelling of a device name, without importing torch.

    Args:
        option: the option that the name was given with, for the message.
        device: the name, such as "cuda:0".

    Raises:
        AuditError: the name is not a device that the measures can be computed on.
    """
    if device.partition(":")[0] == "mps":
        raise AuditError(f"{option} {device}: Metal has no float64, which the measures need. Use {option} cpu.")
    if not _NAME.fullmatch(device):
        raise AuditError(f"{option} {device}: expected {NAMES}, such as cuda:0.")


def require_device(option: str, device: str) -> None:
    """Check that a device name is valid and that torch finds the device.

    Args and errors are those of `require_name`; a CUDA device that torch does not find also raises AuditError.
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
