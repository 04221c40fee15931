"""Access to a model's attention through Transformers' attention interface.

attnaudit registers an attention function under its own name. Some architectures add attention sinks, caps on the scores
or biases. A general attention function would ignore these additions and give wrong results without any error. The
registered function therefore calls the architecture's own `eager_attention_forward`, from the Python module that
defines the attention class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.function_call import EagerAttention, FunctionCall
from attnaudit.adapters.huggingface.attention.recorder import current_observer
from attnaudit.adapters.huggingface.wrapped_models import backbone_of
from attnaudit.errors import AdapterError

#: The name under which the attention function is registered.
NAME = "attnaudit"


@cache
def register() -> None:
    """Register the attention function, and a mask function for it.

    Without a registered mask function, Transformers would call the attention function without a mask.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, attention_mask)


def attention_mask(**arguments: Any) -> Tensor | None:
    """Return the mask that the attention function is called with.

    This is the registered mask function. It returns the mask of eager attention. If the observer skips masks, the
    function instead returns None wherever Transformers passes no mask to the fused kernel.
    """
    from transformers.masking_utils import eager_mask, sdpa_mask

    observer = current_observer.get()
    if observer is None or not observer.skips_masks:
        mask: Tensor | None = eager_mask(**arguments)
        return mask
    allowed: Tensor | None = sdpa_mask(**arguments)
    if allowed is None:
        return None
    # As `eager_mask` does, which would first build the same boolean mask again.
    dtype = arguments.get("dtype", torch.float32)
    nothing = torch.tensor(0.0, device=allowed.device, dtype=dtype)
    return torch.where(allowed, nothing, torch.finfo(dtype).min)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **rest: Any
) -> tuple[Tensor, Tensor | None]:
    """Compute the architecture's eager attention.

    This is the registered attention function. If the current pass has an observer, the observer computes the result.

    Returns:
        (B, Q, H, d) output and (B, H, Q, K) weights. The weights are None if the observer does not compute them.
    """
    observer = current_observer.get()
    causal = False
    if observer is not None and observer.skips_masks and attention_mask is None and query.shape[2] > 1:
        # Transformers decides in the same way whether the fused kernel is causal.
        declared = rest.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if declared is None else declared)
    call = FunctionCall(eager_function(type(module)), module, query, key, value, attention_mask, rest, causal=causal)
    return call.eager() if observer is None else observer.attend(call)


def eager_function(attention_class: type) -> EagerAttention:
    """Return the function `eager_attention_forward` that belongs to an attention class.

    The function is looked up in the Python module that defines the class, then in the modules of its base classes.

    Raises:
        AdapterError: None of these modules defines the function.
    """
    for base in attention_class.__mro__:
        function: EagerAttention | None = getattr(sys.modules.get(base.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise AdapterError(
        f"{attention_class.__name__}: its module {attention_class.__module__} has no function eager_attention_forward, "
        "which must compute the attention weights. Define this function, as Transformers' own architectures do, or "
        "write a custom adapter for the model."
    )


def uses_interface(model: Any) -> bool:
    """Return whether the architecture supports Transformers' attention interface."""
    return bool(type(backbone_of(model))._can_set_attn_implementation())


def current_implementation(model: Any) -> str:
    """Return the name of the attention function that the model uses now."""
    return str(model.config._attn_implementation)


def default_implementation(model: Any) -> str:
    """Return the name of the attention function that Transformers chooses for a model if the user names none."""
    return "sdpa" if getattr(type(backbone_of(model)), "_supports_sdpa", False) else "eager"


def set_implementation(model: Any, name: str) -> None:
    """Let a model, and all models inside it, call another attention function.

    Some versions of Transformers leave out the models inside it whose config has the class of the model's own config,
    such as the two stacks of T5.

    Args:
        model: The model.
        name: The name of the attention function.
    """
    model.set_attn_implementation(name)
    chosen, own = current_implementation(model), type(model.config)
    for inner in backbone_of(model).modules():
        is_model = hasattr(inner, "set_attn_implementation") and type(inner.config) is own
        if is_model and current_implementation(inner) != chosen:
            inner.set_attn_implementation(name)


@contextmanager
def temporary_implementation(model: Any, name: str) -> Iterator[None]:
    """Switch the model to another attention function inside the context."""
    before = current_implementation(model)
    set_implementation(model, name)
    try:
        yield
    finally:
        set_implementation(model, before)
