"""Passes in which the last layer of a model computes only what the logits are read from.

Many classifiers read their logits from a single token, such as [CLS]. After the attention of the last layer, the states
of all other tokens have no effect on the logits. The modules that follow this attention therefore run only on the state
of the token that is read. In a model with six layers, this saves about an eighth of a pass.

A model that reads tokens other than the expected one would get wrong logits. In the output of the last layer, the
states of all other tokens are therefore set to NaN, so that such a model returns NaN instead.

Shapes: B rows, T tokens, m features.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention_kernels import Kernel
from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.function_call import FunctionCall
from attnaudit.adapters.huggingface.layout import Layout
from attnaudit.adapters.huggingface.read_tokens import ReadTokens, read_positions
from attnaudit.adapters.huggingface.recorder import FunctionObserver, Observer
from attnaudit.errors import AdapterError

#: The mask of the pass that the current thread or task is running. Hooks also run in passes of other threads, and must
#: not change them.
_current_mask: ContextVar[Tensor | None] = ContextVar("attnaudit_last_layer", default=None)


@dataclass(frozen=True, kw_only=True)
class LastLayer:
    """The last layer of a model, and its modules that need to run only on the token that the logits are read from.

    Attributes:
        layer: The layer.
        modules: The linear layers and normalisations that run after the last attention of the layer.
        read_tokens: The token that the logits are read from: "first" or "last".
    """

    layer: nn.Module
    modules: tuple[nn.Module, ...]
    read_tokens: ReadTokens

    def logits(self, mask: Tensor, run: Callable[[], Tensor]) -> Tensor:
        """Run the model, but run `modules` only on the token that the logits are read from.

        Args:
            mask: (B, T) mask of the stream that the logits are read from, True on tokens.
            run: Runs the model and returns the logits (B, C).

        Raises:
            AdapterError: The logits of some row depend on another token.
        """
        rows, width = mask.shape
        positions = read_positions(mask, self.read_tokens)
        index = positions[:, None, None]
        is_read = (torch.arange(width, device=mask.device) == positions[:, None])[:, :, None]
        states_read: list[Tensor] = []

        def select(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            states = args[0] if args and _current_mask.get() is mask else None
            if not isinstance(states, Tensor) or tuple(states.shape[:-1]) != (rows, width):
                return None
            return (states.gather(1, index.to(states.device).expand(-1, 1, states.shape[2])), *args[1:])

        def remove_others(_module: nn.Module, _args: object, output: Any) -> Any:
            if _current_mask.get() is not mask:
                return None
            states = output if isinstance(output, Tensor) else output[0]
            states = torch.where(is_read.to(states.device), states, torch.nan)
            states_read.append(states.detach())
            return states if isinstance(output, Tensor) else (states, *output[1:])

        handles = [module.register_forward_pre_hook(select) for module in self.modules]
        token = _current_mask.set(mask)
        with temporary_hooks([*handles, self.layer.register_forward_hook(remove_others)]):
            try:
                logits = run()
            finally:
                _current_mask.reset(token)
        invalid = ~logits.detach().isfinite().all(-1)
        if bool(invalid.any()):
            (states,) = states_read
            states = states.to(index.device)
            valid_state = states.gather(1, index.expand(-1, 1, states.shape[2])).isfinite().flatten(1).all(1)
            if bool((invalid & valid_state).any()):
                raise AdapterError(
                    f"The logits of {int((invalid & valid_state).sum())} of {rows} rows depend on tokens other than "
                    f"the {self.read_tokens} one. When the model was loaded, its logits depended only on the state "
                    "of this token after the last layer. A model in which the input decides which tokens are read "
                    "cannot be audited."
                )
        return logits


class _LastCall(FunctionObserver):
    """An observer that computes the model's own attention, and notes when the last attention call has been made.

    Args:
        module: The attention module that makes the last call.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.made = False

    def attend(self, call: FunctionCall) -> tuple[Tensor, Tensor]:
        self.made = self.made or call.module is self.module
        return call.eager()


def find_last_layer(
    layout: Layout, kernel: Kernel, read_tokens: ReadTokens, run: Callable[[Observer], object]
) -> LastLayer | None:
    """Find the modules of the last layer that run after its attention.

    Args:
        layout: The parts of the model.
        kernel: Passes the attention to observers.
        read_tokens: The tokens that the logits are read from.
        run: Runs the model on some tokens, with an observer of its attention.

    Returns:
        The last layer. None if the logits are read from several tokens, if the last attention of the model is outside
        its last layer, or if this attention cannot be observed as a call of an attention function.
    """
    last = layout.calls[-1]
    layer = layout.layers[-1] if layout.layers else None
    shared = (
        sum(other is layer for other in layout.layers) > 1 or sum(c.module is last.module for c in layout.calls) > 1
    )
    if layer is None or shared or last.time_first or last.layer_call != len(layout.layers) - 1:
        return None
    if read_tokens not in ("first", "last") or not kernel.calls_attention_function:
        return None
    observer, after = _LastCall(last.module), dict[int, nn.Module]()

    def note(module: nn.Module, _args: object) -> None:
        if observer.made:
            after[id(module)] = module

    leaves = [module for module in layer.modules() if not list(module.children()) and list(module.parameters())]
    with temporary_hooks([module.register_forward_pre_hook(note) for module in leaves]):
        run(observer)
    return LastLayer(layer=layer, modules=tuple(after.values()), read_tokens=read_tokens) if after else None
