"""Models in half precision: their results as float32 numbers, and a context in which they compute in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attnaudit.precision import FLOAT32, HALF

#: The data types with 16 bits.
HALF_TYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in HALF)


def widened(values: Tensor) -> Tensor:
    """Convert values in half precision to float32. Values of other types are returned unchanged."""
    return values.float() if values.dtype in HALF_TYPES else values


def name_of_type(dtype: torch.dtype) -> str:
    """Return the name of a data type without "torch."."""
    return str(dtype).removeprefix("torch.")


def precision_of(model: nn.Module) -> str:
    """Return the type with which a model computes: "float16" or "bfloat16" if most of its values have it.

    The result is "float32" for all other models.
    """
    sizes: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    most = max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)
    return name_of_type(most) if most in HALF_TYPES else FLOAT32


def type_of(model: nn.Module) -> torch.dtype:
    """Return the data type of a model whose parameters may have several types.

    If `precision_of` returns a half precision, the result is this type. Otherwise, it is the type of the first
    parameter that is not float32, since such a model can be audited only as a float32 copy. If all parameters are
    float32, it is float32.
    """
    precision = precision_of(model)
    if precision != FLOAT32:
        return HALF_TYPES[HALF.index(precision)]
    types = (one.dtype for one in model.parameters() if one.is_floating_point())
    return next((dtype for dtype in types if dtype != torch.float32), torch.float32)


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Make a model compute in float32 inside the context. Afterwards, it has its own tensors again.

    Parameters and buffers in half precision are replaced by float32 copies. If the model is already inside such a
    context, nothing changes. accelerate converts weights that it has offloaded to the type of their parameters, so
    these weights are float32 as well.
    """
    own = [
        (tensors, name, one.data)
        for module in model.modules()
        for tensors in (module._parameters, module._buffers)
        for name, one in tensors.items()
        if one is not None and one.dtype in HALF_TYPES
    ]
    try:
        for tensors, name, data in own:
            one = tensors[name]
            if one is not None and one.dtype in HALF_TYPES:  # A shared tensor has several names.
                one.data = data.float()
        yield
    finally:
        for tensors, name, data in own:
            # accelerate replaces the parameters of offloaded weights whenever their module runs.
            one = tensors[name]
            if one is not None:
                one.data = data
