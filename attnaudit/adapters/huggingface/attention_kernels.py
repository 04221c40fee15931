"""Kernels, which observe the attention of a model through Transformers' attention interface or through its softmax."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from attnaudit.adapters.huggingface.recorder import Observer, observing


class Kernel(Protocol):
    """Interface of a kernel, which passes the attention of a model to an observer.

    Attributes:
        name: The name that reports show.
        calls_attention_function: True if the kernel calls `Observer.attend`, which computes the whole attention. False
            if it calls `Observer.on_softmax` and `Observer.on_values`, which receive the softmax and the values.
    """

    @property
    def name(self) -> str: ...

    @property
    def calls_attention_function(self) -> bool: ...

    def observe(self, model: Any, observer: Observer | None) -> AbstractContextManager[None]:
        """Return a context manager. Inside it, all attention that the model computes is passed to an observer.

        Args:
            model: The model.
            observer: The observer. None for the observer of the surrounding context, or no observer if there is none.
        """
        ...


class InterfaceKernel:
    """Observes attention through Transformers' attention interface."""

    name = "interface"
    calls_attention_function = True

    @contextmanager
    def observe(self, model: Any, observer: Observer | None) -> Iterator[None]:
        with ExitStack() as stack:
            if observer is not None:
                stack.enter_context(observing(observer))
            yield
