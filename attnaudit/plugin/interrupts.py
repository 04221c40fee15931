"""Treat SIGTERM like Ctrl-C, so that a run is still written if a CI system cancels its job."""

from __future__ import annotations

import signal
import threading

import pytest

from attnaudit.plugin.workers import is_worker


class TerminationHandler:
    """Turns the first SIGTERM into a KeyboardInterrupt, and ignores those that follow.

    A CI system that cancels a job often sends a second signal, which must not stop the writing of the run. SIGKILL
    still ends the process at once.
    """

    def __init__(self) -> None:
        self._installed = False

    def install(self, config: pytest.Config) -> None:
        """Handle SIGTERM until pytest ends, except in a worker of xdist and where SIGTERM has a handler already."""
        if is_worker(config) or not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        signal.signal(signal.SIGTERM, self._interrupt)
        self._installed = True
        config.add_cleanup(_restore_default)

    def ignore(self) -> None:
        """Ignore SIGTERM from now on, while the run is written. Without an installed handler, do nothing."""
        if self._installed and _in_main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def resume(self) -> None:
        """Handle SIGTERM again after `ignore`. Without an installed handler, do nothing."""
        if self._installed and _in_main_thread():
            signal.signal(signal.SIGTERM, self._interrupt)

    @staticmethod
    def _interrupt(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt


def _restore_default() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _in_main_thread() -> bool:
    """Return whether this thread may set signal handlers."""
    return threading.current_thread() is threading.main_thread()
