"""Compare the audited logits with the logits of the original model in its own attention kernel and precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface import attention_interface
from attnaudit.adapters.huggingface.runner import Runner
from attnaudit.adapters.protocol import Inputs
from attnaudit.errors import AdapterError

#: Largest difference in logits that rounding explains, if the absolute logits are at most 1. For larger logits, it is
#: multiplied by the largest absolute logit.
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalModel:
    """A model before it was prepared for the audit: its kernel, its precision, and a function that loads it.

    Attributes:
        implementation: Name of its attention kernel.
        dtype: Data type of its weights.
        load: (data type, kernel) -> the model, loaded from its folder or copied from the model in memory. The kernel is
            ignored for a model in memory. None for a float32 model in memory, which is audited without a copy.
        note: A remark for reports; "" if there is none.
    """

    implementation: str
    dtype: torch.dtype
    load: Callable[[torch.dtype, str], Any] | None = None
    note: str = ""


def compare_with_original(runner: Runner, original: OriginalModel, inputs: Inputs) -> str:
    """Describe how far the audited logits of a batch are from those of the original model.

    Raises:
        AdapterError: In float32, the logits differ by more than rounding explains. If the original model has another
            precision, the result also describes how much the precision changes the logits. This raises no error.
    """
    audited = runner.run(inputs).logits.float()
    expected = _original_kernel_logits(runner, original, inputs)
    difference = float((audited - expected).abs().max())
    limit = TOLERANCE * max(1.0, float(expected.abs().max()))
    if not difference <= limit:
        raise AdapterError(
            f"The logits differ by {difference:.2g} from those of the model's own {original.implementation} kernel; "
            f"expected at most {limit:.2g}. The audit would measure a different model from the one in use. Please "
            f"report this architecture, {runner.name}, to the maintainers of attnaudit."
        )
    sentences = [f"{original.implementation} kernel of the original model: logits differ by at most {difference:.1e}"]
    if original.note:
        sentences.append(original.note)
    if original.dtype not in (torch.float32, torch.float64):
        sentences.append(_describe_precision(runner, original, inputs, audited))
    return "; ".join(sentences)


def _original_kernel_logits(runner: Runner, original: OriginalModel, inputs: Inputs) -> Tensor:
    """Compute the logits (B, C) in float32 with the model's own kernel."""
    model = runner.model
    if attention_interface.current_implementation(model) == original.implementation:
        return _logits(runner, model, inputs)
    if attention_interface.uses_interface(model):
        with attention_interface.temporary_implementation(model, original.implementation):
            return _logits(runner, model, inputs)
    if original.load is None:
        return _logits(runner, model, inputs)
    reloaded = original.load(torch.float32, original.implementation)
    return _logits(runner, reloaded.to(runner.builder.device).eval(), inputs)


def _describe_precision(runner: Runner, original: OriginalModel, inputs: Inputs, audited: Tensor) -> str:
    """Describe how far the logits of the model in its own precision are from the audited logits."""
    dtype = str(original.dtype).removeprefix("torch.")
    if original.load is None:
        return f"the model is {dtype}, and is audited in float32"
    try:
        model = original.load(original.dtype, original.implementation).to(runner.builder.device).eval()
        difference = float((_logits(runner, model, inputs) - audited).abs().max())
    except RuntimeError as error:
        return (
            f"the weights are {dtype}, and are audited in float32; the model could not be run in {dtype} here ({error})"
        )
    return f"the weights are {dtype}, and are audited in float32: logits differ by at most {difference:.2g}"


def _logits(runner: Runner, model: Any, inputs: Inputs) -> Tensor:
    builder = runner.builder
    return runner.head.logits(model, builder.arguments(inputs), builder.output_mask(inputs)).float()
