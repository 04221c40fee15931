"""Explain why a model fails when it runs on synthetic tokens for the first time."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from attnaudit.adapters.huggingface.attention import attention_interface
from attnaudit.adapters.huggingface.checkpoints.checkpoint_files import CONFIG, first_line
from attnaudit.adapters.huggingface.checkpoints.other_tasks import ADAPTER
from attnaudit.adapters.huggingface.outputs.output_heads import Head
from attnaudit.adapters.huggingface.texts.input_builder import InputBuilder, single_row
from attnaudit.adapters.huggingface.wrapped_models import EXAMPLE, CustomModel, name_of
from attnaudit.adapters.protocol import Inputs
from attnaudit.errors import AdapterError

#: Argument of a model's forward() -> what it takes in addition to texts.
_OTHER_INPUTS = {
    "input_features": "recordings",
    "input_values": "recordings",
    "pixel_values": "pictures",
    "pixel_values_videos": "videos",
}


def trial_failure(
    where: object, head: Head, builder: InputBuilder, implementation: str, error: Exception
) -> AdapterError:
    """Return the error for a model that failed while it was probed. The message gives the cause, and what to do.

    To find the cause, the model runs again without being observed.

    Args:
        where: The folder or the name of the model.
        head: Reads the class logits.
        builder: Builds the model's inputs.
        implementation: The model's own attention kernel.
        error: The exception that was raised while the model was probed.
    """
    model, name = builder.model, name_of(builder.model)
    inputs = builder.synthetic()
    alone = _error_of(head, builder, implementation, inputs)
    if alone is None:
        return AdapterError(
            f"{where}: {name} runs on synthetic tokens, but fails while attnaudit observes or replaces its attention "
            f"({_shown(error)}). Its code computes attention in a way that attnaudit's adapter cannot follow. Write a "
            f"custom adapter: see {ADAPTER}."
        )
    if _error_of(head, builder, implementation, single_row(inputs, 1)) is None:
        return AdapterError(
            f"{where}: {name} runs on a single text, but fails on a batch of texts of different lengths, also without "
            f"attnaudit ({_shown(alone)}). An audit runs batches with padding. Correct the model's code or its "
            f"{CONFIG}, or write a custom adapter that runs one text at a time: see {ADAPTER}."
        )
    codebooks = getattr(model.config, "num_codebooks", None) or 1
    others = [
        f"{argument} ({what})" for argument, what in _OTHER_INPUTS.items() if argument in builder.accepted_arguments
    ]
    if codebooks > 1:
        return AdapterError(
            f"{where}: {name} reads and predicts {codebooks} codes of sound at each step (num_codebooks in {CONFIG}), "
            f"not the tokens of a text. Write a custom adapter: see {ADAPTER}."
        )
    if others:
        return AdapterError(
            f"{where}: {name} does not run on texts alone: its forward() also takes {', '.join(others)}, and fails "
            f"without them ({_shown(alone)}). Wrap the model in a module that adds these inputs, and audit this "
            "module: see docs/transformers.md#a-module-of-your-own."
        )
    if isinstance(model, CustomModel):
        return AdapterError(
            f"{where}: {name} fails on token ids and an attention mask, also without attnaudit ({_shown(alone)}). Pass "
            f"a function that calls it as your own code does, such as {EXAMPLE}. The inputs have token_type_ids only "
            "if the texts have queries: read them with inputs.get('token_type_ids')."
        )
    return AdapterError(
        f"{where}: {name} fails on token ids and an attention mask, also without attnaudit ({_shown(alone)}). Call "
        "model(**tokenizer('a text', return_tensors='pt')) to see the whole error, and correct the settings in "
        f"{CONFIG} that it is about."
    )


def _error_of(head: Head, builder: InputBuilder, implementation: str, inputs: Inputs) -> Exception | None:
    """Return the exception that the model raises if it runs on a batch without being observed; None if it runs."""
    model = builder.model
    try:
        with ExitStack() as stack, torch.no_grad():
            if attention_interface.uses_interface(model):
                stack.enter_context(attention_interface.temporary_implementation(model, implementation))
            head.logits(model, builder.arguments(inputs), builder.output_mask(inputs), inputs.extra)
    # A model's own code may raise any exception. The caller reports it.
    except Exception as error:
        return error
    return None


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
