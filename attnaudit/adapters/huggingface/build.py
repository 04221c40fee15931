"""Build an adapter from a checkpoint folder, or from a model that is already in memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnaudit.adapters.dispatched_models import is_dispatched, stored_value
from attnaudit.adapters.donors import InDistribution
from attnaudit.adapters.huggingface.attention import attention_interface
from attnaudit.adapters.huggingface.checkpoints import checkpoint_files, peft_folder, preprocessors
from attnaudit.adapters.huggingface.half_precision import HALF_TYPES, precision_of, type_of
from attnaudit.adapters.huggingface.logit_comparison import close, largest_difference
from attnaudit.adapters.huggingface.pictures_and_recordings import picture_build, recording_build
from attnaudit.adapters.huggingface.precision_choice import Precision, can_be_shipped
from attnaudit.adapters.huggingface.probes.original_model import FLEX, OriginalModel
from attnaudit.adapters.huggingface.text_build import build_text_adapter
from attnaudit.adapters.huggingface.texts.input_builder import TOKEN_TYPES
from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter
from attnaudit.adapters.huggingface.wrapped_models import (
    CustomModel,
    ReadLogits,
    accepted_arguments,
    custom_model,
    inner_models,
    is_transformers_model,
    name_of,
    quantisation_of,
    unwrapped,
)
from attnaudit.devices import full_precision
from attnaudit.errors import AdapterError, ModelError
from attnaudit.precision import FLOAT32
from attnaudit.targets import Target

#: Attention kernels of Transformers with which the audited logits can be compared on any machine. A model with another
#: kernel is compared with the kernel that Transformers would choose for it.
_COMPARED_KERNELS = ("sdpa", "eager", FLEX)


#: The tasks of models that classify pictures, and of models that classify recordings.
IMAGES, AUDIO = "image classifier", "audio classifier"
#: Task -> what such models read instead of texts.
_FILES = {IMAGES: "pictures", AUDIO: "recordings"}


def from_folder(
    folder: Path,
    *,
    labels: Mapping[str, str] | None = None,
    template: str | None = None,
    max_tokens: int | None = None,
    target: Target | None = None,
    query_first: bool | None = None,
    erased: str | InDistribution | None = None,
    precision: Precision | None = None,
) -> HuggingFaceAdapter:
    """Build an adapter from a checkpoint folder.

    The arguments and the errors are the same as in `attnaudit.adapters.huggingface.transformer`.
    """
    if (folder / checkpoint_files.PEFT_CONFIG).is_file():
        model, tokenizer = peft_folder.read_peft_model(peft_folder.examine_peft(folder))
        return from_model(
            model,
            tokenizer,
            labels=labels,
            template=template,
            max_tokens=max_tokens,
            target=target,
            query_first=query_first,
            precision=precision,
        )
    checkpoint = checkpoint_files.examine(folder)
    if checkpoint.task == IMAGES:
        tokenizer = preprocessors.read_image_processor(checkpoint.folder)
    elif checkpoint.task == AUDIO:
        tokenizer = preprocessors.read_feature_extractor(checkpoint.folder)
    else:
        tokenizer = checkpoint_files.read_tokenizer(checkpoint.folder)
    note, requested = "", checkpoint.requested_kernel or None
    if requested is not None and requested not in _COMPARED_KERNELS:
        note = (
            f"the attention kernel {requested}, which the checkpoint requests, was not compared with the audited kernel"
        )
        requested = None
    dtype = torch.float32
    if checkpoint.dtype in HALF_TYPES and precision != FLOAT32 and checkpoint.task not in _FILES:
        dtype = checkpoint.dtype
    model = checkpoint_files.read_model(checkpoint, dtype, requested)
    if not can_be_shipped(model, _FILES.get(checkpoint.task, ""), precision, folder):
        model = model if dtype == torch.float32 else checkpoint_files.read_model(checkpoint, torch.float32, requested)
    implementation = attention_interface.current_implementation(model)
    original = OriginalModel(
        implementation=implementation,
        dtype=checkpoint.dtype,
        load=lambda dtype, kernel: checkpoint_files.read_model(checkpoint, dtype, kernel),
        note=note,
    )
    if not attention_interface.uses_interface(model) and implementation != "eager":
        model = checkpoint_files.read_model(checkpoint, torch.float32, "eager")
    return _build(
        model,
        tokenizer,
        checkpoint.task,
        original,
        labels=labels,
        template=template,
        max_tokens=max_tokens,
        where=folder,
        target=target,
        query_first=query_first,
        erased=erased,
    )


def from_model(
    model: Any,
    tokenizer: Any,
    *,
    labels: Mapping[str, str] | None = None,
    template: str | None = None,
    max_tokens: int | None = None,
    classes: Sequence[str] | None = None,
    read_logits: ReadLogits | None = None,
    target: Target | None = None,
    query_first: bool | None = None,
    erased: str | InDistribution | None = None,
    precision: Precision | None = None,
) -> HuggingFaceAdapter:
    """Build an adapter from a model in memory.

    The arguments and the errors are the same as in `attnaudit.adapters.huggingface.transformer`.
    """
    name = type(model).__name__
    container = model
    model, removed = unwrapped(model, name)
    if isinstance(model, nn.Module) and (read_logits is not None or not is_transformers_model(model)):
        model = custom_model(model, read_logits)
        if classes is None and target is not None and target.kind == "score":
            classes = [target.name or "score"]
        if classes is None and labels is None and (target is None or target.kind in ("class", "label", "tag")):
            raise ModelError(
                f"transformer({name}): a custom module has no class names. Give them in the order of its logits: "
                "transformer(model, tokenizer, classes=['negative', 'positive'])."
            )
    name = name_of(model)
    _require_usable(model, tokenizer, name)
    implementation, dtype = attention_interface.current_implementation(model), type_of(model)
    note = f"the audit runs the model inside {' and '.join(removed)}" if removed else ""
    if implementation not in _COMPARED_KERNELS:
        note = f"the attention kernel {implementation}, which the model uses, was not compared with the audited kernel"
        implementation = attention_interface.default_implementation(model)
    if not attention_interface.uses_interface(model) and implementation != "eager":
        raise ModelError(
            f"{name}: its attention can be observed only with the eager kernel. Build the model with "
            "attn_implementation='eager'."
        )
    if not attention_interface.uses_interface(model):
        _require_eager_inside(model, name)
    names = accepted_arguments(model)[0] if isinstance(model, CustomModel) else frozenset({"input_ids"})
    reads_files = "input_ids" not in names
    task = IMAGES if reads_files or picture_build.is_image_processor(tokenizer) else None
    if (reads_files and "pixel_values" not in names) or recording_build.is_feature_extractor(tokenizer):
        task = AUDIO
    task = task or _task_in_memory(model, name, labels, target)
    given = model
    shipped = can_be_shipped(model, _FILES.get(task, ""), precision, name) and precision_of(model) != FLOAT32
    if dtype != torch.float32 and not (shipped and precision != FLOAT32):
        if is_dispatched(model):
            raise ModelError(
                f"{name}: the model can be audited only as a float32 copy, but accelerate has distributed it over "
                "several devices or offloaded its weights, so it cannot be copied. Load it with dtype=torch.float32"
                f"{', or remove precision' if precision == FLOAT32 and shipped else ''}."
            )
        model = copy.deepcopy(model).float()
    original = OriginalModel(
        implementation=implementation,
        dtype=dtype,
        load=None if given is model else lambda wanted, _kernel: _copied(given, wanted),
        note=note,
    )
    adapter = _build(
        model,
        tokenizer,
        task,
        original,
        labels=labels,
        template=template,
        max_tokens=max_tokens,
        where=name,
        classes=classes,
        target=target,
        query_first=query_first,
        erased=erased,
    )
    if any(one.startswith("PEFT") for one in removed):
        _require_logits_of_container(adapter, container, removed)
    return adapter


def _copied(model: Any, dtype: torch.dtype) -> Any:
    """Return a copy of a model in a data type.

    If this is the type of the model, tensors of other types keep their types.
    """
    copied = copy.deepcopy(model)
    return copied if dtype == type_of(model) else copied.to(dtype)


def _require_eager_inside(model: Any, name: str) -> None:
    """Check that all Transformers models inside a model use eager attention.

    Only a model that does not use the attention interface needs this check.

    Raises:
        ModelError: An inner model uses a kernel that computes no weights.
    """
    for inside, inner in inner_models(model).items():
        kernel = attention_interface.current_implementation(inner)
        if attention_interface.uses_interface(inner) and kernel != "eager":
            raise ModelError(
                f"{name}: the {type(inner).__name__} inside it computes its attention with the kernel {kernel}, whose "
                f"weights cannot be recorded. Call model.get_submodule('{inside}').set_attn_implementation('eager') "
                "before transformer()."
            )


def _require_logits_of_container(adapter: HuggingFaceAdapter, container: Any, removed: Sequence[str]) -> None:
    """Check that a model gives the same logits with and without the containers that were removed from it.

    Raises:
        AdapterError: The logits differ by more than rounding explains.
    """
    runner, inputs = adapter.runner, adapter.runner.builder.synthetic()
    container.eval()
    with torch.no_grad(), adapter.in_float32(), full_precision():
        expected = runner.logits_of_model(container, inputs)
        logits = runner.logits(inputs)
        if close(logits.float(), expected.float()):
            return
        fix = "Merge the PEFT adapter into the model first (`merge_and_unload()`), and audit the result."
        untyped = replace(inputs, extra={name: one for name, one in inputs.extra.items() if name != TOKEN_TYPES})
        if TOKEN_TYPES in inputs.extra and close(runner.logits(untyped).float(), expected.float()):
            fix = (
                "The whole model ignores token_type_ids, as PEFT's model for question answering does. If it was "
                "trained in this way, leave them out: set model_input_names to ['input_ids', 'attention_mask'] in the "
                "tokenizer, or in its tokenizer_config.json. Otherwise, merge the PEFT adapter into the model "
                "(`merge_and_unload()`), and audit the result."
            )
    raise AdapterError(
        f"{runner.name}: the audit runs the model inside {' and '.join(removed)}, but its logits differ by "
        f"{largest_difference(logits, expected):.2g} from those of the whole model. {fix}"
    )


def _task_in_memory(model: Any, name: str, labels: Mapping[str, str] | None, target: Target | None) -> str:
    """Return the task of a model in memory (see `checkpoint_files.task_of`).

    If the model is an instance of a Transformers class, the task follows from this class. Otherwise, the task follows
    from the target. Without a target, the model is a language model if labels are given, and a classifier if not.

    Raises:
        ModelError: The class is for a task that cannot be audited.
    """
    if not isinstance(model, CustomModel):
        for base in type(model).__mro__:
            if base.__module__.startswith("transformers.models.") and not base.__name__.endswith("PreTrainedModel"):
                if base is not type(model) and "For" not in base.__name__:
                    break  # a class of the user's own, which adds a head to a model without one
                return checkpoint_files.task_of(name, base.__name__)
    if target is not None and target.at_tokens:
        return "tagger" if target.kind == "tag" else "extractor"
    if labels is None and (target is None or target.kind != "string"):
        return "classifier"
    return "encoder-decoder" if model.config.is_encoder_decoder else "causal"


def _require_usable(model: Any, tokenizer: Any, name: str) -> None:
    """Check that the model is an unquantised Transformers model that can be run, and that it has a tokenizer.

    Raises:
        ModelError: One of these conditions is not met.
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise ModelError(
            f"transformer({name}): expected a checkpoint folder, or a Transformers model with its tokenizer."
        )
    if tokenizer is None:
        raise ModelError(
            f"transformer({name}): a model in memory needs its tokenizer, or its image processor, as the second "
            "argument."
        )
    method = quantisation_of(model)
    if method:
        raise ModelError(
            f"{name}: the model is quantised ({method}), and quantised models cannot be audited. Pass the "
            "unquantised "
            "model instead."
        )
    without_value = [
        label for label, one in model.named_parameters() if one.is_meta and stored_value(model, label) is None
    ]
    devices = {str(p.device) for p in model.parameters()}
    mapped = set((getattr(model, "hf_device_map", None) or {}).values())
    if without_value or (not is_dispatched(model) and (len(devices) != 1 or len(mapped) > 1)):
        raise ModelError(
            f"{name}: the model is spread over several devices without accelerate's hooks, or some of its weights "
            f"have no values because they are on the device 'meta' (devices: {', '.join(sorted(devices))}). "
            "Load it on one device, or with device_map."
        )


def _build(
    model: Any,
    processor: Any,
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
    erased: str | InDistribution | None = None,
) -> HuggingFaceAdapter:
    """Build an adapter for a model that reads texts, pictures or recordings.

    Args:
        model: The model.
        processor: Its tokenizer, image processor or feature extractor.
        task: The task of the model (see `_task_in_memory`), or `IMAGES` or `AUDIO`.
        original: The model before it was prepared for the audit.
        labels: As in `transformer`.
        template: As in `transformer`.
        max_tokens: As in `transformer`.
        where: The folder or the name of the model, for messages.
        classes: As in `transformer`.
        target: As in `transformer`.
        query_first: As in `transformer`.
        erased: As in `transformer`.

    Raises:
        ModelError: A setting is for models that read something else, or the model cannot be audited.
    """
    if task in _FILES:
        if labels is not None or template is not None or max_tokens is not None:
            raise ModelError(
                f"{where}: the settings labels, template and max_tokens are for texts, but the model reads "
                f"{_FILES[task]}. Remove them."
            )
        build = picture_build.build_picture_adapter if task == IMAGES else recording_build.build_recording_adapter
        with full_precision():
            return build(model, processor, original, where=where, classes=classes, erased=erased)
    if erased is not None:
        raise ModelError(
            f"{where}: the setting 'erased' is for models that read pictures or recordings, but {type(model).__name__} "
            "reads texts. Remove it."
        )
    return build_text_adapter(
        model,
        processor,
        task,
        original,
        labels=labels,
        template=template,
        max_tokens=max_tokens,
        where=where,
        classes=classes,
        target=target,
        query_first=query_first,
    )
