"""Passes that compute the first queries, keys and values of equal states only once.

The variants of a text differ in few tokens. Before the first attention of a pass, the state of a token depends only on
this token and its position, so most states of the variants are equal. The linear layers before this attention then run
only on the distinct states. In a model with six layers, this saves up to a twentieth of a pass.

States count as equal only if all of their numbers are equal. A linear layer gives equal outputs for equal states, up to
rounding.

Shapes: B rows, T tokens, m features, U distinct states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.layout import Layout
from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks

#: The linear layers run on all states if more than this share of them is distinct.
LARGEST_SHARE = 0.75
#: Number of features from which the hash of a state is computed. Equal hashes are confirmed with all features.
HASHED_FEATURES = 32
#: Seed of the random coefficients of the hash.
HASH_SEED = 23


@dataclass(slots=True)
class _Pass:
    """One forward pass.

    Attributes:
        states: The states that the first of the linear layers received; None before it has run.
        distinct: The result of `distinct_states` for them.
    """

    states: Tensor | None = None
    distinct: tuple[Tensor, Tensor] | None = None


#: The pass that the current thread or task is running. Hooks also run in passes of other threads, and must not change
#: them.
_current_pass: ContextVar[_Pass | None] = ContextVar("attnaudit_equal_states", default=None)


@dataclass(frozen=True, kw_only=True)
class FirstLinears:
    """The linear layers that run first in each layer of a model.

    Attributes:
        modules: The linear layers.
    """

    modules: tuple[nn.Module, ...]

    @contextmanager
    def once_for_equal_states(self) -> Iterator[None]:
        """Inside the context, run a pass in which the first linear layers run only on the distinct states.

        If the pass skips layers, these are the linear layers of the first layer that runs. With gradients enabled, or
        on a GPU, all linear layers run on all states, and so do linear layers with hooks, which expect all states.
        """
        on_cpu = all(one.device.type == "cpu" for module in self.modules[:1] for one in module.parameters())
        if torch.is_grad_enabled() or not on_cpu:
            yield
            return
        this_pass = _Pass()

        def select(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            states = args[0] if len(args) == 1 and _current_pass.get() is this_pass else None
            if not isinstance(states, Tensor):
                return None
            if this_pass.states is None:
                this_pass.states, this_pass.distinct = states, distinct_states(states)
            if states is not this_pass.states or this_pass.distinct is None:
                return None
            return (states.flatten(0, 1)[this_pass.distinct[0]],)

        def distribute(_module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            states, distinct = this_pass.states, this_pass.distinct
            if _current_pass.get() is not this_pass or states is None or distinct is None or args[0].dim() != 2:
                return None
            return output[distinct[1]].unflatten(0, states.shape[:2])

        modules = [module for module in self.modules if not (module._forward_hooks or module._forward_pre_hooks)]
        handles: list[Any] = [module.register_forward_pre_hook(select) for module in modules]
        handles += [module.register_forward_hook(distribute) for module in modules]
        token = _current_pass.set(this_pass)
        with temporary_hooks(handles):
            try:
                yield
            finally:
                _current_pass.reset(token)


def distinct_states(states: Tensor) -> tuple[Tensor, Tensor] | None:
    """Find equal states.

    Args:
        states: (B, T, m) states.

    Returns:
        (U,) index of the first of the states that are equal to each other, among all B·T states; and (B·T,) for each
        state, the position of its equal in this index. None if more than `LARGEST_SHARE` of the states are distinct, or
        if the states are not float32 numbers on a CPU.
    """
    if states.dim() != 3 or states.dtype != torch.float32 or states.device.type != "cpu":
        return None
    flat = states.flatten(0, 1)
    bits = flat[:, :HASHED_FEATURES].contiguous().view(torch.int32).long()
    random = torch.Generator().manual_seed(HASH_SEED)
    hashes = (bits * torch.randint(-(2**31), 2**31, bits.shape[1:], generator=random)).sum(1)
    found, position = torch.unique(hashes, return_inverse=True)
    if len(found) > LARGEST_SHARE * len(flat):
        return None
    order = torch.arange(len(flat))
    first = torch.full_like(found, len(flat)).scatter_reduce_(0, position, order, "amin")
    return (first, position) if torch.equal(flat[first][position], flat) else None


def find_first_linears(layout: Layout, run: Callable[[], object]) -> FirstLinears | None:
    """Find the linear layers that run first in each layer. They receive the same states.

    Args:
        layout: The parts of the model.
        run: Runs the model on some tokens.

    Returns:
        The linear layers; None if there are none.
    """
    found: dict[int, nn.Module] = {}
    states_of: dict[int, Tensor] = {}

    def note_in(layer: nn.Module) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def note(module: nn.Module, args: tuple[Any, ...]) -> None:
            if len(args) == 1 and isinstance(args[0], Tensor) and states_of.setdefault(id(layer), args[0]) is args[0]:
                found[id(module)] = module

        return note

    handles = [
        module.register_forward_pre_hook(note_in(layer))
        for layer in layout.distinct_layers
        for module in layer.modules()
        if is_linear(module)
    ]
    with temporary_hooks(handles):
        run()
    return FirstLinears(modules=tuple(found.values())) if found else None


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer, which computes the output of each state from this state alone."""
    from transformers.pytorch_utils import Conv1D

    return type(module) in (nn.Linear, Conv1D)
