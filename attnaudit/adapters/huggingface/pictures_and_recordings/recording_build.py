"""Build an adapter from a Transformers model that classifies recordings, and from its feature extractor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from attnaudit.adapters.donors import Donors, InDistribution, content_hash, reading_donors
from attnaudit.adapters.huggingface.attention.attention_kernels import Kernel, prepare_kernel
from attnaudit.adapters.huggingface.checkpoints import checkpoint_files
from attnaudit.adapters.huggingface.logit_comparison import close, largest_difference
from attnaudit.adapters.huggingface.outputs.output_heads import ClassifierHead
from attnaudit.adapters.huggingface.pictures_and_recordings.donor_frames import DonorFrames
from attnaudit.adapters.huggingface.pictures_and_recordings.frame_inputs import FrameInputBuilder, read_waveform
from attnaudit.adapters.huggingface.pictures_and_recordings.frame_modules import ErasedFrame, find_frames
from attnaudit.adapters.huggingface.pictures_and_recordings.frame_runner import FrameRunner, prepare_frame_runner
from attnaudit.adapters.huggingface.pictures_and_recordings.patch_grid import PatchGrid, find_patches
from attnaudit.adapters.huggingface.pictures_and_recordings.patch_inputs import random_pixels
from attnaudit.adapters.huggingface.pictures_and_recordings.picture_build import (
    adapter_for_patches,
    class_names,
    require_replacement,
    with_donors,
)
from attnaudit.adapters.huggingface.pictures_and_recordings.recordings import RecordingEncoder
from attnaudit.adapters.huggingface.pictures_and_recordings.spectrogram_inputs import (
    SpectrogramInputBuilder,
    read_spectrogram,
)
from attnaudit.adapters.huggingface.pictures_and_recordings.spectrogram_places import (
    FrameTimes,
    PatchSpan,
    frame_times,
    patch_spans,
)
from attnaudit.adapters.huggingface.probes.original_model import OriginalModel
from attnaudit.adapters.huggingface.probes.probe import probe_model
from attnaudit.adapters.huggingface.texts.input_builder import single_row
from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter
from attnaudit.adapters.huggingface.wrapped_models import accepted_arguments, name_of
from attnaudit.errors import AdapterError, AuditError, ModelError

#: The argument of forward() that takes a waveform or a spectrogram, in the models that can be audited.
ARGUMENT = "input_values"


def is_feature_extractor(extractor: Any) -> bool:
    """Return whether an object is a Transformers feature extractor for recordings."""
    from transformers.feature_extraction_sequence_utils import SequenceFeatureExtractor

    return isinstance(extractor, SequenceFeatureExtractor)


def build_recording_adapter(
    model: Any,
    extractor: Any,
    original: OriginalModel,
    *,
    where: object,
    classes: Sequence[str] | None = None,
    erased: str | InDistribution | None = None,
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
        erased: What replaces an erased unit, "mean", "mask" or units of other recordings; None for "mean".

    Raises:
        ModelError: The feature extractor, the class names or `erased` do not fit the model.
        AdapterError: The architecture cannot be audited.
    """
    require_replacement(erased, where, "patch or frame of the recording")
    _require_fitting(model, extractor, where)
    head = ClassifierHead(class_names(model.config, where, "recording") if classes is None else tuple(classes))
    kernel = prepare_kernel(model)
    model.eval()
    encoder = RecordingEncoder(extractor, ARGUMENT)
    try:
        values = encoder.values(encoder.noise(encoder.rate // 2), str(where))
        build = _of_frames if values.dim() == 1 else _of_patches
        return build(model, encoder, head, kernel, original, values, erased)
    except AuditError:
        raise
    except Exception as error:
        raise AdapterError(
            f"{where}: a trial run of the model on random recordings failed ({type(error).__name__}: "
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
            f"{where}: a classifier of recordings needs its feature extractor, but a {type(extractor).__name__} was "
            "given. Pass transformers.AutoFeatureExtractor.from_pretrained(FOLDER) instead of the tokenizer."
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
    erased: str | InDistribution | None,
) -> HuggingFaceAdapter:
    name = name_of(model)
    grid = find_patches(model, ARGUMENT, random_pixels(tuple(values.shape)), require_replacement(erased, name, ""))
    times, spans = frame_times(encoder, name), patch_spans(grid, name)
    if isinstance(erased, InDistribution):
        grid = _with_donor_spectrograms(grid, erased, encoder, times, spans)
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
        times=times,
        spans=spans,
    )
    return adapter_for_patches(head, kernel, builder, original)


def _with_donor_spectrograms(
    grid: PatchGrid,
    chosen: InDistribution,
    encoder: RecordingEncoder,
    times: FrameTimes,
    spans: Sequence[PatchSpan],
) -> PatchGrid:
    """Return a grid whose erased patches are replaced by those of donors. Patches of padding are never drawn."""
    ends: dict[str, int] = {}
    spectrograms = []
    with reading_donors():
        for one in chosen.donors:
            values, frames = read_spectrogram(encoder, times, one)
            spectrograms.append(values)
            ends[content_hash(values)] = frames
    donors = Donors(chosen, spectrograms)
    grid = with_donors(grid, donors)
    starts = np.array([span.first_frame for span in spans])
    donors.set_places(starts < np.array([ends[content_hash(one)] for one in donors.values])[:, None])
    return grid


def _of_frames(
    model: Any,
    encoder: RecordingEncoder,
    head: ClassifierHead,
    kernel: Kernel,
    original: OriginalModel,
    _values: torch.Tensor,
    erased: str | InDistribution | None,
) -> HuggingFaceAdapter:
    modules = find_frames(model, cast(ErasedFrame, require_replacement(erased, name_of(model), "")))
    donors = None
    if isinstance(erased, InDistribution):
        with reading_donors():
            waveforms = [read_waveform(encoder, modules, one) for one in erased.donors]
        donors = DonorFrames(erased, waveforms, modules)
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
        donors=donors,
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
            "embeddings of the frames instead of the recording, so it also reads the recording in another way. This "
            "architecture cannot be audited."
        )
