"""Whether a model in half precision is audited as it ships, or as a float32 copy."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch

from attnaudit.adapters.huggingface.attention import attention_interface
from attnaudit.adapters.huggingface.checkpoints.checkpoint_files import first_line
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.huggingface.probes.original_model import AS_FLOAT32
from attnaudit.errors import AdapterError, ModelError
from attnaudit.precision import FLOAT32

#: "shipped": the data type of the weights. "float32": a float32 copy of a model in another type.
Precision = Literal["shipped", "float32"]


def can_be_shipped(model: Any, files: str, precision: Precision | None, where: object) -> bool:
    """Return whether a model can be audited in half precision.

    Args:
        model: The model.
        files: What the model reads instead of texts, such as "pictures"; "" for texts.
        precision: What the user asks for; None for the default.
        where: The folder or the name of the model, for messages.

    Raises:
        ModelError: `precision` is invalid, or it is "shipped" but the model cannot be audited in half precision.
    """
    if precision not in (None, *get_args(Precision)):
        raise ModelError(f"{where}: precision is {precision!r}; expected 'shipped' or 'float32'.")
    reason = f"it reads {files}" if files else ""
    if not attention_interface.uses_interface(model):
        reason = "its architecture does not use Transformers' attention interface"
    if reason and precision == "shipped":
        raise ModelError(
            f"{where}: precision is 'shipped', but the model can be audited only in {FLOAT32}, because {reason}. "
            "Remove the setting, or set it to 'float32'."
        )
    return not reason


def require_runs_in_half(runner: Runner, precision: str, where: object) -> None:
    """Check that a model in half precision runs on this machine and gives finite logits. Other models are not run.

    Raises:
        ModelError: An operation is not available in this precision.
        AdapterError: The logits are not finite.
    """
    if precision == FLOAT32:
        return
    try:
        with torch.no_grad():
            logits = runner.logits(runner.builder.synthetic())
    except RuntimeError as error:
        raise ModelError(
            f"{where}: the model cannot run in {precision} on this machine ({first_line(error)}). {AS_FLOAT32}"
        ) from error
    if not bool(logits.isfinite().all()):
        raise AdapterError(
            f"{where}: the logits are not finite in {precision}, but they are in {FLOAT32}. Some numbers are too large "
            f"for {precision}. {AS_FLOAT32}"
        )
