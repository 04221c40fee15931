"""Attention through Transformers' own attention interface: a registered function that delegates to the architecture.

A kernel of one's own would be silently wrong for architectures with sinks, caps or biases, so the function calls the
`eager_attention_forward` of the module where the attention class lives, and only what is replaced is computed again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Tensor, nn

from attnaudit.adapters.huggingface.recorder import Eager, observer
from attnaudit.errors import AdapterError

#: The name under which the function is registered.
NAME = "attnaudit"


@cache
def register() -> None:
    """Register the attention function, and its mask function: without one the mask would be None."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **rest: Any
) -> tuple[Tensor, Tensor]:
    """The architecture's eager attention, shown to the observer of the pass if there is one."""
    eager = eager_of(type(module))
    by = observer.get()
    if by is None:
        return eager(module, query, key, value, attention_mask, **rest)
    return by.attend(eager, module, query, key, value, attention_mask, **rest)


def eager_of(kind: type) -> Eager:
    """The `eager_attention_forward` beside an attention class. Raises AdapterError where there is none."""
    for one in kind.__mro__:
        found: Eager | None = getattr(sys.modules.get(one.__module__), "eager_attention_forward", None)
        if found is not None:
            return found
    raise AdapterError(
        f"{kind.__name__} has no eager_attention_forward beside it to delegate to. Define one in {kind.__module__}, as "
        "Transformers' own architectures do, or wrap the model in an adapter of your own."
    )


def honoured(model: Any) -> bool:
    """Whether the architecture says that it takes its attention function from the interface."""
    return bool(type(model)._can_set_attn_implementation())


def implementation(model: Any) -> str:
    """The name of the attention function that the model uses now."""
    return str(model.config._attn_implementation)


@contextmanager
def using(model: Any, name: str) -> Iterator[None]:
    """The model with another attention function, its own put back at the end."""
    own = implementation(model)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(own)
