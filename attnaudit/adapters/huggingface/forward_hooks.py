"""Context managers for temporary changes to a model: hooks, and parameters that do not require gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def temporary_hooks(handles: Sequence[Any]) -> Iterator[None]:
    """Remove hooks when the context ends. `handles` contains what PyTorch returned when the hooks were registered."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def frozen_parameters(model: nn.Module) -> Iterator[None]:
    """Set `requires_grad` of all parameters of the model to False inside the context."""
    tracked = [p for p in model.parameters() if p.requires_grad]
    try:
        for parameter in tracked:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in tracked:
            parameter.requires_grad_(True)
