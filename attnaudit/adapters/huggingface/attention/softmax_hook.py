"""Observe attention through its softmax, for architectures that do not use Transformers' attention interface.

A torch function mode intercepts every softmax while a model runs. A softmax inside an attention module gives the
weights (B, H, Q, K) of the module. Fused kernels compute no separate softmax, so these models must use eager attention.

Shapes: B rows, H heads, G groups of heads that share their values, Q queries, K keys, d features of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnaudit.adapters.huggingface.attention.layout import value_states
from attnaudit.adapters.huggingface.attention.recorder import Observer, current_observer, observing
from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks

_MATMUL = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm}
_SOFTMAX = {torch.softmax, torch.Tensor.softmax, nn.functional.softmax, torch.special.softmax}


class SoftmaxMode(TorchFunctionMode):
    """A torch function mode that passes the result of each softmax inside an attention module to the current observer.

    The result must have four dimensions, or three if rows and heads are joined into one axis. The model continues with
    the weights that the observer returns.

    Attributes:
        active_modules: The attention modules that are running now, the innermost last.
        rows: The number of rows that each active module is called with; 0 if its call has no states.
    """

    def __init__(self) -> None:
        super().__init__()
        self.active_modules: list[nn.Module] = []
        self.rows: list[int] = []
        self._weights: Tensor | None = None

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        observer = current_observer.get()
        if observer is None or not self.active_modules or not isinstance(result, Tensor):
            return result
        if function in _MATMUL:
            self._check_product(observer, args, result)
        if function not in _SOFTMAX:
            return result
        scores, shape, rows = args[0] if args else (kwargs or {})["input"], result.shape, self.rows[-1]
        axis = args[1] if len(args) > 1 else (kwargs or {}).get("dim")
        if result.dim() == 3 and axis in (-1, 2) and rows and shape[0] % rows == 0:
            scores, result = (one.reshape(rows, -1, *shape[1:]) for one in (scores, result))
        if result.dim() != 4:
            return result
        self._weights = observer.on_softmax(self.active_modules[-1], scores, result)
        return self._weights.view(shape)

    def _check_product(self, observer: Observer, args: tuple[Any, ...], product: Tensor) -> None:
        """Pass the values to the observer if this product multiplies them by the latest weights or a view of them."""
        weights = self._weights
        if weights is None or len(args) < 2:
            return
        if args[0].data_ptr() != weights.data_ptr() or args[0].numel() != weights.numel():
            return
        self._weights = None
        value = args[1]
        # Values have the shape (B, G, K, d), or rows and groups are joined into one axis.
        value = value if value.dim() == 4 else value.reshape(len(weights), -1, *value.shape[-2:])
        if value.shape[1] and weights.shape[1] % value.shape[1] == 0:
            observer.on_values(value, product.reshape(*weights.shape[:2], *product.shape[-2:]))


class SoftmaxKernel:
    """Observes attention through the softmax of the attention modules."""

    name = "fallback: softmax"
    calls_attention_function = False

    @contextmanager
    def observe(self, model: Any, observer: Observer | None) -> Iterator[None]:
        mode = SoftmaxMode()

        batch_rows = 0

        def begin(_model: nn.Module, _args: object, kwargs: Mapping[str, Any]) -> None:
            nonlocal batch_rows
            ids = kwargs.get("input_ids")
            batch_rows = len(ids) if isinstance(ids, Tensor) else 0

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            states, _ = value_states(module, args, kwargs)
            mode.active_modules.append(module)
            # The states may have the shape (T, B, m).
            sizes = () if states is None else states.shape[:2]
            mode.rows.append(batch_rows if batch_rows in sizes else sizes[0] if sizes else 0)

        def leave(_module: nn.Module, _args: object, _output: object) -> None:
            mode.active_modules.pop()
            mode.rows.pop()

        attention_modules = [m for m in model.modules() if is_innermost_attention(m)]
        handles = [model.register_forward_pre_hook(begin, with_kwargs=True)]
        handles += [m.register_forward_pre_hook(enter, with_kwargs=True) for m in attention_modules]
        handles += [m.register_forward_hook(leave, always_call=True) for m in attention_modules]
        with ExitStack() as stack:
            stack.enter_context(temporary_hooks(handles))
            if observer is not None:
                stack.enter_context(observing(observer))
            stack.enter_context(mode)
            yield


def is_innermost_attention(module: nn.Module) -> bool:
    """Return whether the class name of a module contains "attention", and no module inside it has such a class name."""
    names = [type(m).__name__.lower() for m in module.modules()]
    return "attention" in names[0] and not any("attention" in name for name in names[1:])
