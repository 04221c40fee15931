"""Report the progress of a run in one unit: the rows of all its models and data sets."""

from __future__ import annotations

from attnaudit.progress import ProgressCallback
from attnaudit.records import UnitNames
from attnaudit.records.unit_names import TOKENS_OF_TEXTS


class TextProgress:
    """A `ProgressCallback` that converts the progress on one pair to the progress of the whole run, in texts.

    A pair is one model on one data set. Measuring also reports steps within a batch, such as erased texts. These steps
    are shown as a remark, and are not counted as texts.

    Args:
        shown: Shows the progress of the run.
        model: The name of the model.
        data: The name of the data set.
        before: The number of texts that were measured earlier in the run.
        pairs: The number of pairs that are still to be measured, including this one. Every other pair counts as if it
            had as many texts as this one.

    Attributes:
        names: What the rows and the units of the model are called.
    """

    def __init__(self, shown: ProgressCallback, *, model: str, data: str, before: int, pairs: int) -> None:
        self._shown = shown
        self._title = f"measuring {model} on {data}"  # the note of `attnaudit.engine.measuring.measure`
        self._before = before
        self._pairs = pairs
        self._done = 0
        self._total: int | None = None
        self.names: UnitNames = TOKENS_OF_TEXTS

    def phase(self, what: str) -> None:
        """Report work that comes before the first row, such as "loading demo"."""
        self._shown(self._before, None, what)

    def __call__(self, done: int, total: int | None, note: str) -> None:
        """Report the progress of measuring one pair. `total` is None as long as another block of rows may follow."""
        remark = ""
        if note == self._title:
            self._done, self._total = done, total
            remark = " (checking the results)" if done == total else ""
        elif total:
            remark = f" ({self.names.named(note)}: {done / total:.0%})"
        every = None if self._total is None else self._before + self._total * self._pairs
        self._shown(self._before + self._done, every, self._title + remark)
