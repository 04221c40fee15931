"""Kernels: the ways to observe the attention of a model.

One kernel uses Transformers' attention interface. The other kernel, in `softmax_hook`, intercepts the softmax in the
model's attention modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from attnaudit.adapters.huggingface.attention import attention_interface
from attnaudit.adapters.huggingface.attention.recorder import Observer, observing
from attnaudit.adapters.huggingface.attention.softmax_hook import SoftmaxKernel


class Kernel(Protocol):
    """Interface of a kernel. A kernel passes the attention of a model to an `Observer`.

    Attributes:
        name: The name of the kernel in reports.
        calls_attention_function: True if the kernel calls `Observer.attend`, which computes the whole attention. False
            if it calls `Observer.on_softmax` and `Observer.on_values`, which receive the softmax and the values.
    """

    @property
    def name(self) -> str: ...

    @property
    def calls_attention_function(self) -> bool: ...

    def observe(self, model: Any, observer: Observer | None) -> AbstractContextManager[None]:
        """Return a context manager that passes all attention of the model to an observer.

        Args:
            model: The model.
            observer: The observer. If it is None, an observer that an enclosing `with` block has set stays active.
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


def prepare_kernel(model: Any) -> Kernel:
    """Return the kernel for a model, and make the model call attnaudit's attention function if it can."""
    if not attention_interface.uses_interface(model):
        return SoftmaxKernel()
    attention_interface.register()
    attention_interface.set_implementation(model, attention_interface.NAME)
    return InterfaceKernel()
