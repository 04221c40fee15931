"""Attention of architectures that do not take it from the interface: the softmax in their attention modules.

A torch function mode sees every softmax while a model runs; those inside an attention module are its weights. Fused
kernels have no softmax to see, so such a model is loaded with its eager attention. Weights are (B, H, Q, K).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnaudit.adapters.huggingface.recorder import Observer, observed, observer
from attnaudit.adapters.huggingface.site_discovery import hooks

_MIX = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm}
_SOFTMAX = {torch.softmax, torch.Tensor.softmax, nn.functional.softmax, torch.special.softmax}


class Softmaxes(TorchFunctionMode):
    """Shows the observer every softmax that is taken over keys inside an attention module."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[nn.Module] = []
        self._weights: Tensor | None = None

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        by = observer.get()
        if by is None or not self.inside or not isinstance(found, Tensor):
            return found
        if function in _MIX:
            self._mixed(by, args, found)
        if function not in _SOFTMAX or found.dim() != 4:
            return found
        self._weights = by.soften(self.inside[-1], args[0] if args else (kwargs or {})["input"], found)
        return self._weights

    def _mixed(self, by: Observer, args: tuple[Any, ...], found: Tensor) -> None:
        """Is this product that of the weights, or of a view of them, with the values?"""
        own = self._weights
        if own is None or len(args) < 2 or args[0].data_ptr() != own.data_ptr() or args[0].numel() != own.numel():
            return
        self._weights = None
        value = args[1]
        # Either (B, G, K, d), or the same with rows and heads in one.
        value = value if value.dim() == 4 else value.reshape(len(own), -1, *value.shape[-2:])
        if value.shape[1] and own.shape[1] % value.shape[1] == 0:
            by.mix(value, found.reshape(*own.shape[:2], *found.shape[-2:]))


class Fallback:
    """Through the softmax of attention modules."""

    name = "fallback: softmax"
    calls_attention = False

    @contextmanager
    def open(self, model: Any, by: Observer | None) -> Iterator[None]:
        mode = Softmaxes()

        def enter(module: nn.Module, _args: object) -> None:
            mode.inside.append(module)

        def leave(_module: nn.Module, _args: object, _output: object) -> None:
            mode.inside.pop()

        attending = [m for m in model.modules() if innermost(m)]
        handles = [m.register_forward_pre_hook(enter) for m in attending]
        handles += [m.register_forward_hook(leave, always_call=True) for m in attending]
        with ExitStack() as stack:
            stack.enter_context(hooks(handles))
            if by is not None:
                stack.enter_context(observed(by))
            stack.enter_context(mode)
            yield


def innermost(module: nn.Module) -> bool:
    """Whether it is named attention and holds no other that is."""
    names = [type(m).__name__.lower() for m in module.modules()]
    return "attention" in names[0] and not any("attention" in name for name in names[1:])
