"""Small image classifiers with random weights, and pictures for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from attnaudit.instances import Instance

SIDE, PATCH, CLASSES = 16, 4, 3
_SHARED = {
    "image_size": SIDE,
    "patch_size": PATCH,
    "num_channels": 3,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "num_labels": CLASSES,
}
#: Name -> the model class, further settings of its configuration, and the size to which a picture is resized before its
#: middle is cropped; None for no crop.
KINDS: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "vit": ("ViTForImageClassification", {}, None),
    "deit": ("DeiTForImageClassification", {}, 20),
    "deit_with_teacher": ("DeiTForImageClassificationWithTeacher", {}, 20),
    "beit": ("BeitForImageClassification", {"use_relative_position_bias": True}, None),
    "beit_with_mask_token": ("BeitForImageClassification", {"use_mask_token": True, "use_mean_pooling": False}, None),
}
MODES = ((SIDE, SIDE, "RGB"), (40, 30, "RGB"), (17, 33, "L"), (20, 20, "RGBA"), (64, 64, "P"), (3, 50, "RGB"))


def small_image_classifier(kind: str = "vit") -> tuple[Any, Any]:
    """Return a model in evaluation mode, and its image processor."""
    import transformers

    name, settings, resized = KINDS[kind]
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**_SHARED, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    size = {"height": SIDE, "width": SIDE}
    crop = {} if resized is None else {"size": {"height": resized, "width": resized}, "crop_size": size}
    processor_class = transformers.ViTImageProcessorPil if resized is None else transformers.DeiTImageProcessorPil
    return model, processor_class(**({"size": size} | crop))


def pictures(folder: Path) -> list[Instance]:
    """Write random pictures of several sizes and modes, and return them as instances."""
    generator = np.random.default_rng(0)
    instances = []
    for number, (width, height, mode) in enumerate(MODES):
        path = folder / f"{number}.png"
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode).save(path)
        instances.append(Instance(id=str(number), text=path.name, file=str(path), label=f"LABEL_{number % CLASSES}"))
    return instances
