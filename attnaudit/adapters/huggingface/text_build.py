"""Build an adapter from a Transformers model that reads texts, and from its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnaudit.adapters.huggingface.attention.attention_kernels import prepare_kernel
from attnaudit.adapters.huggingface.half_precision import in_float32, precision_of
from attnaudit.adapters.huggingface.outputs.output_heads import Head
from attnaudit.adapters.huggingface.outputs.target_heads import SpanHead, TagHead
from attnaudit.adapters.huggingface.passes.runner import prepare_runner
from attnaudit.adapters.huggingface.precision_choice import require_runs_in_half
from attnaudit.adapters.huggingface.probes.original_model import OriginalModel
from attnaudit.adapters.huggingface.probes.probe import probe_model
from attnaudit.adapters.huggingface.probes.trial_failure import trial_failure
from attnaudit.adapters.huggingface.texts.decoder_inputs import DecoderInputs
from attnaudit.adapters.huggingface.texts.head_choice import head_for, query_order, template_for
from attnaudit.adapters.huggingface.texts.input_builder import InputBuilder
from attnaudit.adapters.huggingface.texts.target_inputs import TargetInputs
from attnaudit.adapters.huggingface.texts.tokenization import TextEncoder
from attnaudit.adapters.huggingface.texts.tokenizer_ids import (
    choose_pad_id,
    longest_input,
    position_offset,
    require_matching_vocabulary,
)
from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter
from attnaudit.adapters.huggingface.wrapped_models import accepted_arguments
from attnaudit.devices import full_precision
from attnaudit.errors import AuditError, ModelError
from attnaudit.targets import Target


def build_text_adapter(
    model: Any,
    tokenizer: Any,
    task: str,
    original: OriginalModel,
    *,
    labels: Mapping[str, str] | None,
    template: str | None,
    max_tokens: int | None,
    where: object,
    classes: Sequence[str] | None = None,
    target: Target | None = None,
    query_first: bool | None = None,
) -> HuggingFaceAdapter:
    """Build an adapter for a model that reads texts.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        task: The task of the model (see `checkpoint_files.task_of`).
        original: The model before it was prepared for the audit.
        labels: As in `transformer`.
        template: As in `transformer`.
        max_tokens: As in `transformer`.
        where: The folder or the name of the model, for messages.
        classes: As in `transformer`.
        target: As in `transformer`.
        query_first: As in `transformer`.

    Raises:
        ModelError: The model, its tokenizer and the settings do not fit together.
        AuditError: The model cannot be audited, or a trial run of it failed.
    """
    if getattr(model.config, "attention_type", None) == "block_sparse":
        raise ModelError(
            f"{where}: the model attends to blocks of tokens in long texts and to all tokens in short ones, so its "
            "attention weights mean different things in different texts. If you can use the model with full "
            "attention for all texts, set attention_type to 'original_full' in config.json."
        )
    head = head_for(model, tokenizer, task, target, labels=labels, template=template, where=where, classes=classes)
    require_matching_vocabulary(model, tokenizer, where)
    kernel = prepare_kernel(model)
    builder = _input_builder(
        model, tokenizer, task, head, template=template, max_tokens=max_tokens, query_first=query_first
    )
    model.eval()
    try:
        with full_precision():
            with in_float32(model):  # so that the probes can tell mistakes from rounding
                runner = prepare_runner(head, kernel, builder)
                if builder.decoder is not None and all(site.key.startswith("encoder.") for site in runner.layout.sites):
                    # A custom module may run only the encoder of a model that also has a decoder.
                    runner = prepare_runner(head, kernel, replace(builder, decoder=None))
                facts = probe_model(runner)
            adapter = HuggingFaceAdapter(runner, facts, original, precision=precision_of(model))
            require_runs_in_half(adapter.runner, adapter.capabilities.precision, where)
        return adapter
    except AuditError:
        raise
    except Exception as error:
        raise trial_failure(where, head, builder, original.implementation, error) from error


def _input_builder(
    model: Any,
    tokenizer: Any,
    task: str,
    head: Head,
    *,
    template: str | None,
    max_tokens: int | None,
    query_first: bool | None,
) -> InputBuilder:
    """Return what turns texts into the arguments of forward(). The arguments are those of `build_text_adapter`."""
    offset = position_offset(model)
    limit = longest_input(tokenizer, model.config, offset)
    if max_tokens is not None:
        limit = max_tokens if limit is None else min(limit, max_tokens)
    text_encoder = TextEncoder(
        tokenizer,
        limit=limit,
        template=template_for(task, head.target, template),
        target=head.target,
        query_first=query_order(head.target, query_first),
        masks_answer=task == "masked",
    )
    pad_id = choose_pad_id(model, tokenizer)
    decoder = None
    if model.config.is_encoder_decoder:
        generates = task in ("causal", "encoder-decoder")
        before = text_encoder.before_written if generates else ()
        decoder = DecoderInputs(model.config, generates=generates, before_written=before)
    accepted, accepts_others = accepted_arguments(model)
    return InputBuilder(
        model=model,
        text_encoder=text_encoder,
        pad_id=pad_id,
        accepted_arguments=accepted,
        accepts_others=accepts_others,
        decoder=decoder,
        position_offset=offset,
        first_position=offset,
        target=TargetInputs(task=task, head=head if isinstance(head, TagHead | SpanHead) else None)
        if head.target.differs_by_row
        else None,
    )
