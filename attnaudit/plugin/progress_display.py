"""Show the progress of measuring: a bar in a terminal, or a line each minute if the output is not a terminal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

import pytest

from attnaudit.plugin.selection import ci_variable
from attnaudit.plugin.workers import is_worker, worker_input

if TYPE_CHECKING:
    from attnaudit.progress import ProgressCallback


@contextmanager
def measuring_progress(config: pytest.Config, rows: Callable[[], str]) -> Iterator[ProgressCallback | None]:
    """Show on standard error how many rows a run has measured. pytest still captures what the model prints.

    A bar is drawn in the terminal of the process that runs the cases. In CI, in the workers of xdist and where the
    output is not a terminal, a line is printed each minute.

    Args:
        config: The configuration of pytest.
        rows: Returns the name of several rows, such as "texts".

    Yields:
        The callback to report progress to; None with -qq.
    """
    if config.get_verbosity() < -1:
        yield None
        return
    from attnaudit.progress import progress_bar

    reporter = config.pluginmanager.getplugin("terminalreporter")
    on_terminal = reporter is not None and reporter.isatty and not is_worker(config) and not ci_variable()
    with (
        _uncaptured_stderr(config) as stream,
        progress_bar(
            unit=rows,
            print_tenths=False,
            stream=stream,
            log_only=not (on_terminal and stream.isatty()),
        ) as progress,
    ):
        worker = worker_input(config).get("workerid", "")
        yield lambda done, total, note: progress(done, total, f"{worker} {note}".lstrip())


@contextmanager
def _uncaptured_stderr(config: pytest.Config) -> Iterator[TextIO]:
    """Yield a stream to standard error that pytest does not capture, while all other output remains captured."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
        stream = sys.stderr
        try:
            copy = os.dup(stream.fileno())  # pytest redirects the original descriptor when it captures again
        except (OSError, io.UnsupportedOperation):  # a stream without a file, such as that of a notebook
            copy = -1
    if copy < 0:
        yield stream
        return
    with os.fdopen(copy, "w", encoding=stream.encoding, errors="backslashreplace") as duplicate:
        yield duplicate
