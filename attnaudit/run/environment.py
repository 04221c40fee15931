"""What a run was made with, for audit.json. Reads installed versions without importing the packages."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

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
    """Python, platform, processor and the versions of the packages that numbers depend on."""
    packages: dict[str, str] = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        processor=platform.processor() or platform.machine(),
        packages=packages,
        device=device,
        threads=threads,
    )
