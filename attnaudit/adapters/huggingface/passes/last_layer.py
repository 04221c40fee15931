"""Passes in which the last layer of a model computes only what the logits are read from.

Many classifiers read their logits from a single token, such as [CLS]. After the attention of the last layer, the states
of all other tokens have no effect on the logits. The modules that follow this attention therefore run only on the state
of the token that is read. In a model with six layers, this saves about an eighth of a pass. If a pass without gradients
needs no other weights of the last attention, the attention itself computes only the query of this token.

A model that reads tokens other than the expected one would get wrong logits. In the output of the last layer, and where
only one query is computed, the numbers of all other tokens are therefore set to NaN, so that such a model returns NaN
instead.

Shapes: B rows, T tokens, m features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.attention_kernels import Kernel
from attnaudit.adapters.huggingface.attention.function_call import FunctionCall, alone_among_nan, only_query_used
from attnaudit.adapters.huggingface.attention.layout import Layout
from attnaudit.adapters.huggingface.attention.recorder import FunctionObserver, Observer
from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.outputs.read_tokens import ReadTokens, read_positions
from attnaudit.adapters.huggingface.passes.equal_states import is_linear
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
        attention: The module of its last attention.
        single_query: Whether passes without gradients may compute only one query of this attention.
        of_queries: The linear layers that compute nothing but the queries of this attention.
    """

    layer: nn.Module
    modules: tuple[nn.Module, ...]
    read_tokens: ReadTokens
    attention: nn.Module
    single_query: bool = False
    of_queries: tuple[nn.Module, ...] = ()

    def without_hooked_layers(self) -> LastLayer:
        """Return the last layer without the `of_queries` that have hooks. Hooks expect the states of all tokens."""
        free = [module for module in self.of_queries if not (module._forward_hooks or module._forward_pre_hooks)]
        return replace(self, of_queries=tuple(free))

    def logits(self, mask: Tensor, run: Callable[[], Tensor]) -> Tensor:
        """Run the model, but run `modules` only on the token that the logits are read from.

        With `single_query`, the fused kernel must compute the last attention of the pass. It computes only the query of
        this token, and `of_queries` run only on its state.

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

        def distribute(_module: nn.Module, _args: object, output: Any) -> Any:
            one_state = isinstance(output, Tensor) and tuple(output.shape[:-1]) == (rows, 1)
            return alone_among_nan(output, positions, width) if one_state and _current_mask.get() is mask else None

        def remove_others(_module: nn.Module, _args: object, output: Any) -> Any:
            if _current_mask.get() is not mask:
                return None
            states = output if isinstance(output, Tensor) else output[0]
            states = torch.where(is_read.to(states.device), states, torch.nan)
            states_read.append(states.detach())
            return states if isinstance(output, Tensor) else (states, *output[1:])

        of_queries = self.of_queries if self.single_query else ()
        handles: list[Any] = [module.register_forward_pre_hook(select) for module in (*self.modules, *of_queries)]
        handles += [module.register_forward_hook(distribute) for module in of_queries]
        token = _current_mask.set(mask)
        with ExitStack() as stack:
            stack.enter_context(temporary_hooks([*handles, self.layer.register_forward_hook(remove_others)]))
            if self.single_query:
                stack.enter_context(only_query_used(self.attention, positions))
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
    if not after:
        return None
    return LastLayer(layer=layer, modules=tuple(after.values()), read_tokens=read_tokens, attention=last.module)


class _CapturedCall(FunctionObserver):
    """An observer that computes the model's own attention, and keeps the last call of an attention module.

    Args:
        module: The attention module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.call: FunctionCall | None = None

    def attend(self, call: FunctionCall) -> tuple[Tensor, Tensor]:
        if call.module is self.module:
            self.call = call
        return call.eager()


def find_layers_of_queries(last_layer: LastLayer, mask: Tensor, run: Callable[[Observer], object]) -> LastLayer:
    """Find the linear layers that compute nothing but the queries of the last attention.

    A linear layer is one of them if only queries change when its outputs at all tokens except the one that is read
    become NaN: the attention must then be called with the same numbers, except for the queries of these tokens. This
    does not depend on how much the logits depend on the attention.

    Args:
        last_layer: The last layer, without these linear layers.
        mask: (B, T) mask of the stream that the logits are read from, True on tokens.
        run: Runs the model on some tokens, with an observer of its attention.

    Returns:
        The last layer with these linear layers.
    """
    positions = read_positions(mask, last_layer.read_tokens)
    others = torch.ones_like(mask).scatter(1, positions[:, None], False)

    def remove_others(_module: nn.Module, _args: object, output: Any) -> Any:
        if not isinstance(output, Tensor) or output.shape[:-1] != mask.shape:
            return None
        return output.masked_fill(others[:, :, None].to(output.device), torch.nan)

    def call_with(handles: Sequence[Any], observer: _CapturedCall) -> tuple[list[Tensor], Tensor]:
        """Return the numbers that the attention is called with, without the other queries, and the other queries."""
        with temporary_hooks(handles):
            run(observer)
        assert observer.call is not None
        read = observer.call.at(positions[:, None])
        given = [read.query, read.key, read.value, read.mask, *read.rest.values()]
        queries = observer.call.query.transpose(1, 2)
        return [one for one in given if isinstance(one, Tensor)], queries[others.to(queries.device)]

    observer, before = _CapturedCall(last_layer.attention), dict[int, nn.Module]()

    def note(module: nn.Module, _args: object) -> None:
        if observer.call is None:
            before[id(module)] = module

    linear = [module for module in last_layer.layer.modules() if is_linear(module)]
    unchanged, _ = call_with([module.register_forward_pre_hook(note) for module in linear], observer)
    of_queries = []
    for module in before.values():
        handle = module.register_forward_hook(remove_others)
        given, queries = call_with([handle], _CapturedCall(last_layer.attention))
        same = all(torch.equal(one, other) for one, other in zip(given, unchanged, strict=True))
        if same and bool(queries.isnan().all()):
            of_queries.append(module)
    return replace(last_layer, of_queries=tuple(of_queries))
