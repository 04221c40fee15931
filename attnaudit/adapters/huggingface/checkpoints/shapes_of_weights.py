"""Compare the shapes of saved weights with those that a model needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch


def wrong_shapes(files: Iterable[Path], model_class: Any, config: Any) -> list[str]:
    """Return one phrase for each saved weight whose shape is not that of the model's parameter of the same name.

    Args:
        files: The safetensors files of the weights.
        model_class: The class of the model, or one of Transformers' classes that choose it, such as
            AutoModelForSequenceClassification.
        config: Its configuration.

    Returns:
        The phrases. They are empty if the model cannot be built or a file cannot be read: another error is then raised
        elsewhere.
    """
    from safetensors import SafetensorError, safe_open

    found = []
    try:
        with torch.device("meta"):
            model = getattr(model_class, "from_config", model_class)(config)  # classes that choose one have from_config
        needed = {name: list(value.shape) for name, value in model.state_dict().items()}
        for path in files:
            with safe_open(path, framework="pt") as file:
                for name in sorted(set(file.keys()) & needed.keys()):
                    shape = file.get_slice(name).get_shape()
                    if shape != needed[name]:
                        found.append(f"{name} has the shape {shape}, but the model needs {needed[name]}")
    except (SafetensorError, OSError, RuntimeError, ValueError, NotImplementedError):
        return []
    return found
