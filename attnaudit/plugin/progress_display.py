"""Show the progress of measuring in pytest's terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from attnaudit.plugin.workers import is_worker

if TYPE_CHECKING:
    from attnaudit.progress import ProgressCallback


@contextmanager
def measuring_progress(config: pytest.Config) -> Iterator[ProgressCallback | None]:
    """Draw a progress bar on standard error while pytest's capturing is suspended.

    Yields:
        The callback to report progress to; None with -q, in CI, in workers, and where the output is not a terminal.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    on_terminal = reporter is not None and reporter.isatty
    if is_worker(config) or not on_terminal or os.environ.get("CI") or config.option.verbose < 0:
        yield None
        return
    from attnaudit.progress import progress_bar

    capture = config.pluginmanager.getplugin("capturemanager")
    with ExitStack() as stack:
        if capture is not None:
            stack.enter_context(capture.global_and_fixture_disabled())
        yield stack.enter_context(progress_bar()) if sys.stderr.isatty() else None
