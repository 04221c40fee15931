"""Build an adapter from a Transformers model that classifies recordings, and from its feature extractor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from attnaudit.adapters.huggingface import attention_interface, checkpoint_files
from attnaudit.adapters.huggingface.attention_kernels import InterfaceKernel, Kernel
from attnaudit.adapters.huggingface.frame_inputs import FrameInputBuilder
from attnaudit.adapters.huggingface.frame_modules import find_frames
from attnaudit.adapters.huggingface.frame_runner import FrameRunner, prepare_frame_runner
from attnaudit.adapters.huggingface.input_builder import single_row
from attnaudit.adapters.huggingface.logit_comparison import close, largest_difference
from attnaudit.adapters.huggingface.original_model import OriginalModel
from attnaudit.adapters.huggingface.output_heads import ClassifierHead
from attnaudit.adapters.huggingface.patch_grid import Erased, find_patches
from attnaudit.adapters.huggingface.patch_inputs import random_pixels
from attnaudit.adapters.huggingface.picture_build import PROCESSOR_FILES, class_names, deletes_exactly
from attnaudit.adapters.huggingface.picture_runner import prepare_picture_runner
from attnaudit.adapters.huggingface.probe import probe_model
from attnaudit.adapters.huggingface.recordings import RecordingEncoder
from attnaudit.adapters.huggingface.softmax_hook import SoftmaxKernel
from attnaudit.adapters.huggingface.spectrogram_inputs import SpectrogramInputBuilder
from attnaudit.adapters.huggingface.spectrogram_places import frame_times, patch_spans
from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter
from attnaudit.adapters.huggingface.wrapped_models import accepted_arguments, name_of
from attnaudit.errors import AdapterError, AuditError, ModelError

#: The argument of forward() that takes a waveform or a spectrogram, in the models that can be audited.
ARGUMENT = "input_values"


def is_feature_extractor(extractor: Any) -> bool:
    """Return whether an object is a Transformers feature extractor for recordings."""
    from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor

    return isinstance(extractor, SequenceFeatureExtractor)


def read_feature_extractor(folder: Path) -> Any:
    """Load the feature extractor in a folder.

    Raises:
        ModelError: The folder has no feature extractor, or it cannot be loaded.
    """
    fix = "Save it next to the model: feature_extractor.save_pretrained(folder)."
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        raise ModelError(f"{folder}: no feature extractor ({PROCESSOR_FILES[0]}). {fix}")
    try:
        from transformers import AutoFeatureExtractor

        with checkpoint_files.quiet():
            return AutoFeatureExtractor.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{folder}: its feature extractor cannot be loaded ({type(error).__name__}: "
            f"{checkpoint_files.first_line(error)}). {fix}"
        ) from error


def build_recording_adapter(
    model: Any,
    extractor: Any,
    original: OriginalModel,
    *,
    where: object,
    classes: Sequence[str] | None = None,
    erased: str | None = None,
) -> HuggingFaceAdapter:
    """Build an adapter for a classifier of recordings.

    If the feature extractor returns a spectrogram, the units are patches of the spectrogram. If it returns a waveform,
    they are frames.

    Args:
        model: The model, in float32.
        extractor: Its feature extractor.
        original: The model before it was prepared for the audit.
        where: The folder or the name of the model, for messages.
        classes: Class names in the order of the logits; None for those in the model's configuration.
        erased: What replaces an erased unit, "mean" or "mask"; None for "mean".

    Raises:
        ModelError: The feature extractor, the class names or `erased` do not fit the model.
        AdapterError: The architecture cannot be audited.
    """
    if erased not in (None, "mean", "mask"):
        raise ModelError(f"{where}: erased is {erased!r}; expected 'mean' (the mean unit of the recording) or 'mask'.")
    _require_fitting(model, extractor, where)
    head = ClassifierHead(class_names(model.config, where, "recording") if classes is None else tuple(classes))
    kernel: Kernel = SoftmaxKernel()
    if attention_interface.uses_interface(model):
        attention_interface.register()
        model.set_attn_implementation(attention_interface.NAME)
        kernel = InterfaceKernel()
    model.eval()
    encoder = RecordingEncoder(extractor, ARGUMENT)
    try:
        values = encoder.values(encoder.noise(encoder.rate // 2), str(where))
        build = _of_frames if values.dim() == 1 else _of_patches
        return build(model, encoder, head, kernel, original, values, cast(Erased, erased or "mean"))
    except AuditError:
        raise
    except Exception as error:
        raise AdapterError(
            f"{where}: running the model on random recordings, as an audit does, failed ({type(error).__name__}: "
            f"{checkpoint_files.first_line(error)}). This architecture cannot be audited."
        ) from error


def _require_fitting(model: Any, extractor: Any, where: object) -> None:
    """Check that a model reads what its feature extractor returns.

    Raises:
        ModelError: The object is not a feature extractor.
        AdapterError: The model reads something else than `ARGUMENT`.
    """
    if not is_feature_extractor(extractor):
        raise ModelError(
            f"{where}: a classifier of recordings needs its feature extractor, but got a {type(extractor).__name__}. "
            "Pass transformers.AutoFeatureExtractor.from_pretrained(FOLDER) instead of the tokenizer."
        )
    if ARGUMENT not in accepted_arguments(model)[0]:
        raise AdapterError(
            f"{name_of(model)}: it reads '{getattr(model, 'main_input_name', 'other inputs')}' instead of "
            f"'{ARGUMENT}'. Only models that read a waveform, or patches of a spectrogram, can be audited. In other "
            "models, it is unknown which part of the recording a position of the attention reads."
        )


def _of_patches(
    model: Any,
    encoder: RecordingEncoder,
    head: ClassifierHead,
    kernel: Kernel,
    original: OriginalModel,
    values: torch.Tensor,
    erased: Erased,
) -> HuggingFaceAdapter:
    name = name_of(model)
    grid = find_patches(model, ARGUMENT, random_pixels(tuple(values.shape)), erased)
    builder = SpectrogramInputBuilder(
        model=model,
        text_encoder=cast(Any, encoder),
        pad_id=0,
        accepted_arguments=frozenset({ARGUMENT}),
        accepts_others=False,
        decoder=None,
        position_offset=0,
        first_position=0,
        whole="recording",
        encoder=encoder,
        grid=grid,
        times=frame_times(encoder, name),
        spans=patch_spans(grid, name),
    )
    runner = prepare_picture_runner(head, kernel, builder)
    runner = replace(runner, builder=replace(builder, deletable=deletes_exactly(runner)))
    return HuggingFaceAdapter(runner, probe_model(runner), original)


def _of_frames(
    model: Any,
    encoder: RecordingEncoder,
    head: ClassifierHead,
    kernel: Kernel,
    original: OriginalModel,
    _values: torch.Tensor,
    erased: Erased,
) -> HuggingFaceAdapter:
    modules = find_frames(model, erased)
    builder = FrameInputBuilder(
        model=model,
        text_encoder=cast(Any, encoder),
        pad_id=0,
        accepted_arguments=frozenset({ARGUMENT, "attention_mask"}),
        accepts_others=False,
        decoder=None,
        position_offset=0,
        first_position=0,
        encoder=encoder,
        modules=modules,
    )
    runner = prepare_frame_runner(head, kernel, builder)
    _require_same_logits(runner)
    facts = probe_model(runner)
    return HuggingFaceAdapter(runner, replace(facts, unseen_mixers=(*modules.mixers, *facts.unseen_mixers)), original)


def _require_same_logits(runner: FrameRunner) -> None:
    """Check that the model gives the same logits for a recording and for the embeddings of its frames.

    Raises:
        AdapterError: The logits differ.
    """
    inputs = runner.builder.synthetic()
    with torch.no_grad():
        expected = runner.logits_of_model(runner.model, inputs)
        found = torch.cat([runner.logits(single_row(inputs, row)) for row in range(len(expected))])
    if not close(found, expected):
        raise AdapterError(
            f"{runner.name}: the logits change by {largest_difference(found, expected):.2g} if the model gets the "
            "embeddings of the frames instead of the recording, so it reads the recording in another way too. This "
            "architecture cannot be audited."
        )
