"""Distinguish the processes of pytest-xdist: workers and their controller. Without pytest-xdist, there is neither."""

from __future__ import annotations

from typing import Any

import pytest


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process runs cases for a controller."""
    return hasattr(config, "workerinput")


def is_controller(config: pytest.Config) -> bool:
    """Return whether this process distributes the cases to workers."""
    return bool(config.pluginmanager.hasplugin("dsession"))


def worker_input(config: pytest.Config) -> dict[str, Any]:
    """Return what the controller sent to this worker; empty in any other process."""
    received: dict[str, Any] = getattr(config, "workerinput", {})
    return received
