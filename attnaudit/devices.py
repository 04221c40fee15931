"""Devices to measure on, by the names torch gives them. Imports torch only to look for one."""

from __future__ import annotations

import re

from attnaudit.errors import AuditError

NAMES = "cpu, cuda or cuda:N"
_NAME = re.compile(r"cpu|cuda(?::(\d+))?")


def require_name(option: str, device: str) -> None:
    """Raises AuditError for what is no device that measures can be computed on."""
    if device.partition(":")[0] == "mps":
        raise AuditError(f"{option} {device}: Metal has no float64, which the measures need. Use {option} cpu.")
    if not _NAME.fullmatch(device):
        raise AuditError(f"{option} {device}: expected {NAMES}, such as cuda:0.")


def require_device(option: str, device: str) -> None:
    """Raises AuditError also for a device that torch does not find."""
    require_name(option, device)
    if device == "cpu":
        return
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(device.partition(":")[2] or 0) >= found:
        raise AuditError(
            f"{option} {device}: torch finds {found} CUDA devices. Use {option} cpu, or install a torch build for your "
            "GPU."
        )
