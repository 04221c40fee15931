"""Record the states between the layers of a forward pass, and reuse them in passes that skip layers.

Shapes: B rows, V variants of each row, T tokens, G groups of heads that share their values, K keys, d features of a
head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.blockwise_attention import BlockwiseAttention
from attnaudit.adapters.huggingface.attention.layout import Layout
from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks


@dataclass(slots=True)
class LayerStates:
    """The states that one forward pass computed in each layer.

    Attributes:
        inputs: The states (B, T, m) that each layer call read, in the order of the calls, without gradients. An entry
            is None if no argument of the call was a tensor.
        outputs: Everything that each layer call returned, in the same order, without gradients.
        values: Site key -> (B, G, K, d) values that the attention weights were applied to, at the sites whose attention
            was recorded.
        calls: Site key -> the attention call, at the sites whose weights are computed in blocks of queries.
    """

    inputs: list[Tensor | None] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)
    calls: dict[str, BlockwiseAttention] = field(default_factory=dict)


def map_tensors(structure: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor in nested tuples and lists. Named tuples and other objects stay unchanged."""
    if isinstance(structure, Tensor):
        return change(structure)
    if isinstance(structure, tuple) and type(structure) is not tuple:
        return structure
    if isinstance(structure, tuple | list):
        return type(structure)(map_tensors(one, change) for one in structure)
    return structure


def repeat_rows(value: Tensor, rows: int, variants: int, *, time_first: bool = False) -> Tensor:
    """Repeat each row of a tensor, with its copies next to each other.

    Args:
        value: A tensor with an axis of rows.
        rows: Number of rows. A tensor with another number of rows is returned unchanged.
        variants: How many times each row is repeated.
        time_first: Whether the rows are axis 1 instead of axis 0, in tensors with more than two dimensions.
    """
    axis = 1 if time_first and value.dim() > 2 else 0
    return value.repeat_interleave(variants, dim=axis) if value.dim() and value.shape[axis] == rows else value


@contextmanager
def recorded_layer_states(layout: Layout, states: LayerStates) -> Iterator[None]:
    """Inside the context, record the inputs and outputs of every layer call in `states`."""

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        given = kwargs.get("hidden_states", next((a for a in args if isinstance(a, Tensor)), None))
        states.inputs.append(given.detach() if isinstance(given, Tensor) else None)

    def leave(_module: nn.Module, _args: object, output: Any) -> None:
        states.outputs.append(map_tensors(output, Tensor.detach))

    layers = layout.distinct_layers
    handles = [layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in layers]
    handles += [layer.register_forward_hook(leave) for layer in layers]
    with temporary_hooks(handles):
        yield


@contextmanager
def skipped_layers(layout: Layout, skipped: Collection[int], output_of: Callable[[int], Any]) -> Iterator[None]:
    """Inside the context, skip some layer calls of a pass.

    Args:
        layout: The model's layout.
        skipped: Indices of the layer calls to skip, counted from 0.
        output_of: Function from the index of a skipped call to the output that the call returns.
    """
    calls = 0

    def skip(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return output_of(calls - 1) if calls - 1 in skipped else forward(*args, **kwargs)

        return call

    layers = layout.distinct_layers
    before = [layer.__dict__.get("forward") for layer in layers]
    try:
        for layer in layers:
            layer.__dict__["forward"] = skip(layer.forward)
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            del layer.__dict__["forward"]
            if forward is not None:
                layer.__dict__["forward"] = forward
