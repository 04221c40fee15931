"""Build an adapter from a Transformers model that classifies pictures, and from its image processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from attnaudit.adapters.donors import Donors, InDistribution, reading_donors
from attnaudit.adapters.huggingface.attention.attention_kernels import Kernel, prepare_kernel
from attnaudit.adapters.huggingface.checkpoints import checkpoint_files
from attnaudit.adapters.huggingface.checkpoints.names_of_classes import names_of_classes
from attnaudit.adapters.huggingface.logit_comparison import attempt, close
from attnaudit.adapters.huggingface.outputs.output_heads import ClassifierHead
from attnaudit.adapters.huggingface.pictures_and_recordings.patch_grid import Erased, PatchGrid, find_patches
from attnaudit.adapters.huggingface.pictures_and_recordings.patch_inputs import PatchInputBuilder, random_pixels
from attnaudit.adapters.huggingface.pictures_and_recordings.picture_inputs import PictureEncoder, PictureInputBuilder
from attnaudit.adapters.huggingface.pictures_and_recordings.picture_runner import PictureRunner, prepare_picture_runner
from attnaudit.adapters.huggingface.probes.original_model import OriginalModel
from attnaudit.adapters.huggingface.probes.probe import probe_model
from attnaudit.adapters.huggingface.texts.input_builder import single_row
from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter
from attnaudit.adapters.protocol import TEXT
from attnaudit.errors import AdapterError, AuditError, ModelError
from attnaudit.input_files import read_picture

#: The argument of forward() that takes the pixels, in all Transformers image classifiers.
_ARGUMENT = "pixel_values"


def is_image_processor(processor: Any) -> bool:
    """Return whether an object is a Transformers image processor."""
    from transformers.image_processing_base import ImageProcessingMixin

    return isinstance(processor, ImageProcessingMixin)


def build_picture_adapter(
    model: Any,
    processor: Any,
    original: OriginalModel,
    *,
    where: object,
    classes: Sequence[str] | None = None,
    erased: str | InDistribution | None = None,
) -> HuggingFaceAdapter:
    """Build an adapter for an image classifier.

    Args:
        model: The model, in float32.
        processor: Its image processor.
        original: The model before it was prepared for the audit.
        where: The folder or the name of the model, for messages.
        classes: Class names in the order of the logits; None for those in the model's configuration.
        erased: What replaces an erased patch, "typical", "mean", "mask" or patches of other pictures; None for
            "typical".

    Raises:
        ModelError: The image processor, the class names or `erased` do not fit the model.
        AdapterError: The architecture cannot be audited.
    """
    fixed = require_replacement(erased, where, "patch of the picture", ("typical", "mean", "mask"))
    head = ClassifierHead(class_names(model.config, where) if classes is None else tuple(classes))
    kernel = prepare_kernel(model)
    model.eval()
    encoder = PictureEncoder(processor)
    try:
        size = _size(model, encoder, where)
        grid = find_patches(model, _ARGUMENT, random_pixels(size), fixed)
        if isinstance(erased, InDistribution):
            with reading_donors():
                pixels = [encoder.pixels([read_picture(one)])[0] for one in erased.donors]
            grid = with_donors(grid, Donors(erased, pixels))
        builder = PictureInputBuilder(
            model=model,
            text_encoder=cast(Any, encoder),
            pad_id=0,
            accepted_arguments=frozenset({_ARGUMENT}),
            accepts_others=False,
            decoder=None,
            position_offset=0,
            first_position=0,
            encoder=encoder,
            grid=grid,
        )
        return adapter_for_patches(head, kernel, builder, original)
    except AuditError:
        raise
    except Exception as error:
        raise AdapterError(
            f"{where}: a trial run of the model on random pictures failed ({type(error).__name__}: "
            f"{checkpoint_files.first_line(error)}). This architecture cannot be audited."
        ) from error


def adapter_for_patches(
    head: ClassifierHead, kernel: Kernel, builder: PatchInputBuilder, original: OriginalModel
) -> HuggingFaceAdapter:
    """Return the adapter of a model that reads patches, after trial runs that show what the model supports."""
    runner = prepare_picture_runner(head, kernel, builder)
    runner = replace(runner, builder=replace(builder, deletable=deletes_exactly(runner)))
    return HuggingFaceAdapter(runner, probe_model(runner), original)


def require_replacement(
    erased: str | InDistribution | None, where: object, unit: str, allowed: tuple[Erased, ...] = ("mean", "mask")
) -> Erased:
    """Return the name of what replaces an erased unit. For units of other rows, it is the default.

    Args:
        erased: The replacement that the user asks for; None for the default.
        where: The folder or the name of the model, for messages.
        unit: The unit, such as "patch of the picture".
        allowed: The names of the possible replacements; the default comes first.

    Raises:
        ModelError: There is no such replacement.
    """
    if erased is None or isinstance(erased, InDistribution):
        return allowed[0]
    if erased not in allowed:
        typical = f"'typical' (the most typical {unit}), " if "typical" in allowed else ""
        raise ModelError(
            f"{where}: erased is {erased!r}; expected {typical}'mean' (the mean {unit}), 'mask', or "
            "attnaudit.adapters.InDistribution(donors=...)."
        )
    return erased


def with_donors(grid: PatchGrid, donors: Donors) -> PatchGrid:
    """Return a grid whose erased patches are replaced by those of donors.

    Raises:
        ModelError: The values of a donor do not have the size that the model reads.
    """
    for one in donors.values:
        if tuple(one.shape) != grid.size:
            raise ModelError(
                f"InDistribution: a donor gives values of the shape {tuple(one.shape)}, but the model reads "
                f"{grid.size}. Use donors that the model can read."
            )
    donors.set_places(np.ones((len(donors.values), grid.patches), dtype=np.bool_))
    return replace(grid, replacement=replace(grid.replacement, donors=donors))


def class_names(config: Any, where: object, item: str = "picture") -> tuple[str, ...]:
    """Return the class names in the configuration of a model that classifies some kind of items, such as pictures.

    Raises:
        ModelError: The model does not assign one of several classes to an item, or two classes have the same name.
    """
    problem = getattr(config, "problem_type", None)
    if problem in ("multi_label_classification", "regression") or config.num_labels < 2:
        raise ModelError(
            f"{where}: the model's task is {problem or 'regression'} ({config.num_labels} outputs); expected a "
            f"classifier with one label per {item} and at least two classes."
        )
    return names_of_classes(config, where)


def _size(model: Any, encoder: PictureEncoder, where: object) -> tuple[int, int, int]:
    """Return the channels, the height and the width of the pixels that the image processor gives.

    Raises:
        ModelError: The processor is not an image processor, it fails, or it gives another number of channels than the
            model reads.
    """
    if not is_image_processor(encoder.processor):
        raise ModelError(
            f"{where}: a classifier of pictures needs its image processor, but a {type(encoder.processor).__name__} "
            "was given. Pass transformers.AutoImageProcessor.from_pretrained(FOLDER) instead of the tokenizer."
        )
    from PIL import Image

    image_size = getattr(model.config, "image_size", 224)
    height, width = image_size if isinstance(image_size, list | tuple) else (image_size, image_size)
    try:
        pixels = encoder.pixels([Image.new("RGB", (width, height), (90, 120, 150))])
    except Exception as error:
        raise ModelError(
            f"{where}: the image processor {type(encoder.processor).__name__} cannot process a picture of {width} × "
            f"{height} pixels ({type(error).__name__}: {checkpoint_files.first_line(error)}). Save the model's "
            "own image processor to the folder."
        ) from error
    channels = getattr(model.config, "num_channels", pixels.shape[1])
    if tuple(pixels.shape[1:]) != (channels, height, width):
        raise ModelError(
            f"{where}: the image processor gives pixels of the shape {tuple(pixels.shape[1:])}, but the model reads "
            f"{(channels, height, width)} (channels, height, width). Save the model's own image processor to the "
            "folder."
        )
    return channels, height, width


def deletes_exactly(runner: PictureRunner) -> bool:
    """Return whether an input with deleted patches gives the same logits alone and in a batch with whole inputs.

    A head that averages over all positions would also average over padding.
    """
    builder = runner.builder
    inputs = builder.synthetic()
    first = int(inputs.real()[0].nonzero()[0, 0])
    mask = inputs.mask[TEXT][:2].clone()
    mask[0, [first, first + 2]] = False
    rows = torch.arange(2, device=builder.device)

    def both_ways() -> tuple[torch.Tensor, torch.Tensor]:
        variants = builder.keep(inputs, TEXT, rows, mask)
        with torch.no_grad():
            return runner.logits(variants)[:1], runner.logits(single_row(variants, 0))

    # An architecture with a fixed number of positions, such as one with relative position biases, fails in many ways.
    found = attempt(both_ways)
    return found is not None and close(*found)
