"""How the attention of a model is observed: through Transformers' attention interface or through its softmax."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from attnaudit.adapters.huggingface.recorder import Observer, observing


class Kernel(Protocol):
    """A way to observe the attention of a model.

    Attributes:
        name: The name that reports show.
        calls_attention_function: True if the observer computes the whole attention, in `Observer.attend`; False if it
            receives only the softmax and the values.
    """

    @property
    def name(self) -> str: ...

    @property
    def calls_attention_function(self) -> bool: ...

    def observe(self, model: Any, observer: Observer | None) -> AbstractContextManager[None]:
        """Pass every attention that the model computes inside the context to `observer`.

        If `observer` is None, it is passed to the observer of the surrounding context, if there is one.
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
