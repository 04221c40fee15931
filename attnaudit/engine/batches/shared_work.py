"""The time and the passes of measures, and of the results that several measures share.

Some results are computed when the first measure needs them, and later measures use them, such as the outputs under
permuted weights. The work for such a result does not belong to the first measure alone. It is counted under a name of
its own, together with the measures that use it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound="SharesWork")
Result = TypeVar("Result")
#: The names of shared results begin with this, so that they differ from the names of measures.
SHARED = "shared: "


@dataclass
class Work:
    """The work for a measure, or for a shared result.

    Attributes:
        seconds: The time in seconds: the wall-clock time, unless another clock was given.
        passes: Name of a call or kind of rows -> how often it was done.
        uses: The names of the shared results that were used.
    """

    seconds: float = 0.0
    passes: Counter[str] = field(default_factory=Counter)
    uses: set[str] = field(default_factory=set)

    def add(self, other: Work) -> None:
        """Add other work to this."""
        self.seconds += other.seconds
        self.passes.update(other.passes)
        self.uses |= other.uses


class Spent:
    """Adds up the work for each measure and for each shared result.

    The results of a measure are on the CPU before its time is added, so the time on a CUDA device is included.

    Args:
        pass_counts: The counts of all passes, which the batches increase.
        clock: Returns the time in seconds.

    Attributes:
        work: Name of a measure or of a shared result -> the work for it.
    """

    def __init__(self, pass_counts: Counter[str], clock: Callable[[], float] = time.perf_counter) -> None:
        self._pass_counts = pass_counts
        self._clock = clock
        self.work: defaultdict[str, Work] = defaultdict(Work)
        self.begin()

    def begin(self) -> None:
        """Start the clock for the next measure."""
        self._open = [Work()]
        self._start()

    def add(self, name: str) -> None:
        """Add to a measure the work since the last call of `begin` or `add`."""
        self._stop()
        self.work[name].add(self._open[0])
        self.begin()

    def use(self, name: str) -> None:
        """Record that the current measure or shared result uses a shared result."""
        self._open[-1].uses.add(SHARED + name)

    @contextmanager
    def sharing(self, name: str) -> Iterator[None]:
        """Add the work inside the context to a shared result, which the current measure or shared result uses."""
        self.use(name)
        self._stop()
        self._open.append(Work())
        self._start()
        yield  # After an error, the batch is abandoned, and `begin` is called before the next one.
        self._stop()
        self.work[SHARED + name].add(self._open.pop())
        self._start()

    def _start(self) -> None:
        self._before = Counter(self._pass_counts)
        self._began = self._clock()

    def _stop(self) -> None:
        current = self._open[-1]
        current.seconds += self._clock() - self._began
        current.passes.update(self._pass_counts - self._before)


class SharesWork:
    """An object with results that several measures share.

    Attributes:
        spent: Where the work for these results is counted; None to count it for the measure that needs them first.
    """

    spent: Spent | None = None

    def shared_name(self, name: str) -> str:
        """Return the name under which the work for a result is counted."""
        return name

    def sharing(self, name: str) -> AbstractContextManager[None]:
        """Return a context in which a shared result is computed."""
        return nullcontext() if self.spent is None else self.spent.sharing(self.shared_name(name))

    def use(self, name: str) -> None:
        """Record that a shared result is used."""
        if self.spent is not None:
            self.spent.use(self.shared_name(name))


class shared_result(Generic[Owner, Result]):  # noqa: N801
    """Like `functools.cached_property`, for a result that several measures share."""

    def __init__(self, compute: Callable[[Owner], Result]) -> None:
        self._compute = compute
        self._name = compute.__name__.lstrip("_")
        self.__doc__ = compute.__doc__

    def __get__(self, owner: Owner, _type: type[Owner]) -> Result:
        known: dict[str, Result] = owner.__dict__
        if self._name in known:
            owner.use(self._name)
        else:
            with owner.sharing(self._name):
                known[self._name] = self._compute(owner)
        return known[self._name]

    def __set__(self, owner: Owner, _value: Result) -> None:
        raise AttributeError(f"{self._name} cannot be set")  # With this method, __get__ is called at every access.
