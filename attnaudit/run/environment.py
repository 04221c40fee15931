"""Describe the machine and the software of a run, for audit.json."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import msgspec

from attnaudit.devices import gpu_name
from attnaudit.records import Environment

PACKAGES = (
    "attnaudit",
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "entmax",
    "safetensors",
    "pyarrow",
    "msgspec",
    "pytest",
)


def describe_environment(*, device: str, threads: int) -> Environment:
    """Describe Python, the platform, the processor, the GPU and the installed packages that the numbers depend on.

    The versions are read from the metadata of the installed packages. If the device is a CPU, no package is imported.

    Args:
        device: The device that the run measures on.
        threads: The number of threads that torch uses.
    """
    packages: dict[str, str] = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return Environment(
        python=platform.python_version(),
        platform=_platform(),
        processor=platform.processor() or platform.machine(),
        packages=packages,
        device=device,
        threads=threads,
        gpu=gpu_name(device) or msgspec.UNSET,
    )


def _platform() -> str:
    """Describe the operating system, without the release of a Linux kernel, which may name the owner's machines."""
    described, release = platform.platform(), platform.release()
    return described.replace(f"-{release}", "", 1) if release and platform.system() == "Linux" else described
