"""Report the progress of long work through a callback, and show it as a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attnaudit.formatting import terminal_safe

#: Called as callback(number of completed steps, number of all steps, note). The note describes the last or current
#: step.
ProgressCallback = Callable[[int, int, str], None]


@contextmanager
def progress_bar(title: str = "", *, print_notes: bool = False) -> Iterator[ProgressCallback]:
    """Show progress on standard error.

    On a terminal, a bar shows the progress and the estimated remaining time. It disappears at the end. Elsewhere, such
    as in a CI log, a line is printed for every tenth of the work.

    Args:
        title: The name of the work, such as "training".
        print_notes: Whether to print each new note on its own line, on a terminal and elsewhere. No lines are then
            printed for the tenths of the work.

    Yields:
        The callback through which the work reports its progress.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    printed: set[str] = set()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def update(done: int, total: int, note: str) -> None:
            note = terminal_safe(note)
            description = title if print_notes else f"{title} {note}".strip()
            bar.update(task, completed=done, total=total, description=description)
            if print_notes:
                if note and note not in printed:
                    printed.add(note)
                    console.print(note, highlight=False, markup=False, soft_wrap=True)
            elif not console.is_terminal and done * 10 // total > (done - 1) * 10 // total:
                console.print(
                    f"{title or description}: {done} of {total}", highlight=False, markup=False, soft_wrap=True
                )

        yield update
