"""Show the progress of long work as a bar in a terminal and as lines elsewhere. The work reports to a callback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TextIO

from attnaudit.formatting import duration, terminal_safe

#: Called as callback(number of completed steps, number of all steps or None if it is unknown, note). The note describes
#: the last or current step.
ProgressCallback = Callable[[int, int | None, str], None]

#: Without a terminal, a line is printed at least once in this number of seconds.
HEARTBEAT_SECONDS = 60.0


@contextmanager
def progress_bar(
    title: str = "",
    *,
    unit: str | Callable[[], str] = "",
    print_notes: bool = False,
    print_tenths: bool = True,
    stream: TextIO | None = None,
    log_only: bool = False,
) -> Iterator[ProgressCallback]:
    """Show progress, with the estimated remaining time.

    On a terminal, a bar shows the progress. It disappears at the end. Elsewhere, such as in a CI log, a line is printed
    for every tenth of the work if the amount of work is known. A line is also printed whenever a minute has passed
    without one, even if the work reports nothing.

    Args:
        title: The name of the work, such as "training".
        unit: The plural of what is counted, such as "texts", or a function that returns it; "" if the title says it.
        print_notes: Whether to print each new note on its own line, on a terminal and elsewhere. No lines are then
            printed for the tenths of the work.
        print_tenths: Whether to print lines for the tenths of the work.
        stream: The stream on which to show the progress. None for standard error; other output then appears above the
            bar.
        log_only: Whether to print lines even if the stream is a terminal.

    Yields:
        The callback through which the work reports its progress.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True) if stream is None else Console(file=stream)
    on_terminal = console.is_terminal and not log_only
    printed: set[str] = set()
    begun = threading.Event()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeRemainingColumn(),
    )

    def print_line(text: str) -> None:
        if stream is not None and not begun.is_set():  # another stream may have left a line unfinished
            begun.set()
            console.print()
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    with ExitStack() as stack:
        lines = None if on_terminal else stack.enter_context(_progress_lines(print_line, title, unit))
        bar = Progress(
            *columns,
            console=console,
            transient=True,
            disable=not on_terminal,
            redirect_stdout=stream is None,
            redirect_stderr=stream is None,
        )
        task = stack.enter_context(bar).add_task(title, total=None, visible=False, count="")

        def update(done: int, total: int | None, note: str) -> None:
            note = terminal_safe(note)
            description = title if print_notes else f"{title} {note}".strip()
            count = _count(done, total, unit)
            bar.update(task, completed=done, total=total, description=description, visible=True, count=count)
            if print_notes and note and note not in printed:
                printed.add(note)
                print_line(note)
            if lines is not None:
                lines.report(done, total, title or note, print_tenth=print_tenths and not print_notes)

        yield update


def counted_from(before: int, report: Callable[[int], None]) -> Callable[[int], None]:
    """Return a function that adds `before` to the number that it is called with, and reports the sum."""
    return lambda done: report(before + done)


def _count(done: int, total: int | None, unit: str | Callable[[], str]) -> str:
    """Return a count such as "400 of 2,026 texts", or "400 texts" if the total is not known."""
    counted = unit if isinstance(unit, str) else unit()
    return f"{done:,}{'' if total is None else f' of {total:,}'} {counted}".rstrip()


@contextmanager
def _progress_lines(
    print_line: Callable[[str], None], title: str, unit: str | Callable[[], str]
) -> Iterator[_ProgressLines]:
    """Print lines about progress until the context ends. A thread prints them while the work reports nothing."""
    lines = _ProgressLines(print_line, title, unit)
    thread = threading.Thread(target=lines.beat, name="attnaudit-heartbeat", daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        lines.ended.set()
        thread.join()


class _ProgressLines:
    """Lines about the progress of work, for logs.

    Args:
        print_line: Prints a line.
        title: The name of the work.
        unit: The plural of what is counted.
    """

    def __init__(self, print_line: Callable[[str], None], title: str, unit: str | Callable[[], str]) -> None:
        self.ended = threading.Event()
        self._print_line = print_line
        self._unit = unit
        self._lock = threading.Lock()
        self._what = title
        self._done, self._first_done, self._tenths = 0, 0, 0
        self._total: int | None = None
        self._started = self._printed = time.monotonic()

    def report(self, done: int, total: int | None, what: str, *, print_tenth: bool) -> None:
        """Record the progress. Print it if `print_tenth` is True and another tenth of the work is done."""
        with self._lock:
            if total != self._total or done < self._done:  # other work begins
                self._first_done, self._tenths, self._started = done, 0, time.monotonic()
            self._what, self._done, self._total = what, done, total
            tenths = done * 10 // total if total else 0
            if print_tenth and tenths > self._tenths:
                self._tenths = tenths
                self._print()

    def beat(self) -> None:
        """Print a line whenever no line was printed for `HEARTBEAT_SECONDS`, until `ended` is set."""
        while not self.ended.wait(max(0.0, self._printed + HEARTBEAT_SECONDS - time.monotonic())):
            with self._lock:
                if time.monotonic() - self._printed >= HEARTBEAT_SECONDS:
                    self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        text = self._what or "starting"
        if self._done or self._total is not None:
            text += f": {_count(self._done, self._total, self._unit)}"
        left = self._seconds_left()
        self._print_line(text + (f", about {duration(left)} left" if left else ""))

    def _seconds_left(self) -> float:
        """Return the estimated remaining time; 0 if it is not known."""
        finished = self._done - self._first_done
        if finished <= 0 or self._total is None:
            return 0.0
        return (time.monotonic() - self._started) / finished * (self._total - self._done)
