"""Encode the next shard in another thread, while the model measures a shard on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, pairwise
from typing import TypeVar, cast

from attnaudit.engine.unit_strings import EncodedInstances

T = TypeVar("T")


class EncodingAhead:
    """Encodes at most one shard at a time in another thread.

    The program waits for the GPU in a forward pass. A fast tokenizer does most of its work without holding Python's
    global lock. Both can therefore be done at the same time.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._index = -1
        self._encoded: Future[EncodedInstances] | None = None

    def start(self, index: int, encode: Callable[[], EncodedInstances]) -> None:
        """Begin to encode a shard. `take` returns the result.

        Args:
            index: The number of the shard.
            encode: Encodes it. If it raises an error, `take` raises this error.
        """
        self.wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="attnaudit-encoding")
        self._index, self._encoded = index, self._thread.submit(encode)

    def take(self, index: int) -> EncodedInstances | None:
        """Wait for a shard and return it; None if `start` was not called for this shard.

        Raises:
            Exception: `encode` raised this error.
        """
        if self._encoded is None or index != self._index:
            return None
        encoded, self._encoded = self._encoded, None
        return encoded.result()

    def wait(self) -> None:
        """Wait until no shard is being encoded."""
        if self._encoded is not None:
            wait([self._encoded])


def with_following(items: Iterable[T]) -> Iterator[tuple[T, T | None]]:
    """Yield each item with the one that follows it; the last item with None."""
    return cast("Iterator[tuple[T, T | None]]", pairwise(chain(items, [None])))
