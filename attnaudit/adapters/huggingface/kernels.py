"""How a model's attention is reached, and whether its logits are still those of the model as it ships."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from attnaudit.adapters.huggingface import attention_interface
from attnaudit.adapters.huggingface.recorder import Observer, observed
from attnaudit.adapters.protocol import Inputs
from attnaudit.errors import AdapterError

if TYPE_CHECKING:
    from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter

#: Largest difference between the logits here and the shipped kernel's, for logits up to one.
TOLERANCE = 1e-4


class Kernel(Protocol):
    """name: as a report says it. calls_attention: the attention function is called, not only its softmax seen."""

    @property
    def name(self) -> str: ...

    @property
    def calls_attention(self) -> bool: ...

    def open(self, model: Any, by: Observer | None) -> Any:
        """A context in which every attention of the model is shown to `by`, or to the observer around it if None."""
        ...


class Interface:
    """Through Transformers' attention interface."""

    name = "interface"
    calls_attention = True

    @contextmanager
    def open(self, model: Any, by: Observer | None) -> Iterator[None]:
        with ExitStack() as stack:
            if by is not None:
                stack.enter_context(observed(by))
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """What the model was before it was made ready. implementation: its attention kernel. dtype: of its weights. again:
    loads it anew with a dtype and a kernel; None where there is nothing to load from. note: what else to say."""

    implementation: str
    dtype: torch.dtype
    again: Callable[[torch.dtype, str], Any] | None = None
    note: str = ""


def _logits(adapter: HuggingFaceAdapter, model: Any, inputs: Inputs) -> Tensor:
    return adapter.parts.head.logits(model, adapter.arguments(inputs), adapter.masks(inputs)[adapter.written]).float()


def agreement(adapter: HuggingFaceAdapter, inputs: Inputs) -> str:
    """As `HuggingFaceAdapter.shipped`."""
    shipped = adapter.parts.shipped
    ours = adapter.run(inputs).logits.float()
    theirs = _as_shipped(adapter, inputs)
    gap = float((ours - theirs).abs().max())
    if not gap <= TOLERANCE * max(1.0, float(theirs.abs().max())):
        raise AdapterError(
            f"The logits differ by {gap:.2g} from those of the model's own {shipped.implementation} kernel, expected "
            f"at most {TOLERANCE:g}: what would be audited is not what ships. Report the architecture, "
            f"{type(adapter.model).__name__}."
        )
    facts = [f"{shipped.implementation} kernel as shipped: logits differ by at most {gap:.1e}"]
    if shipped.note:
        facts.append(shipped.note)
    if shipped.dtype not in (torch.float32, torch.float64):
        facts.append(_in_its_own_type(adapter, inputs, ours))
    return "; ".join(facts)


def _as_shipped(adapter: HuggingFaceAdapter, inputs: Inputs) -> Tensor:
    """(B, C) logits in float32 by the kernel that the model has of its own."""
    shipped, model = adapter.parts.shipped, adapter.model
    if attention_interface.implementation(model) == shipped.implementation:
        return _logits(adapter, model, inputs)
    if attention_interface.honoured(model):
        with attention_interface.using(model, shipped.implementation):
            return _logits(adapter, model, inputs)
    if shipped.again is None:
        return _logits(adapter, model, inputs)
    return _logits(adapter, shipped.again(torch.float32, shipped.implementation).to(adapter.device).eval(), inputs)


def _in_its_own_type(adapter: HuggingFaceAdapter, inputs: Inputs, ours: Tensor) -> str:
    shipped = adapter.parts.shipped
    name = str(shipped.dtype).removeprefix("torch.")
    if shipped.again is None:
        return f"given in {name}, audited in float32"
    try:
        model = shipped.again(shipped.dtype, shipped.implementation).to(adapter.device).eval()
        gap = float((_logits(adapter, model, inputs) - ours).abs().max())
    except RuntimeError as error:
        return f"checkpoint is {name}, audited in float32; it could not be run in {name} here ({error})"
    return f"checkpoint is {name}, audited in float32: logits differ by at most {gap:.2g}"
